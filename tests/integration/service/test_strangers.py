"""Callers without a key: by which address they are counted, and what they leave in the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from harness.service.fake_agent import inventory, new_token
from harness.service.service_harness import Service
from service.store.database import Database
from service.store.keys import create_key
from service.store.schema import migrate
from service.store.tables import Audit

TRIES = 100
HOURS = 2
"""A test may see the hour change."""


class Watched:
    """A service that needs keys, its administrator's, and its audit."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.database = Database(f"sqlite:///{folder / 'data' / 'shardwise.sqlite'}")
        migrate(self.database)
        with self.database.write() as session:
            self.key = create_key(session, "t", ("admin",))
        self.service = Service(folder, auth="required", **settings)
        self.client = self.service.client
        self.admin = {"Authorization": f"Bearer {self.key}"}

    def stop(self) -> None:
        self.service.stop()
        self.database.close()

    def refusals(self) -> list[tuple[str, str]]:
        """Tenant and target of every refused enrolment in the audit."""
        with self.database.read() as session:
            rows = session.execute(
                select(Audit.tenant_id, Audit.target).where(
                    Audit.action == "agents.enrol", Audit.status == 401
                )
            )
            return [(tenant, target) for tenant, target in rows]

    def enrol(self, token: str, address: str) -> int:
        body = {"token": token, "inventory": inventory()}
        headers = {"X-Forwarded-For": address}
        answer = self.client.post("/v1/agents", json=body, headers=headers)
        if answer.status_code == 429:
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["type"].endswith("rate-limited")
        return answer.status_code


def rotating(number: int) -> str:
    return f"203.0.{number // 250}.{number % 250 + 1}"


@pytest.fixture(scope="module")
def unproxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Without settings: no caller's claim of an address is believed."""
    started = Watched(
        tmp_path_factory.mktemp("unproxied"), enrol_rate_per_s="0.01", anonymous_rate_per_s="0"
    )
    yield started
    started.stop()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    started = Watched(
        tmp_path_factory.mktemp("proxied"),
        trusted_proxies="127.0.0.1, 10.0.0.0/8",
        enrol_rate_per_s="0.01",
        anonymous_rate_per_s="0.01",
        anonymous_burst="3",
    )
    yield started
    started.stop()


def test_refused_enrolments_under_many_addresses(unproxied: Watched) -> None:
    """Each was believed to come from another address, and each was a row of the audit."""
    token = "swe_" + "x" * 43
    statuses = Counter(unproxied.enrol(token, rotating(n)) for n in range(TRIES))
    assert set(statuses) == {401, 429}
    assert statuses[401] < 20, "the burst of one address is ten"
    assert 1 <= len(unproxied.refusals()) <= HOURS


def test_refused_enrolments_from_many_addresses(proxied: Watched) -> None:
    """The proxy is trusted, and a caller with many addresses tries often: rows are few."""
    used = new_token(proxied.client, headers=proxied.admin, name="used")
    assert proxied.enrol(used, "198.51.100.1") == 201
    unknown = "swe_" + "x" * 43
    statuses = Counter(
        proxied.enrol(used if n % 2 else unknown, rotating(n)) for n in range(TRIES // 5)
    )
    assert statuses == {401: TRIES // 5}
    refusals = Counter(proxied.refusals())
    assert set(refusals) == {("", "unknown token ''"), ("t", "replayed token 'used'")}
    assert max(refusals.values()) <= HOURS
    text = proxied.client.get("/metrics", headers=proxied.admin).text
    for reason in ("unknown", "replayed"):
        line = f'shardwise_enrolments_refused_total{{reason="{reason}"}} {TRIES // 10}.0'
        assert line in text


@pytest.mark.parametrize(
    ("forwarded", "same"),
    [
        (["198.51.100.2"] * 5, True),
        ([f"1.2.3.{n}, 198.51.100.3" for n in range(5)], True),
        ([f"198.51.100.4, 10.0.0.{n}" for n in range(5)], True),
        ([f"198.51.101.{n}" for n in range(5)], False),
        ([f"2001:db8:1:2::{n}" for n in range(5)], True),
        ([f"2001:db8:2:{n}::1" for n in range(5)], False),
        (["nonsense", "unknown", "_hidden", "x" * 90, "localhost"], True),
    ],
)
def test_behind_a_proxy_the_last_address_before_it_counts(
    proxied: Watched, forwarded: list[str], same: bool
) -> None:
    statuses = [
        proxied.client.get("/v1/graphs", headers={"X-Forwarded-For": text}).status_code
        for text in forwarded
    ]
    assert statuses == ([401, 401, 401, 429, 429] if same else [401] * 5)


def test_a_probe_that_asks_too_often_is_refused_and_liveness_is_not(proxied: Watched) -> None:
    def asked(path: str) -> Any:
        return proxied.client.get(path, headers={"X-Forwarded-For": "198.51.100.9"})

    assert [asked("/readyz").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert asked("/readyz").headers["Content-Type"] == "application/problem+json"
    assert {asked("/healthz").status_code for _ in range(20)} == {200}


@pytest.mark.parametrize(("fixture", "secure"), [("proxied", True), ("unproxied", False)])
def test_the_cookie_is_secure_if_a_believed_proxy_says_https(
    fixture: str, secure: bool, request: pytest.FixtureRequest
) -> None:
    watched: Watched = request.getfixturevalue(fixture)
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.20"}
    answer = watched.client.post("/sign-in", data={"key": watched.key}, headers=headers)
    assert answer.status_code == 303
    assert ("Secure" in answer.headers["Set-Cookie"]) is secure
