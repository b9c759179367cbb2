"""Sign-ins that hang, at the provider or for the database, hold up nothing else."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic

import httpx
import pytest
from starlette.concurrency import run_in_threadpool

from harness.service.oidc_provider import AUDIENCE, CLIENT, SECRET, OidcProvider
from harness.service.service_harness import Service, wait_until

pytest.importorskip("authlib", reason="needs shardwise[oidc]")

from service.base.pools import Pools
from service.base.settings import Settings
from service.login.attempt import new_attempt
from service.login.fetch import AT_ONCE, WITHIN_S
from service.login.identity import Identity
from service.login.logins import Logins
from service.store.database import Database
from service.store.schema import migrate

RULES = '[[rule]]\ngroup = "a"\ntenant = "research"\nscopes = ["read"]\n'
WELL_KNOWN = "/.well-known/openid-configuration"
MANY = AT_ONCE + 8
SOON_S = 5.0
"""Generous for a loaded machine, and less than a request to the provider may take."""

DEADLINE_S = 60.0
"""How long a sign-in waits for the database."""


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    running = OidcProvider({"ada": {"groups": ["a"]}})
    yield running
    running.be_good()
    running.stop()


@pytest.fixture
def service(tmp_path: Path, provider: OidcProvider) -> Iterator[Service]:
    (tmp_path / "secret").write_text(SECRET)
    with provider.service(
        tmp_path, RULES,
        oidc_client_secret_file=str(tmp_path / "secret"), oidc_audience=AUDIENCE,
        anonymous_rate_per_s="1000", anonymous_burst="1000", auth_cache_s="0.001",
    ) as running:  # fmt: skip
        yield running


def browser(service: Service) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Origin": service.url}, timeout=120)


def granted(client: httpx.Client) -> str:
    """Where the provider sends a browser whose person has said that she is Ada."""
    form = client.get(client.get("/sign-in/start").headers["Location"])
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form.text))
    answer = client.post(str(form.url.copy_with(query=None)), data={**fields, "user": "ada"})
    return answer.headers["Location"]


def test_while_sign_ins_hang_at_the_provider_others_are_answered(
    service: Service, provider: OidcProvider
) -> None:
    signed_in = browser(service)
    assert signed_in.get(granted(signed_in)).status_code == 303
    token = {"Authorization": f"Bearer {provider.access_token('ada')}"}
    assert service.client.get("/v1/graphs", headers=token).status_code == 200
    hanging = [browser(service) for _ in range(MANY)]
    ways_back = [granted(client) for client in hanging]
    before = provider.asked["/token"]
    provider.hold["/token"] = threading.Event()
    with ThreadPoolExecutor(MANY) as people:
        answers = [
            people.submit(client.get, way) for client, way in zip(hanging, ways_back, strict=True)
        ]
        wait_until(lambda: provider.asked["/token"] - before == AT_ONCE, "they hang")
        wait_until(lambda: sum(one.done() for one in answers) >= MANY - AT_ONCE, "more are refused")
        started = monotonic()
        assert service.client.get("/v1/graphs", headers=token).status_code == 200
        assert signed_in.get("/jobs").status_code == 200
        assert service.client.get("/readyz").status_code == 200
        assert service.client.get("/sign-in/start").status_code == 303
        hanging_on = MANY - sum(one.done() for one in answers)
        assert hanging_on == AT_ONCE or monotonic() - started < SOON_S, "none waited for another"
        refused = [one.result().status_code for one in answers if one.done()]
        assert {*refused} == {503}
        provider.be_good()
        # One that hung for too long has been given up, as the machine was slow.
        assert {one.result().status_code for one in answers} <= {303, 503}
    for client in (*hanging, signed_in):
        client.close()


def test_who_waits_for_a_provider_that_hangs_waits_once(
    service: Service, provider: OidcProvider
) -> None:
    """Not one after the other, each for as long as a request to it may take."""
    provider.hold[WELL_KNOWN] = threading.Event()
    with ThreadPoolExecutor(MANY) as people:
        started = monotonic()
        asked = [people.submit(httpx.get, f"{service.url}/sign-in/start", timeout=120)
                 for _ in range(MANY)]  # fmt: skip
        assert {one.result().status_code for one in asked} == {503}
        assert monotonic() - started < 2 * WITHIN_S + SOON_S
    assert provider.asked[WELL_KNOWN] <= 2


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'one.sqlite'}", deadline_s=DEADLINE_S)
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path, provider: OidcProvider) -> Settings:
    (tmp_path / "rules.toml").write_text(RULES)
    return Settings(
        public_url="http://127.0.0.1:8000",
        oidc_issuer=provider.issuer,
        oidc_client_id=CLIENT,
        oidc_rules_file=str(tmp_path / "rules.toml"),
        auth_cache_s=0.0,
    )


def test_sign_ins_that_wait_for_the_database_leave_threads_to_others(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    pools = Pools(settings)
    ada = Identity("ada", "Ada", ("a",))

    async def steps() -> None:
        logins = Logins(settings, database, pools)
        secret = await logins.open(ada, "r", None)
        with closing(sqlite3.connect(tmp_path / "one.sqlite", isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            people = [replace(ada, subject=f"person{number}") for number in range(60)]
            waiting = [asyncio.ensure_future(logins.open(one, "r", None)) for one in people]
            await asyncio.sleep(0.2)
            # The shared threads: bodies that are unpacked, events that are watched.
            assert await asyncio.wait_for(run_in_threadpool(lambda: 5), DEADLINE_S / 2) == 5
            session = await asyncio.wait_for(logins.find(secret, "address"), DEADLINE_S / 2)
            assert session is not None and session.principal.tenant == "research"
            assert not any(one.done() for one in waiting)
            writer.execute("ROLLBACK")
        assert len({*await asyncio.gather(*waiting)}) == len(people)

    try:
        asyncio.run(steps())
    finally:
        pools.close()


def test_sign_ins_that_hang_leave_the_providers_keys_to_be_looked_up(
    database: Database, settings: Settings, provider: OidcProvider
) -> None:
    pools = Pools(settings)

    async def steps() -> None:
        logins = Logins(settings, database, pools)
        await logins.provider.metadata()
        provider.hold["/token"] = threading.Event()
        back = {"code": "c", "iss": provider.issuer}
        tries = [asyncio.ensure_future(logins.finish(new_attempt("/"), back))
                 for _ in range(AT_ONCE)]  # fmt: skip
        until = monotonic() + WITHIN_S
        while provider.asked["/token"] < AT_ONCE and monotonic() < until:
            await asyncio.sleep(0.02)
        assert provider.asked["/token"] == AT_ONCE
        assert len(await logins.provider.keys(None)) == 1
        provider.be_good()
        await asyncio.gather(*tries, return_exceptions=True)

    try:
        asyncio.run(steps())
    finally:
        pools.close()
