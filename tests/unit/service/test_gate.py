"""Who is counted before what: wrong keys before the database, strangers before an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from sqlalchemy import event
from starlette.testclient import TestClient

from service.base.settings import Settings
from service.host.app import create_app
from service.page.session import SESSION_COOKIE
from service.store.database import Database
from service.store.keys import create_key, revoke_key
from service.store.schema import migrate
from service.store.sessions import open_session

BURST = 5
WRONG = "sw_{:016x}_" + "x" * 43


class Gated:
    """A service that needs keys, in this process; `lookups` counts looks for keys and sessions."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        few = {"anonymous_rate_per_s": 0.001, "anonymous_burst": BURST, "auth": "required"}
        self.database = Database(f"sqlite:///{folder / 'a.sqlite'}")
        migrate(self.database)
        self.lookups = 0
        event.listen(self.database.engine, "before_cursor_execute", self._looked)
        complete = Settings(**{"data_dir": str(folder), **few, **settings})
        self.client = TestClient(create_app(complete, self.database), raise_server_exceptions=False)

    def _looked(self, *event_arguments: Any) -> None:
        self.lookups += "FROM keys" in event_arguments[2] or "FROM sessions" in event_arguments[2]

    def key(self, *scopes: str, rate: float | None = None) -> str:
        with self.database.write() as session:
            return create_key(session, "t", scopes or ("read",), rate_per_s=rate)

    def get(self, path: str, key: str | None = None) -> Any:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self.client.get(path, headers=headers, follow_redirects=False)


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Callable[..., Gated]]:
    created: list[Gated] = []

    def make(**settings: Any) -> Gated:
        created.append(Gated(tmp_path, **settings))
        return created[-1]

    yield make
    for one in created:
        one.client.close()
        one.database.close()


def require_limited(answer: Any) -> None:
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:shardwise:problem:rate-limited"


def test_wrong_keys_are_counted_before_the_database_is_asked(gated: Any) -> None:
    service = gated()
    answers = [service.get("/v1/graphs", WRONG.format(number)) for number in range(40)]
    assert [a.status_code for a in answers[:BURST]] == [401] * BURST
    for answer in answers[BURST:]:
        require_limited(answer)
    assert service.lookups == BURST


def test_what_has_not_the_form_of_a_key_is_never_looked_for(gated: Any) -> None:
    service = gated()
    assert [service.get("/v1/graphs", f"key {n}").status_code for n in range(BURST)] == [401] * 5
    assert service.lookups == 0


def test_good_keys_pass_where_their_address_asks_too_often(gated: Any) -> None:
    """Behind a proxy that is not trusted all have one address."""
    service = gated(auth_cache_s=0.0)
    keys = [service.key() for _ in range(3 * BURST)]
    assert {service.get("/v1/graphs", key).status_code for key in keys} == {200}, "no cost"
    while service.get("/v1/graphs", WRONG.format(1)).status_code == 401:
        pass
    assert {service.get("/v1/graphs", key).status_code for key in keys} == {200}, "known"
    require_limited(service.get("/v1/graphs", service.key()))


def test_a_revoked_key_is_a_wrong_one(gated: Any) -> None:
    service = gated(auth_cache_s=0.0)
    key = service.key()
    assert service.get("/v1/graphs", key).status_code == 200
    with service.database.write() as session:
        revoke_key(session, key.split("_")[1])
    statuses = [service.get("/v1/graphs", key).status_code for _ in range(BURST + 2)]
    assert statuses == [401] * (BURST + 1) + [429]


@pytest.mark.parametrize(
    "path",
    ["/v1/graphs", "/metrics", "/docs", "/openapi.json", "/nothing", "/assets/page.css"],
)
def test_without_a_key_an_address_is_counted(gated: Any, path: str) -> None:
    service = gated()
    first = [service.get(path).status_code for _ in range(BURST)]
    assert 429 not in first
    limited = service.get(path)
    assert limited.status_code == 429 and int(limited.headers["Retry-After"]) >= 1
    if not path.startswith("/assets"):
        require_limited(limited)
    assert service.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/", "/sign-in"])
def test_the_page_counts_too(gated: Any, path: str) -> None:
    service = gated()
    answers = [service.get(path) for _ in range(2 * BURST)]
    assert answers[0].status_code in (200, 303)
    assert answers[-1].status_code == 429 and int(answers[-1].headers["Retry-After"]) >= 1


def test_cookies_of_no_session_are_counted_before_the_database_is_asked(
    gated: Any, tmp_path: Path
) -> None:
    pytest.importorskip("authlib", reason="needs shardwise[oidc]")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ngroup = "g"\ntenant = "t"\nscopes = ["read"]\n')
    service = gated(
        oidc_issuer="http://127.0.0.1:9", oidc_client_id="c", oidc_rules_file=str(rules),
        public_url="http://127.0.0.1:8000",
    )  # fmt: skip
    with service.database.write() as session:
        secret = open_session(session, "ada", "Ada", ["g"], "t", 60.0)
    for _ in range(2 * BURST):
        service.client.cookies = {SESSION_COOKIE: secret}
        assert service.get("/jobs").status_code == 200
    service.lookups = 0
    codes = []
    for number in range(2 * BURST):
        service.client.cookies = {SESSION_COOKIE: f"{number:043}"}
        codes.append(service.get("/jobs").status_code)
    assert codes[0] == 303 and codes[-1] == 429
    assert service.lookups <= BURST


def test_signing_in_is_counted_without_a_key_too(gated: Any) -> None:
    service = gated()
    form = [service.client.post("/sign-in", data={"key": text}) for text in [""] * 2 * BURST]
    assert (form[0].status_code, form[-1].status_code) == (401, 429)


def test_with_a_remembered_key_it_is_the_key_that_is_counted(gated: Any) -> None:
    service = gated()
    key = service.key()
    assert service.get("/v1/graphs", key).status_code == 200
    assert {service.get("/metrics", key).status_code for _ in range(3 * BURST)} == {200}


def test_what_a_key_may_not_do_is_counted(gated: Any) -> None:
    service = gated()
    key = service.key("agent", rate=0.5)
    assert service.get("/v1/graphs", key).status_code == 403
    require_limited(service.get("/v1/graphs", key))


def test_an_open_service_counts_addresses(gated: Any) -> None:
    service = gated(auth="auto", rate_per_s=0.001, rate_burst=3)
    service.client.headers["host"] = "127.0.0.1"
    assert [service.get("/v1/graphs").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_of_too_many_keys_the_oldest_is_forgotten(
    gated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.edge.auth.MAX_REMEMBERED", 2)
    service = gated()
    first, second, third = (service.key() for _ in range(3))
    for key, lookups in ((first, 1), (second, 2), (third, 3), (second, 3), (third, 3), (first, 4)):
        assert service.get("/v1/graphs", key).status_code == 200
        assert service.lookups == lookups


def test_a_tenant_that_a_key_has_not_is_refused(gated: Any) -> None:
    service = gated()
    key = service.key()
    paths = ("/v1/graphs", "/v1/me")
    for path in paths:
        headers = {"Authorization": f"Bearer {key}", "Shardwise-Tenant": "t"}
        assert service.client.get(path, headers=headers).status_code != 403
        headers["Shardwise-Tenant"] = "other"
        answer = service.client.get(path, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["type"].endswith(":forbidden")
        assert answer.json()["field"] == "shardwise-tenant"
