"""Rates hold over processes that share a broker, and in each process while the broker is away."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import prometheus_client
import pytest
import redis

from harness.service.service_harness import Service, Valkey, new_database, with_driver
from service.edge.rate import Buckets
from service.edge.shared_rate import BATCH_S, RateLimit
from service.edge.token_server import PAUSE_S, TokenServer, client_url
from service.store.database import Database
from service.store.keys import create_key
from service.store.schema import migrate

SLOW = 0.001
"""Tokens a second: none comes while a test runs."""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    server.start()
    yield server
    server.stop()


class Replica:
    """What one process has of a limit."""

    def __init__(self, valkey: Valkey, name: str, rate: float, burst: int) -> None:
        self.server = TokenServer(valkey.url, f"{name}:rate")
        registry = prometheus_client.CollectorRegistry()
        alone = prometheus_client.Counter("alone", "alone", registry=registry)
        self.limit = RateLimit("key", rate, burst, self.server, alone)
        self._registry = registry

    @property
    def alone(self) -> float:
        return self._registry.get_sample_value("alone_total") or 0.0

    async def passed(self, times: int, key: str = "k", own: float | None = None) -> int:
        return sum([await self.limit.take(key, own) <= 0 for _ in range(times)])


def both(valkey: Valkey, name: str, rate: float, burst: int) -> list[Replica]:
    return [Replica(valkey, name, rate, burst) for _ in range(2)]


async def closed(replicas: list[Replica]) -> None:
    for one in replicas:
        await one.server.close()


def test_two_processes_have_one_bucket(valkey: Valkey) -> None:
    async def run() -> tuple[int, float]:
        replicas = both(valkey, "one-bucket", SLOW, 30)
        turns = await asyncio.gather(*(r.passed(4) for r in replicas * 10))
        alone = sum(r.alone for r in replicas)
        await closed(replicas)
        return sum(turns), alone

    passed, alone = asyncio.run(run())
    assert 30 <= passed <= 30 + alone


def test_services_that_share_a_broker_have_buckets_of_their_own(valkey: Valkey) -> None:
    async def run() -> list[int]:
        one, other = (Replica(valkey, name, SLOW, 10) for name in ("mine", "theirs"))
        passed = [await one.passed(20), await other.passed(20), await one.passed(20, "k2", 5.0)]
        await closed([one, other])
        return passed

    first, second, own = asyncio.run(run())
    assert first >= 10 and second >= 10, "each has its whole burst"
    assert own >= 10, "a rate of its own has a burst of two seconds"


def test_leases_grow_with_use_and_are_paid_for_when_taken(valkey: Valkey) -> None:
    """A process that asks a lot asks the broker seldom; the limit is met all the same."""
    rate, burst = 2000.0, 4000

    async def run() -> tuple[int, int, int, float, float]:
        replica = Replica(valkey, "leases", rate, burst)
        with redis.Redis.from_url(valkey.url) as admin:
            admin.config_resetstat()
            started = time.monotonic()
            full = await replica.passed(burst)
            asked = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
            # Of an empty bucket each new token is asked for alone: how often is a matter of speed.
            empty = await replica.passed(2000)
            seconds = time.monotonic() - started
        alone = replica.alone
        await closed([replica])
        return full, empty, asked, seconds, alone

    full, empty, asked, seconds, alone = asyncio.run(run())
    assert full == burst, "the burst passes whole"
    assert full + empty <= burst + rate * seconds + alone + 1
    assert asked < full / 10, "a batch is 100 tokens once it has grown"
    assert BATCH_S * rate == 100


def test_shared_buckets_expire(valkey: Valkey) -> None:
    async def run() -> None:
        replica = Replica(valkey, "expire", 5.0, 10)
        for number in range(20):
            await replica.passed(1, f"address {number}")
        await closed([replica])

    asyncio.run(run())
    with redis.Redis.from_url(valkey.url) as admin:
        left = [admin.pttl(key) for key in admin.keys("expire:rate:*")]
    # -2: it has expired since it was listed.
    assert all(one == -2 or 0 < one <= 3000 for one in left), (
        "as long as it takes to be full again, and a second"
    )


def test_a_token_given_back_may_be_taken_again(valkey: Valkey) -> None:
    async def run() -> tuple[int, float]:
        replica = Replica(valkey, "back", SLOW, 2)
        passed = 0
        for _ in range(10):
            passed += await replica.passed(1)
            replica.limit.give_back("k")
        alone = replica.alone
        await closed([replica])
        return passed, alone

    passed, alone = asyncio.run(run())
    assert passed == 10 or alone


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_while_the_broker_is_away_each_process_counts_alone(how: str) -> None:
    valkey = Valkey()
    valkey.start()
    process = valkey._process
    assert process is not None

    async def run() -> None:
        replica = Replica(valkey, "away", SLOW, 5)
        assert await replica.passed(3) == 3
        alone = int(replica.alone)  # the broker has 50 ms to answer: not always enough
        if how == "killed":
            valkey.stop(signal.SIGKILL)
        else:
            process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        # Neither an outage nor unlimited: the burst of this process's own bucket.
        assert 5 - alone <= await replica.passed(400) <= 5 + 2
        assert time.monotonic() - started < 8, "only some waited for the broker"
        assert replica.alone > 300 and not replica.server.reachable
        assert not replica.limit.take_leased("k"), "limited without waiting too"
        if how == "killed":
            valkey.start()
        else:
            process.send_signal(signal.SIGCONT)
        until = time.monotonic() + 60
        while not replica.server.reachable:
            assert time.monotonic() < until
            await asyncio.sleep(PAUSE_S / 4)
            await replica.limit.take("k")
        await closed([replica])

    try:
        asyncio.run(run())
    finally:
        valkey.stop()


def test_a_broker_that_cannot_be_meant_is_one_that_is_away() -> None:
    async def run() -> int:
        server = TokenServer("redis://127.0.0.1:1/0?socket_timeout=soon", "x")
        registry = prometheus_client.CollectorRegistry()
        alone = prometheus_client.Counter("alone", "alone", registry=registry)
        limit = RateLimit("key", SLOW, 3, server, alone)
        return sum([await limit.take("k") <= 0 for _ in range(10)])

    assert asyncio.run(run()) == 3
    assert Buckets(SLOW, 3).take("k") == 0
    assert client_url("valkeys://:p@h:1/0") == "rediss://:p@h:1/0"
    assert client_url("unix:///run/a.sock") == "unix:///run/a.sock"


RATE = 20.0
HAMMERS = 2
"""Connections to each process."""


def test_two_services_hammered_at_once_keep_one_rate(
    postgres_url: str, valkey: Valkey, tmp_path: Path
) -> None:
    with new_database(postgres_url) as url:
        database = Database(with_driver(url))
        migrate(database)
        with database.write() as session:
            key = create_key(session, "t", ("read",), rate_per_s=RATE)
        database.close()
        common = {"database_url": url, "redis_url": valkey.url, "queue": "two-services"}
        services = [Service(tmp_path, **common) for _ in range(2)]
        try:
            counted, seconds = hammered([s.url for s in services], key)
            alone = sum(metric(s, "shardwise_rate_checks_alone_total") for s in services)
            limited = sum(metric(s, 'shardwise_rate_limited_total{limit="key"}') for s in services)
        finally:
            for service in services:
                service.stop()
    assert set(counted) == {200, 429}
    assert limited == counted[429]
    batches = len(services) * max(1, RATE * BATCH_S)
    assert counted[200] <= 2 * RATE + RATE * seconds + batches + alone
    assert counted[200] >= 2 * RATE + RATE * seconds / 2, "and what is left is given out"


def metric(service: Service, name: str) -> float:
    text = service.client.get("/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def hammered(urls: list[str], key: str) -> tuple[Counter[int], float]:
    """Returns how often each status was answered, and the seconds that it took."""
    counted: Counter[int] = Counter()
    lock = threading.Lock()
    started = time.monotonic()

    def hammer(url: str) -> None:
        mine: Counter[int] = Counter()
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            while time.monotonic() < started + 4:
                answer = client.get("/v1/graphs")
                mine[answer.status_code] += 1
                if answer.status_code == 429:
                    assert int(answer.headers["Retry-After"]) >= 1
        with lock:
            counted.update(mine)

    threads = [threading.Thread(target=hammer, args=(url,)) for url in urls * HAMMERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counted, time.monotonic() - started
