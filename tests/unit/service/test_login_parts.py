"""Parts of logins: settings, rules, keys of the provider, claims, names in the audit."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("authlib", reason="needs shardwise[oidc]")

from joserfc.jwk import OctKey, RSAKey

from service.base.login_required import is_safe
from service.base.problems import Problem
from service.base.settings import Settings, environment_of_child, load_settings
from service.login.attempt import Attempt, new_attempt, read_attempt
from service.login.identity import KEY_ID, actor_of, groups_of, identity_of, key_id_of
from service.login.provider import AGAIN_S, KEPT_S, RETRY_S, WELL_KNOWN, Provider
from service.login.rules import read_rules
from service.login.tokens import TokenRefused, is_jwt
from shardwise.errors import BadInput

ISSUER = "https://login.example"
LOGIN = {
    "public_url": "https://shardwise.example",
    "oidc_issuer": ISSUER,
    "oidc_client_id": "shardwise",
    "oidc_rules_file": "/rules.toml",
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"oidc_issuer": "http://login.example"}, "oidc_issuer"),
        ({"oidc_issuer": "https://u:hunter2@login.example"}, "oidc_issuer"),
        ({"oidc_client_id": ""}, "oidc_client_id"),
        ({"oidc_rules_file": ""}, "oidc_rules_file"),
        ({"public_url": ""}, "public_url"),
        ({"public_url": "http://shardwise.example"}, "public_url"),
        ({"public_url": "https://shardwise.example/page"}, "public_url"),
        ({"public_url": "shardwise.example"}, "public_url"),
        ({"oidc_scopes": "profile email"}, "oidc_scopes"),
        ({"oidc_client_auth": "jwt"}, "oidc_client_auth"),
        ({"session_s": 0.0}, "session_s"),
    ],
)
def test_settings_by_half_are_refused(change: dict[str, Any], field: str) -> None:
    Settings(**LOGIN)
    with pytest.raises(BadInput) as caught:
        Settings(**{**LOGIN, **change})
    assert caught.value.field == field
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://login.example/realms/a", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://10.0.0.1", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost@evil.example", False),
        ("file:///etc/passwd", False),
        ("https://", False),
        ("https://a:b@c", False),
        ("https://c:port", False),
        ("https://a b", False),
    ],
)
def test_secrets_go_over_tls_or_stay_on_this_host(url: str, safe: bool) -> None:
    assert is_safe(url) is safe


def test_a_child_process_gets_a_secret_from_a_file_once(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush\n")
    environment = {f"SHARDWISE_{name.upper()}": value for name, value in LOGIN.items()}
    environment["SHARDWISE_OIDC_CLIENT_SECRET_FILE"] = str(file)
    loaded = load_settings({}, environment)
    assert loaded.oidc_client_secret == "hush"
    assert load_settings({}, environment_of_child(environment, loaded)) == loaded


RULE = '[[rule]]\ngroup = "a"\ntenant = "t"\nscopes = ["read"]\n'


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "rule"),
        ("rule = 1", "rule"),
        ("rule = [1]", "rule[0]"),
        ("other = 1", "other"),
        (RULE + RULE.replace('"a"', "5"), "rule[1].group"),
        (RULE.replace('"a"', '""'), "rule[0].group"),
        (RULE.replace('"t"', '"T!"'), "rule[0].tenant"),
        (RULE.replace('"t"', r'"t\n"'), "rule[0].tenant"),
        (RULE.replace('"read"', '"root"'), "rule[0].scopes"),
        (RULE.replace('"read"', '"agent"'), "rule[0].scopes"),
        (RULE.replace('"read"', ""), "rule[0].scopes"),
        (RULE.replace('["read"]', '"read"'), "rule[0].scopes"),
        (RULE.replace('"read"', "[]"), "rule[0].scopes"),
        (RULE + "extra = 1\n", "rule[0].extra"),
        ("[[rule]", None),
        (RULE * 1001, "rule"),
        ("#" * (2**20 + 1), None),
    ],
)
def test_wrong_rules_are_refused_with_their_place(
    tmp_path: Path, text: str, field: str | None
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_rules(str(file))
    assert (caught.value.file, caught.value.field) == (str(file), field)


def test_a_file_of_rules_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_rules(str(tmp_path / "none.toml"))


def test_rules_unite_scopes_and_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        RULE.replace('"t"', '"z"')
        + RULE
        + RULE.replace('"a"', '"b"').replace('"read"', '"submit"')
        + RULE.replace('"a"', '"c"').replace('"read"', '"admin"')
    )
    rules = read_rules(str(file))
    assert list(rules.tenants(["b", "a", "x"]).items()) == [
        ("z", {"read"}),
        ("t", {"read", "submit"}),
    ]
    assert rules.tenants(["x", "A", "a "]) == {}
    assert rules.known(["x", "b", "a", "a"]) == ["a", "b"]


def test_an_attempt_comes_back_from_its_cookie() -> None:
    attempt = new_attempt("/jobs?state=ä&b=1")
    assert read_attempt(attempt.cookie()) == attempt
    assert new_attempt("/" + "x" * 2000).where == "/"
    for cookie in ("", "x", attempt.secret, f"{attempt.secret}.%", f"{attempt.secret[1:]}.Lw"):
        assert read_attempt(cookie) is None
    assert 43 <= len(attempt.verifier) <= 128, "RFC 7636 4.1"
    other = Attempt(attempt.secret, "/")
    assert (other.state, other.nonce) == (attempt.state, attempt.nonce)
    assert attempt.state != new_attempt("/").state


@pytest.mark.parametrize(
    ("claims", "name", "groups"),
    [
        ({"groups": ["a", "b"]}, "groups", ("a", "b")),
        ({"groups": "a"}, "groups", ("a",)),
        ({"groups": []}, "groups", ()),
        ({"groups": ["a", 5, None, ["b"]]}, "groups", ("a",)),
        ({"groups": {"a": 1}}, "groups", ()),
        ({}, "groups", None),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ("a",)),
        ({"https://example.org/groups": ["a"]}, "https://example.org/groups", ("a",)),
        ({"realm_access": "x"}, "realm_access.roles", None),
    ],
)
def test_groups_of_claims(
    claims: dict[str, Any], name: str, groups: tuple[str, ...] | None
) -> None:
    assert groups_of(claims, name) == groups


@pytest.mark.parametrize("subject", [None, "", 5, "x" * 256, "ä", "a\0", ["a"]])
def test_a_subject_that_is_none(subject: Any) -> None:
    with pytest.raises(TokenRefused):
        identity_of({"sub": subject}, "groups")


def test_the_audit_names_people_unmistakably() -> None:
    assert key_id_of("ada") == "oidc:ada"
    long = [key_id_of(subject) for subject in ("x" * 27, "x" * 28, "x" * 29, "a b", "a%20b")]
    assert len(set(long)) == len(long)
    assert all(len(one) <= KEY_ID for one in long)
    assert [one[4] for one in long] == [":", "#", "#", "#", "#"]
    # A name is its owner's to choose: it cannot pass for another subject.
    assert actor_of("ada", "x) oidc:root (") == "oidc:ada (x) oidc:root ()"
    assert actor_of("ada (root)", "") == "oidc:ada%20(root)"
    shown = identity_of({"sub": "ada", "name": "A\n\x1b[1m" + "x" * 200}, "groups").name
    assert shown.isprintable() and len(shown) <= 100


@pytest.mark.parametrize(
    ("text", "said"), [("a.b.c", True), ("sw_a.b.c", False), ("a.b", False), ("a.b.c.d.e", False)]
)
def test_tokens_are_distinguished_from_keys(text: str, said: bool) -> None:
    assert is_jwt(text) is said


class Remote:
    """A provider's answers, counted, by a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.away = False
        self.takes_s = 0.0
        self.keys: list[dict[str, Any]] = []
        self.metadata = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/a",
            "token_endpoint": f"{ISSUER}/t",
            "jwks_uri": f"{ISSUER}/k",
        }
        self.provider = Provider(ISSUER, self.fetch, lambda: self.now)

    async def fetch(self, url: Any) -> tuple[int, dict[str, Any]]:
        self.asked.append(url.removeprefix(ISSUER))
        self.now += self.takes_s
        await asyncio.sleep(0)
        if self.away:
            raise Problem("unavailable", "away")
        return 200, (self.metadata if url.endswith(WELL_KNOWN) else {"keys": self.keys})


@pytest.fixture
def remote() -> Remote:
    return Remote()


def public(key: RSAKey, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), **more}


def test_keys_are_looked_up_once_a_minute_at_the_most(remote: Remote) -> None:
    key = RSAKey.generate_key(2048)
    remote.keys = [public(key, kid="one")]

    async def steps() -> None:
        ask = remote.provider.keys
        answers = await asyncio.gather(*(ask("one") for _ in range(20)))
        assert [len(keys) for keys in answers] == [1] * 20
        assert remote.asked == [WELL_KNOWN, "/k"]
        for _ in range(20):
            assert await ask("two") == []
        assert remote.asked == [WELL_KNOWN, "/k"]
        remote.now += AGAIN_S
        remote.keys.append(public(key, kid="two"))
        assert len(await ask("two")) == 1, "a new key is found within a minute"
        remote.now += AGAIN_S
        await asyncio.gather(*(ask(f"id{n}") for n in range(20)))
        assert remote.asked.count("/k") == 3

    asyncio.run(steps())


def test_what_was_known_holds_while_the_provider_is_away(remote: Remote) -> None:
    remote.keys = [public(RSAKey.generate_key(2048), kid="one")]

    async def steps() -> None:
        remote.away = True
        for _ in range(3):
            with pytest.raises(Problem):
                await remote.provider.metadata()
        assert len(remote.asked) == 1, "asked again only later"
        remote.away, remote.now = False, remote.now + RETRY_S
        assert len(await remote.provider.keys("one")) == 1
        remote.away, remote.now = True, remote.now + KEPT_S
        assert await remote.provider.metadata() == remote.metadata
        assert len(await remote.provider.keys("one")) == 1

    asyncio.run(steps())


def test_waiters_of_a_lookup_that_hung_do_not_start_another(remote: Remote) -> None:
    remote.keys = [public(RSAKey.generate_key(2048), kid="one")]

    async def steps() -> None:
        ask = remote.provider
        remote.away, remote.takes_s = True, 2 * RETRY_S
        answers = await asyncio.gather(*(ask.metadata() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, Problem) for one in answers)
        assert remote.asked == [WELL_KNOWN]
        remote.away, remote.takes_s, remote.now = False, 0.0, remote.now + RETRY_S
        assert len(await ask.keys("one")) == 1
        remote.away, remote.takes_s, remote.now = True, 2 * RETRY_S, remote.now + KEPT_S
        del remote.asked[:]
        first = asyncio.ensure_future(ask.keys("one"))
        await asyncio.sleep(0)
        # What is known is enough for those who come while it is asked about.
        known = [asyncio.ensure_future(ask.keys("one")) for _ in range(20)]
        await asyncio.sleep(0)
        assert all(one.done() and len(one.result()) == 1 for one in known)
        assert not first.done() and len(await first) == 1
        assert remote.asked == [WELL_KNOWN, "/k"]

    asyncio.run(steps())


@pytest.mark.parametrize(
    "change",
    [{"issuer": ISSUER + "/"}, {"issuer": None}, {"token_endpoint": 5}, {"jwks_uri": None}],
)
def test_metadata_that_is_not_the_issuers(remote: Remote, change: dict[str, Any]) -> None:
    remote.metadata |= change
    with pytest.raises(Problem):
        asyncio.run(remote.provider.metadata())


def short_key() -> RSAKey:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RSAKey.generate_key(1024)


@pytest.mark.parametrize(
    "key",
    [
        OctKey.generate_key(256).as_dict(),
        public(RSAKey.generate_key(2048), use="enc"),
        public(short_key()),
        {"kty": "RSA", "n": "x"},
        {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"},
        {},
        5,
    ],
)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_keys_that_sign_nothing(remote: Remote, key: Any) -> None:
    remote.keys = [key]
    assert asyncio.run(remote.provider.keys(None)) == []
