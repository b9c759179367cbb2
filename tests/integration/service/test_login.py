"""Logins at a provider, from the link to the sign-out, and everything that may not get in."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import select

from harness.service.oidc_provider import AUDIENCE, CLIENT, SECRET, OidcProvider, signed
from harness.service.service_harness import Service, wait_until

pytest.importorskip("authlib", reason="needs shardwise[oidc]")

from joserfc import jwt
from joserfc.jwk import RSAKey

from service.base.settings import Settings
from service.host.app import create_app
from service.login.attempt import new_attempt
from service.store.database import Database
from service.store.tables import Audit, Job, LoginSession

RULES = """
[[rule]]
group = "cn=research,dc=example"
tenant = "research"
scopes = ["read", "submit"]

[[rule]]
group = "visitors"
tenant = "research"
scopes = ["read"]

[[rule]]
group = "platform"
tenant = "ops"
scopes = ["admin"]
"""
PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"groups": ["cn=research,dc=example", "chess"]},
    "bob": {"groups": ["visitors"]},
    "cleo": {"groups": ["platform", "visitors"]},
    "dan": {"groups": ["<chess>"]},
    "eve": {},
    "fay": {"groups": ["visitors"]},
    "gus": {"groups": ["visitors"]},
}
QUESTION = {"graph": "shipped:vgg16", "kind": "plan", "hardware": "l4", "gpus": "1"}


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    running = OidcProvider(PEOPLE)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def good_again(provider: OidcProvider) -> Iterator[None]:
    yield
    provider.be_good()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("login")
    (folder / "secret").write_text(SECRET + "\n")
    return folder


@pytest.fixture(scope="module")
def service(folder: Path, provider: OidcProvider) -> Iterator[Service]:
    """A service on loopback without a single key."""
    with provider.service(
        folder,
        RULES,
        oidc_name="Example Login",
        oidc_client_secret_file=str(folder / "secret"),
        oidc_audience=AUDIENCE,
        auth_cache_s="0.001",
    ) as running:
        yield running


@pytest.fixture
def browser(service: Service) -> Iterator[httpx.Client]:
    """Cookies, redirects, and the Origin that browsers send with forms."""
    with httpx.Client(base_url=service.url, headers={"Origin": service.url}, timeout=60) as client:
        yield client


@pytest.fixture
def rows(folder: Path, service: Service) -> Iterator[Database]:
    database = Database(f"sqlite:///{folder / 'data' / 'shardwise.sqlite'}")
    yield database
    database.close()


def start(browser: httpx.Client, where: str = "/") -> httpx.Response:
    """At the provider's form."""
    page = browser.get("/sign-in", params={"next": where})
    link = re.search(r'href="([^"]+/sign-in/start[^"]*)"', page.text)
    assert link is not None, page.text
    return at_provider(browser, link[1].replace("&amp;", "&"))


def at_provider(browser: httpx.Client, link: str = "/sign-in/start") -> httpx.Response:
    asked = browser.get(link)
    assert asked.status_code == 303, asked.text
    form = browser.get(asked.headers["Location"])
    assert form.status_code == 200, form.text
    return form


def grant(browser: httpx.Client, form: httpx.Response, user: str) -> str:
    """Returns where the provider sends the browser once a user has signed in there."""
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form.text))
    answer = browser.post(str(form.url.copy_with(query=None)), data={**fields, "user": user})
    return answer.headers["Location"]


def sign_in(browser: httpx.Client, user: str, where: str = "/") -> httpx.Response:
    """The answer to the callback."""
    return browser.get(grant(browser, start(browser, where), user))


def session_of(browser: httpx.Client) -> str | None:
    return browser.cookies.get("shardwise_session")


def sessions(rows: Database, subject: str) -> list[LoginSession]:
    with rows.read() as session:
        asked = select(LoginSession).where(LoginSession.subject == subject)
        return list(session.scalars(asked))


def test_from_the_link_to_the_sign_out(
    browser: httpx.Client, service: Service, rows: Database
) -> None:
    turned_away = browser.get("/jobs?state=done")
    assert turned_away.headers["Location"] == "/sign-in?next=%2Fjobs%3Fstate%3Ddone"
    page = browser.get(turned_away.headers["Location"])
    assert "Sign in with Example Login" in page.text
    assert SECRET not in page.text
    back = sign_in(browser, "ada", "/jobs?state=done")
    assert (back.status_code, back.headers["Location"]) == (303, "/jobs?state=done")
    given = [c for c in back.headers.get_list("set-cookie") if c.startswith("shardwise_session=")]
    assert len(given) == 1
    assert "HttpOnly" in given[0] and "SameSite=lax" in given[0] and "Path=/" in given[0]
    jobs = browser.get("/jobs?state=done")
    assert jobs.status_code == 200
    assert "ada@example.org" in jobs.text and "research" in jobs.text

    [row] = sessions(rows, "ada")
    secret = session_of(browser)
    assert secret is not None and len(secret) == 43
    assert secret not in json.dumps([row.id, row.name, row.groups])
    assert row.groups == ["cn=research,dc=example"], "only groups that a rule names are kept"
    asked = browser.post("/ask", data=QUESTION)
    assert asked.status_code == 303, asked.text
    with rows.read() as session:
        job = session.get_one(Job, asked.headers["Location"].rpartition("/")[2])
        assert (job.tenant_id, job.key_id) == ("research", "oidc:ada")
        actors = session.execute(
            select(Audit.action, Audit.actor, Audit.key_id).where(Audit.tenant_id == "research")
        ).all()
    for action in ("sessions.create", "plans.create"):
        assert (action, "oidc:ada (ada@example.org)", "oidc:ada") in actors

    gone = browser.post("/sign-out")
    assert gone.headers["Location"] == "/sign-in?left=1"
    assert session_of(browser) is None
    assert sessions(rows, "ada") == []
    offered = re.search(r'href="([^"]+/end\?[^"]+)"', browser.get("/sign-in?left=1").text)
    assert offered is not None
    query = parse_qs(urlsplit(offered[1].replace("&amp;", "&")).query)
    assert query["post_logout_redirect_uri"] == [f"{service.url}/sign-in"]
    browser.cookies.set("shardwise_session", secret)
    assert browser.get("/jobs").headers["Location"].startswith("/sign-in")


def test_the_session_opens_the_page_alone(browser: httpx.Client, service: Service) -> None:
    sign_in(browser, "ada")
    assert browser.get("/graphs").status_code == 200
    assert browser.get("/v1/graphs").status_code == 401
    body = {"graph": "shipped:vgg16", "hardware": "l4", "gpus": 1}
    assert browser.post("/v1/plans", json=body).status_code == 401
    assert browser.delete("/v1/plans/plan_x").status_code == 401
    as_key = {"Authorization": f"Bearer {session_of(browser)}"}
    assert service.client.get("/v1/graphs", headers=as_key).status_code == 401
    assert service.client.get("/v1/graphs").status_code == 401, "not even on loopback"


@pytest.mark.parametrize("path", ["/ask", "/sign-out", "/tenant"])
@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_forms_of_other_sites_are_refused(
    browser: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    sign_in(browser, "ada")
    assert browser.post(path, data=QUESTION, headers=headers).status_code == 403
    browser.headers.pop("Origin")
    assert browser.post(path, data=QUESTION).status_code == 403, "browsers name the origin"


def test_groups_give_tenants_and_scopes(browser: httpx.Client) -> None:
    sign_in(browser, "bob")
    assert browser.get("/graphs").status_code == 200
    assert browser.post("/ask", data=QUESTION).status_code == 403
    assert browser.get("/tenant").status_code == 200
    assert browser.post("/tenant", data={"tenant": "ops"}).status_code == 404


def test_several_tenants_are_chosen_from(browser: httpx.Client, rows: Database) -> None:
    back = sign_in(browser, "cleo", "/agents")
    assert back.headers["Location"] == "/tenant?next=%2Fagents"
    choice = browser.get(back.headers["Location"])
    assert choice.text.index("research") < choice.text.index("ops"), "in the order of the file"
    before = session_of(browser)
    assert "/agents/tokens" not in browser.get("/agents").text
    moved = browser.post("/tenant", data={"tenant": "ops", "next": "/agents"})
    assert (moved.status_code, moved.headers["Location"]) == (303, "/agents")
    assert "/agents/tokens" in browser.get("/agents").text, "an admin there"
    assert [row.tenant_id for row in sessions(rows, "cleo")] == ["ops"]
    assert before is not None and session_of(browser) != before
    browser.cookies.clear()
    browser.cookies.set("shardwise_session", before)
    assert browser.get("/agents").status_code == 303, "the old secret is worthless"


@pytest.mark.parametrize("user", ["dan", "eve"])
def test_without_a_known_group_there_is_a_page_and_no_session(
    browser: httpx.Client, rows: Database, user: str
) -> None:
    back = sign_in(browser, user)
    assert back.status_code == 403
    assert "none of your groups has a tenant here" in back.text
    assert f"{user}@example.org" in back.text
    if user == "dan":
        assert "&lt;chess&gt;" in back.text
    assert session_of(browser) is None
    assert sessions(rows, user) == []


def test_groups_come_from_the_user_info_if_the_token_has_none(
    browser: httpx.Client, provider: OidcProvider
) -> None:
    provider.groups_in_token = False
    asked = provider.asked["/userinfo"]
    assert sign_in(browser, "ada").status_code == 303
    assert provider.asked["/userinfo"] == asked + 1


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def unsigned(claims: dict[str, Any], key: RSAKey) -> str:
    parts = [{"alg": "none", "kid": key.kid}, claims]
    return ".".join(encoded(json.dumps(part).encode()) for part in parts) + "."


def by_public_key(claims: dict[str, Any], key: RSAKey) -> str:
    """As if the public key were a secret (CVE-2015-9235)."""
    parts = [{"alg": "HS256", "kid": key.kid}, claims]
    text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    public = key.as_pem(private=False)
    return f"{text}.{encoded(hmac.digest(public, text.encode(), 'sha256'))}"


def by_another_key(claims: dict[str, Any], key: RSAKey) -> str:
    other = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, other)


def unknown_key(claims: dict[str, Any], key: RSAKey) -> str:
    return jwt.encode({"alg": "RS256", "kid": "another"}, claims, key)


def with_own_key(claims: dict[str, Any], key: RSAKey) -> str:
    other = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "jwk": other.as_dict(private=False)}
    return jwt.encode(header, claims, other)


def changed(**values: Any) -> Any:
    return lambda claims, key: signed({**claims, **values}, key)


def later(name: str, seconds: int) -> Any:
    """Claims with one so long after the token was issued, whenever that is."""
    return lambda claims, key: signed({**claims, name: claims["iat"] + seconds}, key)


def left_out(name: str) -> Any:
    return lambda claims, key: signed({n: v for n, v in claims.items() if n != name}, key)


HOUR = 3600
FORGED = {
    "none": unsigned,
    "public key as a secret": by_public_key,
    "another key": by_another_key,
    "unknown key": unknown_key,
    "its own key": with_own_key,
    "another issuer": changed(iss="http://127.0.0.1:9/"),
    "another audience": changed(aud="somebody-else"),
    "also another audience": changed(aud=[CLIENT, "somebody-else"]),
    "another party": changed(azp="somebody-else"),
    "another nonce": changed(nonce="x"),
    "no nonce": left_out("nonce"),
    "no subject": left_out("sub"),
    "subject of another kind": changed(sub=5),
    "no expiry": left_out("exp"),
    "expired": changed(exp=int(time.time()) - HOUR),
    "of the future": later("iat", HOUR),
    "not yet": later("nbf", HOUR),
    "another access token": changed(at_hash="x"),
    "not a token": lambda claims, key: "a.b.c",
    "no text": lambda claims, key: ".",
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_token_opens_nothing(
    browser: httpx.Client, provider: OidcProvider, rows: Database, how: str
) -> None:
    provider.forge = FORGED[how]
    back = sign_in(browser, "gus")
    assert back.status_code == 401, back.text
    assert "Not signed in" in back.text
    assert session_of(browser) is None
    assert sessions(rows, "gus") == []


@pytest.mark.parametrize(
    "extra",
    [{"iss": "http://127.0.0.1:9"}, {"iss": ""}, {"code": ""}, {"error": "access_denied"},
     {"code": "x" * 5000}],
)  # fmt: skip
def test_an_answer_that_is_not_the_providers_opens_nothing(
    browser: httpx.Client, provider: OidcProvider, extra: dict[str, str]
) -> None:
    provider.extra = extra
    back = sign_in(browser, "ada")
    assert back.status_code == 401
    assert session_of(browser) is None


def test_an_answer_that_this_browser_did_not_ask_for(
    browser: httpx.Client, service: Service
) -> None:
    """Login CSRF: another user's answer, which would sign this browser in as that user."""
    with httpx.Client(base_url=service.url, timeout=60) as attacker:
        theirs = grant(attacker, start(attacker), "bob")
    assert browser.get(theirs).status_code == 400, "no attempt at all"
    form = start(browser)
    assert browser.get(theirs).status_code == 400, "another attempt"
    assert session_of(browser) is None
    mine = grant(browser, form, "ada")
    wrong = re.sub(r"state=[^&]*", "state=x", mine)
    assert browser.get(wrong).status_code == 400
    assert browser.get(re.sub(r"state=[^&]*&", "", mine)).status_code == 400
    assert browser.get(mine).status_code == 303, "what was forged did not end the attempt"


def test_an_answer_is_good_once(browser: httpx.Client, service: Service) -> None:
    answer = grant(browser, start(browser), "ada")
    attempt = browser.cookies.get("shardwise_sign_in")
    assert attempt is not None
    assert browser.get(answer).status_code == 303
    assert browser.get(answer).status_code == 400, "the attempt is over"
    with httpx.Client(base_url=service.url, timeout=60) as thief:
        thief.cookies.set("shardwise_sign_in", attempt)
        replayed = thief.get(answer)
    assert replayed.status_code == 401
    assert "invalid_grant" in replayed.text, "and the provider takes a code once"


def test_a_stolen_code_is_worthless_without_its_verifier(
    browser: httpx.Client, service: Service
) -> None:
    """The thief's own attempt with a user's code: PKCE and the nonce are of another attempt."""
    stolen = parse_qs(urlsplit(grant(browser, start(browser), "ada")).query)["code"][0]
    with httpx.Client(base_url=service.url, timeout=60) as thief:
        answer = grant(thief, start(thief), "bob")
        answer = re.sub(r"code=[^&]*", f"code={stolen}", answer)
        assert thief.get(answer).status_code == 401
        assert session_of(thief) is None


def test_a_session_is_never_the_one_that_was_there_before(
    browser: httpx.Client, rows: Database, service: Service
) -> None:
    fixed = "A" * 43
    browser.cookies.set("shardwise_session", fixed, domain="127.0.0.1")
    browser.get(grant(browser, at_provider(browser), "fay"))
    first = session_of(browser)
    assert first not in (None, fixed)
    browser.get(grant(browser, at_provider(browser), "fay"))
    assert session_of(browser) not in (None, first)
    assert len(sessions(rows, "fay")) == 1, "the one before has ended"
    for old in (fixed, first):
        browser.cookies.clear()
        browser.cookies.set("shardwise_session", str(old))
        assert browser.get("/jobs").status_code == 303


@pytest.mark.parametrize("where", ["//evil.example/x", "https://evil.example/", "/\\evil.example"])
def test_the_login_redirects_to_no_other_site(browser: httpx.Client, where: str) -> None:
    assert sign_in(browser, "ada", where).headers["Location"] == "/"


def test_a_forged_attempt_leads_nowhere_else(browser: httpx.Client) -> None:
    """One who can write the cookie still cannot choose where the browser goes."""
    form = start(browser)
    secret = str(browser.cookies.get("shardwise_sign_in")).partition(".")[0]
    forged = encoded(b"//evil.example/")
    answer = grant(browser, form, "ada")
    browser.cookies.clear()
    browser.cookies.set("shardwise_sign_in", f"{secret}.{forged}")
    assert browser.get(answer).headers["Location"] == "/"


def test_the_host_header_says_nothing_about_the_way_back(
    browser: httpx.Client, service: Service
) -> None:
    evil = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    page = browser.get("/sign-in", headers=evil)
    assert "evil.example" not in page.text
    asked = browser.get("/sign-in/start", headers=evil)
    query = parse_qs(urlsplit(asked.headers["Location"]).query)
    assert query["redirect_uri"] == [f"{service.url}/sign-in/callback"]


def test_the_request_holds_what_it_should(browser: httpx.Client, provider: OidcProvider) -> None:
    asked = browser.get("/sign-in/start").headers["Location"]
    assert asked.startswith(f"{provider.issuer}/authorize?")
    query = {name: values[0] for name, values in parse_qs(urlsplit(asked).query).items()}
    secret = str(browser.cookies.get("shardwise_sign_in")).partition(".")[0]
    assert query["code_challenge_method"] == "S256"
    assert secret not in asked, "the cookie's secret stays in the browser"
    assert len({query[name] for name in ("state", "nonce", "code_challenge")}) == 3
    again = browser.get("/sign-in/start").headers["Location"]
    assert parse_qs(urlsplit(again).query)["state"] != [query["state"]]


def test_unknown_keys_do_not_flood_the_provider(
    browser: httpx.Client, provider: OidcProvider
) -> None:
    provider.forge = unknown_key
    before = provider.asked["/jwks"]
    for _ in range(5):
        assert sign_in(browser, "ada").status_code == 401
    token = unknown_key(provider.claims("ada", AUDIENCE), provider.key)
    for _ in range(50):
        headers = {"Authorization": f"Bearer {token}"}
        assert browser.get("/v1/graphs", headers=headers).status_code == 401
    assert provider.asked["/jwks"] - before <= 1


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


def test_access_tokens_are_keys(service: Service, provider: OidcProvider, rows: Database) -> None:
    body = {"graph": "shipped:vgg16", "hardware": "l4", "gpus": 2}
    ada = bearer(provider.access_token("ada"))
    for _ in range(2):
        assert service.client.get("/v1/graphs", headers=ada).status_code == 200
    accepted = service.client.post("/v1/plans", json=body, headers=ada)
    assert accepted.status_code in (200, 202), accepted.text
    with rows.read() as session:
        assert session.get_one(Job, accepted.json()["id"]).tenant_id == "research"
    bob = bearer(provider.access_token("bob"))
    assert service.client.post("/v1/plans", json=body, headers=bob).status_code == 403
    dan = service.client.get("/v1/graphs", headers=bearer(provider.access_token("dan")))
    assert (dan.status_code, dan.json()["type"]) == (403, "urn:shardwise:problem:forbidden")


def test_an_access_token_of_several_tenants_names_one(
    service: Service, provider: OidcProvider
) -> None:
    token = provider.access_token("cleo")
    unnamed = service.client.get("/v1/agents", headers=bearer(token))
    assert unnamed.status_code == 403
    assert "shardwise-tenant" in unnamed.json()["detail"]
    for tenant, status in (("research", 403), ("ops", 201), ("local", 403)):
        headers = bearer(token, **{"Shardwise-Tenant": tenant})
        created = service.client.post("/v1/agents/tokens", json={}, headers=headers)
        assert created.status_code == status, created.text


@pytest.mark.parametrize(
    "how", [name for name in FORGED if "nonce" not in name and "access" not in name
            and "party" not in name and "also" not in name]
)  # fmt: skip
def test_a_forged_access_token_is_refused(
    service: Service, provider: OidcProvider, how: str
) -> None:
    token = FORGED[how](provider.claims("ada", AUDIENCE), provider.key)
    answer = service.client.get("/v1/graphs", headers=bearer(token))
    assert answer.status_code == 401, answer.text


def test_an_id_token_is_not_an_access_token(service: Service, provider: OidcProvider) -> None:
    token = provider.access_token("ada", audience=CLIENT)
    assert service.client.get("/v1/graphs", headers=bearer(token)).status_code == 401


def test_the_secrets_are_not_in_the_log(browser: httpx.Client, service: Service) -> None:
    answer = grant(browser, start(browser), "ada")
    attempt = str(browser.cookies.get("shardwise_sign_in"))
    asked = len(service.logged("/sign-in/callback"))
    browser.get(answer)
    code = parse_qs(urlsplit(answer).query)["code"][0]
    # A request is answered before its line is written.
    wait_until(lambda: len(service.logged("/sign-in/callback")) > asked, "the line of the callback")
    log = service.log.read_text()
    for secret in (SECRET, attempt.partition(".")[0], str(session_of(browser)), code):
        assert secret not in log


def app_of(folder: Path, provider: OidcProvider, rules: str = RULES, **settings: Any) -> Any:
    """The application without a socket of its own, behind a proxy that ends TLS."""
    from service.store.schema import migrate

    (folder / "rules.toml").write_text(rules)
    given = Settings(
        public_url="https://shardwise.example",
        oidc_issuer=provider.issuer,
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
        oidc_rules_file=str(folder / "rules.toml"),
        database_url=f"sqlite:///{folder / 'a.sqlite'}",
        auth_cache_s=0,
        **settings,
    )
    database = Database(given.database)
    migrate(database)
    provider.redirect_uris.add("https://shardwise.example/sign-in/callback")
    return create_app(given, database)


def inside(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://shardwise.example"
    )


async def enter(browser: httpx.AsyncClient, user: str) -> httpx.Response:
    asked = (await browser.get("/sign-in/start")).headers["Location"]
    with httpx.Client(timeout=60) as provider:
        answer = grant(provider, provider.get(asked), user)
    return await browser.get(answer)


def run(steps: Any) -> Any:
    import asyncio

    return asyncio.run(steps)


def test_behind_https_no_other_host_can_set_the_cookies(
    tmp_path: Path, provider: OidcProvider
) -> None:
    async def steps() -> None:
        async with inside(app_of(tmp_path, provider)) as browser:
            asked = await browser.get("/sign-in/start")
            back = await enter(browser, "ada")
            given = asked.headers.get_list("set-cookie") + back.headers.get_list("set-cookie")
            kept = [c for c in given if not re.match(r"[^=]+=(\"\")?;", c)]
            assert len(kept) == 2
            for cookie in kept:
                assert re.match(r"__Host-shardwise_(sign_in|session)=", cookie)
                for part in ("Secure", "HttpOnly", "Path=/", "SameSite=lax"):
                    assert part in cookie
                assert "Domain" not in cookie
            assert (await browser.get("/jobs")).status_code == 200
            plain = {"Cookie": f"shardwise_session={'A' * 43}"}
            assert (await browser.get("/jobs", headers=plain)).status_code == 303

    run(steps())


def test_a_rule_that_is_taken_away_ends_sessions(tmp_path: Path, provider: OidcProvider) -> None:
    async def steps() -> None:
        async with inside(app_of(tmp_path, provider)) as browser:
            await enter(browser, "ada")
            assert (await browser.get("/jobs")).status_code == 200
            cookies = browser.cookies
        fewer = RULES.replace("cn=research,dc=example", "others")
        async with inside(app_of(tmp_path, provider, fewer)) as browser:
            browser.cookies = cookies
            assert (await browser.get("/jobs")).status_code == 303

    run(steps())


def test_a_session_ends_by_the_databases_clock(tmp_path: Path, provider: OidcProvider) -> None:
    async def steps() -> None:
        app = app_of(tmp_path, provider)
        async with inside(app) as browser:
            await enter(browser, "ada")
            with app.state.shardwise.database.write() as session:
                session.scalars(select(LoginSession)).one().expires_at = 1.0
            assert (await browser.get("/jobs")).status_code == 303
            left = await browser.get("/sign-in")
            assert left.status_code == 303
            assert (await browser.get("/sign-in")).status_code == 200

    run(steps())


def test_a_provider_that_is_away_is_said_so(tmp_path: Path) -> None:
    gone = OidcProvider(PEOPLE)
    gone.stop()

    async def steps() -> None:
        async with inside(app_of(tmp_path, gone)) as browser:
            page = await browser.get("/sign-in")
            assert page.status_code == 200, "keys are taken all the same"
            away = await browser.get("/sign-in/start")
            assert (away.status_code, "Retry-After" in away.headers) == (503, True)
            assert str(gone.issuer) not in away.text

    run(steps())


def test_a_provider_that_calls_itself_otherwise_is_not_believed(
    tmp_path: Path, provider: OidcProvider
) -> None:
    async def steps() -> None:
        app = app_of(tmp_path, provider)
        app.state.shardwise.logins.provider.issuer = f"{provider.issuer}/"
        async with inside(app) as browser:
            assert (await browser.get("/sign-in/start")).status_code == 503

    run(steps())


def test_without_a_provider_there_is_no_way_to_one(tmp_path: Path) -> None:
    from service.store.schema import migrate

    database = Database(f"sqlite:///{tmp_path / 'a.sqlite'}")
    migrate(database)

    async def steps() -> None:
        app = create_app(Settings(auth="required"), database)
        async with inside(app) as browser:
            assert "/sign-in/start" not in (await browser.get("/sign-in")).text
            for path in ("/sign-in/start", "/sign-in/callback?state=x&code=y"):
                assert (await browser.get(path)).status_code == 404
            cookies = {"Cookie": f"shardwise_session={'A' * 43}"}
            assert (await browser.get("/jobs", headers=cookies)).status_code == 303

    run(steps())
    database.close()


def test_attempts_are_each_their_own() -> None:
    secrets = {new_attempt("/").secret for _ in range(100)}
    assert len(secrets) == 100
