"""Keys, tenants and the audit over HTTP: what each administrator may do, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from sqlalchemy import select, update

from harness.service.administered import Administered
from service.base.archive import read_files
from service.store.database import Database, clock
from service.store.gangs import rules_of
from service.store.keys import create_key, expire_keys
from service.store.tables import Audit, Idempotency, Key
from service.store.tenant_deletion import sweep_deletions


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    administered = Administered(tmp_path_factory.mktemp("administered"))
    yield administered
    administered.close()


def key_of(answer: httpx.Response) -> str:
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


def status(service: Administered, key: str) -> int:
    return service(key, "GET", "/v1/me").status_code


def slug(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def set_expiry(database: Database, key_id: str, left_s: float) -> None:
    with database.write() as session:
        mine = update(Key).where(Key.id == key_id)
        session.execute(mine.values(expires_at=clock(session) + left_s))


def test_a_key_is_made_used_and_revoked(service: Administered) -> None:
    answer = service("alpha", "POST", "/v1/keys", json={"name": "ci", "expires_s": 3600})
    key = key_of(answer)
    created = answer.json()
    assert created["scopes"] == ["read", "submit"] and created["expires_at"] > created["created_at"]
    assert created["created_by"] == service.id_of("alpha")
    assert answer.headers["Location"] == f"/v1/keys/{created['id']}"
    me = service(key, "GET", "/v1/me").json()
    assert (me["tenant"], me["kind"], me["key"]["name"]) == ("alpha", "key", "ci")
    assert (me["scopes"], me["expires_at"]) == (["read", "submit"], created["expires_at"])
    assert me["limits"]["max_keys"] == 200
    assert service("alpha", "GET", answer.headers["Location"]).json()["state"] == "active"
    gone = service("alpha", "DELETE", answer.headers["Location"])
    assert (gone.status_code, gone.json()["state"]) == (200, "revoked")
    assert status(service, key) == 401
    assert service("alpha", "DELETE", answer.headers["Location"]).status_code == 200


def test_an_expired_key_is_refused_as_a_revoked_one(service: Administered) -> None:
    key = key_of(service("alpha", "POST", "/v1/keys", json={"expires_s": 60}))
    assert status(service, key) == 200
    set_expiry(service.database, service.id_of(key), -1)
    refused = service(key, "GET", "/v1/me")
    assert slug(refused) == (401, "unauthenticated")
    path = f"/v1/keys/{service.id_of(key)}"
    assert service("alpha", "GET", path).json()["state"] == "expired"
    with service.database.write() as session:
        expire_keys(session)
    assert service("alpha", "GET", path).json()["state"] == "expired"


def test_what_is_remembered_of_a_key_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at the database it is refused from its expiry on, not from the next look.

    The process's clock is moved, since that is all that a remembered key is measured by.
    """
    service = Administered(tmp_path, auth_cache_s=3600.0)
    key = key_of(service("alpha", "POST", "/v1/keys", json={"expires_s": 100}))
    endless = key_of(service("alpha", "POST", "/v1/keys", json={}))
    assert [status(service, one) for one in (key, endless)] == [200, 200]
    set_expiry(service.database, service.id_of(key), -1)
    set_expiry(service.database, service.id_of(endless), -1)
    from service.edge import auth

    moved = 0.0
    real = auth.monotonic
    monkeypatch.setattr(auth, "monotonic", lambda: real() + moved)
    assert status(service, key) == 200, "it is believed as it was when it was looked up"
    moved = 101.0
    assert [status(service, one) for one in (key, endless)] == [401, 200]
    service.close()


def test_rotation_keeps_all_but_the_secret(service: Administered) -> None:
    body = {"name": "ci", "scopes": ["read"], "rate_per_s": 7, "expires_s": 86400}
    old = key_of(service("alpha", "POST", "/v1/keys", json=body))
    path = f"/v1/keys/{service.id_of(old)}"
    answer = service("alpha", "POST", f"{path}/rotate", json={"overlap_s": 600})
    new, rotated = key_of(answer), answer.json()
    assert [rotated[name] for name in ("name", "scopes", "rate_per_s", "replaces")] == [
        "ci", ["read"], 7.0, service.id_of(old),
    ]  # fmt: skip
    before = service("alpha", "GET", path).json()
    assert before["state"] == "active" and before["expires_at"] < rotated["expires_at"]
    assert [status(service, key) for key in (old, new)] == [200, 200]
    again = service("alpha", "POST", f"{path}/rotate")
    assert slug(again) == (409, "in-use") and rotated["id"] in again.json()["detail"]
    at_once = service("alpha", "POST", f"/v1/keys/{rotated['id']}/rotate", json={"overlap_s": 0})
    assert [status(service, key) for key in (old, new, key_of(at_once))] == [200, 401, 200]


def test_a_repeat_gets_another_key_and_no_secret_is_stored(service: Administered) -> None:
    headers = {"Idempotency-Key": "once"}
    answers = [
        service("alpha", "POST", "/v1/keys", json={"name": "x"}, headers=headers) for _ in range(2)
    ]
    first, second = (key_of(answer) for answer in answers)
    assert [status(service, key) for key in (first, second)] == [401, 200]
    path = f"/v1/keys/{service.id_of(second)}/rotate"
    body = {"overlap_s": 0}
    refused = service("alpha", "POST", path, json=body, headers=headers)
    assert slug(refused) == (422, "idempotency-key-reused")
    headers = {"Idempotency-Key": "rotated-once"}
    third, fourth = (
        key_of(service("alpha", "POST", path, json=body, headers=headers)) for _ in range(2)
    )
    assert [status(service, key) for key in (second, third, fourth)] == [401, 401, 200]
    with service.database.read() as session:
        assert set(session.scalars(select(Idempotency.content))) == {b""}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["agent"]}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"expires_s": -1}, "expires_s"),
        ({"expires_s": 1e12}, "expires_s"),
        ({"expires_at": "2001-01-01"}, "expires_at"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"expires_at": "2100-01-01", "expires_s": 5}, "expires_at"),
        ({"rate_per_s": -1}, "rate_per_s"),
        ({"name": "x" * 201}, "name"),
        ({"tenant": "beta"}, "tenant"),
    ],
)
def test_a_bad_key_is_refused_by_field(
    service: Administered, body: dict[str, Any], field: str
) -> None:
    answer = service("alpha", "POST", "/v1/keys", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_key_grants_no_more_than_it_has(service: Administered) -> None:
    assert slug(service("alpha", "POST", "/v1/keys", json={"scopes": ["operator"]}))[0] == 403
    body = {"scopes": ["admin"], "rate_per_s": 50, "expires_s": 1000}
    slow = key_of(service("operator", "POST", "/v1/tenants/alpha/keys", json=body))
    for rate in (51, 0):
        assert slug(service(slow, "POST", "/v1/keys", json={"rate_per_s": rate}))[0] == 403
    created = service(slow, "POST", "/v1/keys", json={"expires_s": 10**6}).json()
    mine = service(slow, "GET", "/v1/me").json()
    assert (created["rate_per_s"], created["expires_at"]) == (50.0, mine["expires_at"])
    endless = service(slow, "POST", "/v1/keys", json={}).json()
    assert endless["expires_at"] == mine["expires_at"]
    faster = f"/v1/keys/{service.id_of('reader')}"
    assert slug(service(slow, "POST", f"{faster}/rotate"))[0] == 403
    operators = f"/v1/keys/{service.id_of('operator')}"
    for method, path in (("DELETE", operators), ("POST", f"{operators}/rotate")):
        assert slug(service("ops-admin", method, path)) == (403, "forbidden")
    assert status(service, service.keys["operator"]) == 200
    assert service("operator", "POST", "/v1/tenants/alpha/keys",
                   json={"rate_per_s": 0, "scopes": ["operator"]}).status_code == 201  # fmt: skip


def test_another_tenants_key_is_like_a_missing_one(service: Administered) -> None:
    theirs, unknown = service.id_of("beta"), "0" * 16
    for method, path in (
        ("GET", "/v1/keys/{}"),
        ("DELETE", "/v1/keys/{}"),
        ("POST", "/v1/keys/{}/rotate"),
    ):
        answers = [service("alpha", method, path.format(key)) for key in (theirs, unknown)]
        assert [answer.status_code for answer in answers] == [404, 404]
        texts = [answer.json()["detail"] for answer in answers]
        assert texts[0].replace(theirs, "") == texts[1].replace(unknown, "")
    assert status(service, service.keys["beta"]) == 200
    for path in ("/v1/tenants/beta", "/v1/tenants/beta/export", "/v1/audit?tenant=beta"):
        none = service("alpha", "GET", path.replace("beta", "nobodys"))
        assert slug(service("alpha", "GET", path)) == slug(none) == (404, "not-found")


def test_agents_keys_cannot_be_administered(service: Administered) -> None:
    with service.database.write() as session:
        bound = create_key(session, "alpha", ("agent",), "agent x", agent_id="agent_x")
    key_id = service.id_of(bound)
    assert key_id not in service("alpha", "GET", "/v1/keys?limit=200").text
    assert service("alpha", "DELETE", f"/v1/keys/{key_id}").status_code == 404
    assert service("operator", "DELETE", f"/v1/tenants/alpha/keys/{key_id}").status_code == 404


def test_lists_are_pages_without_secrets(service: Administered) -> None:
    seen, cursor = [], ""
    while cursor is not None:
        query = "?limit=2" + (f"&cursor={cursor}" if cursor else "")
        page = service("beta", "GET", f"/v1/keys{query}").json()
        seen += page["items"]
        cursor = page["next"]
        if len(seen) < 4:
            key_of(service("beta", "POST", "/v1/keys", json={}))
    assert len({item["id"] for item in seen}) == len(seen) >= 1
    assert all("key" not in item and item["tenant"] == "beta" for item in seen)


def test_a_tenant_has_as_many_keys_as_it_may(service: Administered) -> None:
    assert service("operator", "POST", "/v1/tenants",
                   json={"id": "few", "limits": {"max_keys": 2}}).status_code == 201  # fmt: skip
    path = "/v1/tenants/few/keys"
    responses = [service("operator", "POST", path, json={}) for _ in range(3)]
    assert [answer.status_code for answer in responses] == [201, 201, 429]
    rotated = service("operator", "POST", f"{path}/{responses[0].json()['id']}/rotate")
    assert rotated.status_code == 201, "a key that is rotated is one key"


def test_tenants_are_made_limited_and_looked_at(service: Administered) -> None:
    created = service("operator", "POST", "/v1/tenants", json={"id": "gamma"})
    assert created.status_code == 201 and created.json()["usage"]["graphs"] == 0
    again = service("operator", "POST", "/v1/tenants", json={"id": "gamma"})
    assert again.status_code == 200
    for body, expected in (
        ({"limits": {"max_queued": 5, "max_graphs": 7}}, {"max_queued": 5.0, "max_graphs": 7.0}),
        ({"limits": {"max_queued": None}}, {"max_graphs": 7.0}),
    ):
        answer = service("operator", "PATCH", "/v1/tenants/gamma", json=body)
        assert (answer.status_code, answer.json()["limits"]) == (200, expected)
    for bad in ({"port": 1}, {"max_queued": -1}, {"max_queued": "many"}):
        answer = service("operator", "PATCH", "/v1/tenants/gamma", json={"limits": bad})
        assert answer.status_code == 422, bad
    assert service("operator", "PATCH", "/v1/tenants/none", json={"limits": {}}).status_code == 404
    assert service("operator", "POST", "/v1/tenants", json={"id": "Bad Name"}).status_code == 422
    names = [row["id"] for row in service("operator", "GET", "/v1/tenants").json()["items"]]
    assert {"alpha", "beta", "gamma", "ops"} <= set(names)
    own = service("alpha", "GET", "/v1/tenants/alpha").json()
    assert own["limits_in_force"]["max_queued"] == 1000 and own["usage"]["keys"] >= 2
    for who in ("alpha", "reader"):
        for method, path in (("GET", "/v1/tenants"), ("POST", "/v1/tenants"),
                             ("PATCH", "/v1/tenants/alpha"), ("DELETE", "/v1/tenants/alpha"),
                             ("GET", "/v1/tenants/alpha/keys")):  # fmt: skip
            assert slug(service(who, method, path)) == (403, "forbidden"), (who, path)


def test_a_limit_counts_from_the_next_look_on(service: Administered) -> None:
    body = {"limits": {"max_graphs": 0}}
    service("operator", "PATCH", "/v1/tenants/beta", json=body)
    assert service("beta", "GET", "/v1/me").json()["limits"]["max_graphs"] == 0
    service("operator", "PATCH", "/v1/tenants/beta", json={"limits": {"max_graphs": None}})


def test_every_change_is_in_the_audit_of_both(service: Administered) -> None:
    service("operator", "POST", "/v1/tenants", json={"id": "watched"})
    path = "/v1/tenants/watched"
    key = service("operator", "POST", f"{path}/keys", json={"scopes": ["admin"]}).json()
    service("operator", "PATCH", path, json={"limits": {"max_queued": 1}})
    service("operator", "GET", f"{path}/export")
    other = service("operator", "POST", f"{path}/keys/{key['id']}/rotate").json()
    service("operator", "DELETE", f"{path}/keys/{key['id']}")
    expected = ["keys.revoke", "keys.rotate", "tenants.export", "tenants.limit", "keys.create"]
    lines = service(other["key"], "GET", "/v1/audit").json()["items"]
    assert [line["action"] for line in lines] == expected
    assert {line["key"] for line in lines} == {service.id_of("operator")}
    own = service("operator", "GET", "/v1/audit?limit=200").json()["items"]
    assert [line["action"] for line in own[: len(expected)]] == expected


def test_the_audit_is_filtered_paged_and_exported_as_lines(service: Administered) -> None:
    service("operator", "POST", "/v1/tenants", json={"id": "told"})
    path = "/v1/tenants/told/keys"
    key = key_of(service("operator", "POST", path, json={"scopes": ["admin"]}))
    for n in range(5):
        service(key, "POST", "/v1/keys", json={"name": f"n{n}"})
    whole = service(key, "GET", "/v1/audit?limit=200").json()["items"]
    assert len(whole) >= 5 and whole == sorted(whole, key=lambda line: line["at"], reverse=True)
    paged, cursor = [], ""
    while cursor is not None:
        page = service(key, "GET", f"/v1/audit?limit=2&cursor={cursor}").json()
        paged += page["items"]
        cursor = page["next"]
    assert paged == whole
    for query in ("format=jsonl&limit=3", "limit=3"):
        headers = {"Accept": "application/jsonl"}
        lines, cursor = [], ""
        while cursor is not None:
            answer = service(key, "GET", f"/v1/audit?{query}&cursor={cursor}", headers=headers)
            assert answer.headers["content-type"].startswith("application/jsonl")
            entries = [json.loads(line) for line in answer.text.splitlines()]
            assert len(entries) <= 3
            lines += entries
            cursor = answer.headers.get("shardwise-next")
        assert lines == whole
    none = service(key, "GET", "/v1/audit?format=jsonl&action=none")
    assert (none.text, none.headers["content-type"]) == ("", "application/jsonl")

    def asked(**query: str) -> list[dict[str, Any]]:
        answer = service(key, "GET", "/v1/audit", params={"limit": "200", **query})
        entries: list[dict[str, Any]] = answer.json()["items"]
        return entries

    assert asked(action="keys.create") == asked(action="keys") == whole
    assert asked(action="key") == asked(key="0") == asked(since="2100-01-01T00:00:00Z") == []
    assert asked(key=service.id_of(key)) == whole[:5]
    middle = whole[2]["at"]
    assert len(asked(since=middle)) + len(asked(until=middle)) == len(whole)
    for bad in ("since=soon", "format=csv", "limit=6000&format=jsonl", "limit=201", "cursor=x"):
        assert service(key, "GET", f"/v1/audit?{bad}").status_code == 422, bad
    assert service("reader", "GET", "/v1/audit").status_code == 403
    assert service("operator", "GET", "/v1/audit?tenant=told&limit=200").json()["items"] == whole


def test_the_archive_comes_over_http(service: Administered) -> None:
    answer = service("alpha", "GET", "/v1/tenants/alpha/export")
    assert answer.headers["content-type"] == "application/gzip"
    files = read_files(answer.content)
    assert json.loads(files["end.json"])["tenant"] == "alpha"
    assert service("reader", "GET", "/v1/tenants/alpha/export").status_code == 403


def test_a_tenant_is_deleted_once_it_is_named_twice(service: Administered) -> None:
    service("operator", "POST", "/v1/tenants", json={"id": "going"})
    key = key_of(service("operator", "POST", "/v1/tenants/going/keys", json={"scopes": ["admin"]}))
    path = "/v1/tenants/going"
    for headers in ({}, {"Shardwise-Confirm": "alpha"}):
        assert service("operator", "DELETE", path, headers=headers).status_code == 422
    assert status(service, key) == 200
    confirm = {"Shardwise-Confirm": "going"}
    for _ in range(2):
        answer = service("operator", "DELETE", path, headers=confirm)
        assert (answer.status_code, answer.json()["state"]) == (202, "deleting")
    assert status(service, key) == 401
    for method, where, body in (
        ("POST", "/v1/tenants", {"id": "going"}),
        ("POST", f"{path}/keys", {}),
        ("PATCH", path, {"limits": {"max_queued": 1}}),
    ):
        assert slug(service("operator", method, where, json=body)) == (409, "deleting")
    for _ in range(20):
        if sweep_deletions(service.database, rules_of(service.settings), 0.0):
            break
    assert service("operator", "GET", path).status_code == 404
    with service.database.read() as session:
        actions = session.scalars(
            select(Audit.action).where(Audit.tenant_id == "ops", Audit.target == path)
        ).all()
    assert sorted(actions) == ["tenants.create", "tenants.delete", "tenants.delete",
                            "tenants.deleted"]  # fmt: skip


def test_some_tenants_stay(service: Administered) -> None:
    service("operator", "POST", "/v1/tenants", json={"id": "local"})
    for name in ("local", "ops"):
        headers = {"Shardwise-Confirm": name}
        answer = service("operator", "DELETE", f"/v1/tenants/{name}", headers=headers)
        assert slug(answer) == (409, "in-use")


def test_a_request_under_way_does_not_bring_a_tenant_back(tmp_path: Path) -> None:
    """Its key is still believed; what it stores is refused, before and after the last row went."""
    service = Administered(tmp_path, auth_cache_s=3600.0)
    assert status(service, service.keys["beta"]) == 200
    headers = {"Shardwise-Confirm": "beta"}
    assert service("operator", "DELETE", "/v1/tenants/beta", headers=headers).status_code == 202
    hardware = {"json": {"name": "x"}}
    assert slug(service("beta", "POST", "/v1/keys", json={})) == (409, "deleting")
    while not sweep_deletions(service.database, rules_of(service.settings), 0.0):
        pass
    assert slug(service("beta", "POST", "/v1/keys", json={})) == (409, "deleting")
    assert service("beta", "POST", "/v1/hardware", **hardware).status_code in (409, 422)
    assert service("operator", "GET", "/v1/tenants/beta").status_code == 404
    service.close()


def test_an_open_service_has_no_operator_and_makes_no_keys(tmp_path: Path) -> None:
    """Else the first visitor could lock all others out."""
    from starlette.testclient import TestClient

    from service.base.settings import Settings
    from service.host.app import create_app
    from service.store.schema import migrate

    settings = Settings(data_dir=str(tmp_path))
    database = Database(settings.database)
    migrate(database)
    client = TestClient(create_app(settings, database), base_url="http://127.0.0.1")
    assert client.get("/v1/me").json()["kind"] == "open"
    assert client.get("/v1/keys").json()["items"] == []
    assert slug(client.post("/v1/keys", json={})) == (403, "forbidden")
    assert slug(client.get("/v1/tenants")) == (403, "forbidden")
    assert client.get("/v1/graphs").status_code == 200
    database.close()
