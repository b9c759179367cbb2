"""Repeats of requests whose answer is a secret, at once, on PostgreSQL: one is in force."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.service.service_harness import Service, variables_of, with_driver
from service.store.database import Database
from service.store.keys import create_key
from service.store.schema import migrate

REPEATS = 12
KEY = {"name": "k", "scopes": ["read"]}


@dataclass
class Keyed:
    """A service with an administrator's key."""

    url: str
    key: str

    def post(self, path: str, body: Any, once: str | None = None) -> httpx.Response:
        """Sends one request on a connection of its own."""
        headers = {"Authorization": f"Bearer {self.key}"}
        if once is not None:
            headers["Idempotency-Key"] = once
        return httpx.post(self.url + path, json=body, headers=headers, timeout=60)

    def at_once(self, path: str, body: Any, once: str | None) -> list[httpx.Response]:
        """Sends the same request many times at once."""
        together = threading.Barrier(REPEATS)

        def one(_: int) -> httpx.Response:
            together.wait()
            return self.post(path, body, once)

        with ThreadPoolExecutor(REPEATS) as pool:
            return list(pool.map(one, range(REPEATS)))

    def in_force(self, key: str) -> bool:
        """Returns whether a key is in force, by the list of the tenant's keys."""
        headers = {"Authorization": f"Bearer {self.key}"}
        found = httpx.get(f"{self.url}/v1/keys/{key.split('_')[1]}", headers=headers, timeout=60)
        return bool(found.json()["state"] == "active")


@pytest.fixture(scope="module")
def keyed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keyed]:
    folder: Path = tmp_path_factory.mktemp("keyed")
    with variables_of("postgres", request) as variables:
        database = Database(with_driver(variables["database_url"]))
        migrate(database)
        with database.write() as session:
            key = create_key(session, "t", ("admin",))
        database.close()
        hooks = {"webhook_key": "0" * 64, "webhook_allow_networks": "192.0.2.0/24"}
        service = Service(folder, auth="required", **hooks, **variables)
        yield Keyed(service.url, key)
        service.stop()


def test_a_rotation_that_is_repeated_at_once_succeeds_each_time(keyed: Keyed) -> None:
    """They updated the old key and locked the tenant in two orders: deadlocks, and 409."""
    old = keyed.post("/v1/keys", KEY).json()["id"]
    answers = keyed.at_once(f"/v1/keys/{old}/rotate", {}, uuid.uuid4().hex)
    assert {one.status_code for one in answers} == {201}, [one.text for one in answers]
    assert sum(keyed.in_force(one.json()["key"]) for one in answers) == 1


def test_of_rotations_at_once_one_replaces_the_key(keyed: Keyed) -> None:
    old = keyed.post("/v1/keys", KEY).json()["id"]
    answers = keyed.at_once(f"/v1/keys/{old}/rotate", {}, None)
    codes = sorted(one.status_code for one in answers)
    assert codes == [201] + [409] * (REPEATS - 1), [one.text for one in answers]


def test_a_key_that_is_asked_for_again_at_once_is_one(keyed: Keyed) -> None:
    answers = keyed.at_once("/v1/keys", KEY, uuid.uuid4().hex)
    assert {one.status_code for one in answers} == {201}
    assert sum(keyed.in_force(one.json()["key"]) for one in answers) == 1


@pytest.mark.parametrize(
    ("path", "one", "another"),
    [
        ("/v1/keys", KEY, {**KEY, "scopes": ["admin"]}),
        ("/v1/agents/tokens", {"name": "a"}, {"name": "a", "uses": 100}),
        (
            "/v1/webhooks",
            {"url": "https://192.0.2.1/a", "events": ["job.ended"]},
            {"url": "https://192.0.2.1/b", "events": ["job.ended"]},
        ),
    ],
)
def test_another_body_for_the_same_idempotency_key_is_refused(
    keyed: Keyed, path: str, one: dict[str, Any], another: dict[str, Any]
) -> None:
    """It made a second key beside the first, and took back a token that somebody had."""
    once = uuid.uuid4().hex
    first, second = keyed.post(path, one, once), keyed.post(path, another, once)
    assert first.status_code == 201, first.text
    assert (second.status_code, second.json()["type"]) == (
        422, "urn:shardwise:problem:idempotency-key-reused",
    )  # fmt: skip
    assert keyed.post(path, one, once).status_code == 201
