"""One tenant at every limit of a process: another tenant and an operator still get through."""

from __future__ import annotations

import ast
import asyncio
import gzip
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

pytest.importorskip("fastapi")

import service as package
from harness.service.administered import Administered
from harness.service.fake_agent import FakeAgent
from harness.service.open_calls import OpenCall
from harness.service.steps import mlp
from service.base.byte_budget import ByteBudget
from service.base.fair_pool import FairPool
from service.base.fair_slots import Places
from service.base.pools import Pools
from service.base.problems import Problem
from service.base.settings import Settings
from service.base.shares import OPERATORS, Shares
from service.base.time_shares import LONGEST_TURN_S, charged
from service.host import asgi
from service.store.results import Stored
from shardwise.graph import canonical_json

TENANTS = ("alpha", "beta", "ops")
MOST, SHARE = 3, 2
POOLS = Pools(Settings())
THREADS = [name for name, pool in vars(POOLS).items() if isinstance(pool, FairPool)]
PLACES = [name for name, pool in vars(POOLS).items() if isinstance(pool, Places)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Administered]:
    """Without workers: what is queued stays so."""
    started = Administered(
        tmp_path_factory.mktemp("shares"), redis_url=redis_url, queue="tenant-shares",
        rate_per_s=0, anonymous_rate_per_s=0, enrol_rate_per_s=0,
        max_watchers=MOST, watchers_share=SHARE, max_exports=MOST, exports_share=SHARE,
        max_polls=MOST, polls_share=SHARE,
    )  # fmt: skip
    yield started
    started.close()


def test_each_lane_has_its_share_and_operators_have_more() -> None:
    shares = Shares(10, 5, kept=2)
    shares.take("a", 5)
    assert (shares.room("a"), shares.room("b"), shares.room(OPERATORS)) == (0, 5, 7)
    shares.take("b", 5)
    assert (shares.room("c"), shares.room(OPERATORS)) == (0, 2)
    shares.take(OPERATORS, 2)
    assert (shares.room("c"), shares.room(OPERATORS)) == (0, 0)
    shares.give("a", 1)
    assert (shares.room("a"), shares.room("c"), shares.room(OPERATORS)) == (1, 1, 1)
    shares.take(OPERATORS)
    shares.give("b", 5)
    assert shares.room("c") == 5, "what operators have of their own is nobody else's"
    assert shares.taken == 7


def fill(pool: FairPool | Places | ByteBudget, *lanes: str) -> list[str]:
    """Takes all that these lanes can have of a pool; returns the lane of each part."""
    shares: Shares = pool.slots.shares if isinstance(pool, FairPool) else pool.shares
    taken = []
    for lane in lanes:
        while shares.room(lane) >= 1 and len(taken) < 10_000:
            shares.take(lane, int(shares.room(lane)))
            taken.append(lane)
    return taken


@pytest.mark.parametrize("name", THREADS)
def test_threads_are_left_for_another_tenant_and_for_operators(name: str) -> None:
    async def scenario() -> None:
        pool = getattr(Pools(Settings(ingest_slots=4)), name)
        fill(pool, "hog")
        assert await asyncio.wait_for(pool.run("other", int), 10) == 0
        fill(pool, "other", "third", "fourth")
        waiting = [asyncio.ensure_future(pool.run(lane, int)) for lane in ("hog", "fifth")]
        assert await asyncio.wait_for(pool.run(OPERATORS, int), 10) == 0
        assert not any(one.done() for one in waiting), "tenants took all that they may"
        for one in waiting:
            one.cancel()
        pool.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", PLACES)
def test_places_are_left_for_another_tenant_and_for_operators(name: str) -> None:
    places = getattr(Pools(Settings()), name)
    with ExitStack() as taken:
        with pytest.raises(Problem) as refused:
            while True:
                taken.enter_context(places.one("hog"))
        assert refused.value.status == 429 and "Retry-After" in refused.value.headers
        taken.enter_context(places.one("other"))
        if name != "uploads":  # each tenant has its own number, without a sum
            fill(places, *(f"t{number}" for number in range(20)))
            with pytest.raises(Problem, match="of all tenants"):
                places.take("late")
        taken.enter_context(places.one(OPERATORS))


def test_memory_is_left_for_another_tenant_and_for_operators() -> None:
    bodies = Pools(Settings()).bodies
    large = Settings().max_body_bytes
    with ExitStack() as taken:
        with pytest.raises(Problem):
            while True:
                taken.enter_context(bodies.take("hog", large))
        for _ in range(2):
            taken.enter_context(bodies.take("other", large))
        fill(bodies, "third", "fourth", "fifth")
        with pytest.raises(Problem):
            taken.enter_context(bodies.take("other", large))
        for _ in range(2):
            taken.enter_context(bodies.take(OPERATORS, large))


def job_of(service: Administered, who: str) -> str:
    ask = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 2}
    answer = service(who, "POST", "/v1/frontiers", json=ask)
    assert answer.status_code == 202, answer.text
    return f"{answer.headers['Location']}/events"


CALLERS = {"alpha": "alpha", "beta": "beta", "gamma": "gamma", "operator": "ops"}
OPEN: dict[str, Callable[[Administered, str], str]] = {
    "streams": job_of,
    "archives": lambda service, who: f"/v1/tenants/{CALLERS[who]}/export",
}


@pytest.mark.parametrize("what", OPEN)
def test_slow_readers_of_one_tenant_stop_no_other_and_no_operator(
    service: Administered, what: str
) -> None:
    if "gamma" not in service.keys:
        service("operator", "POST", "/v1/tenants", json={"id": "gamma"})
        made = service("operator", "POST", "/v1/tenants/gamma/keys", json={"scopes": ["admin"]})
        service.keys["gamma"] = made.json()["key"]
    paths = {who: OPEN[what](service, who) for who in CALLERS}

    async def scenario() -> None:
        opened: list[OpenCall] = []

        async def status(who: str) -> int:
            opened.append(OpenCall(service.app, service.keys[who], paths[who]))
            return await asyncio.wait_for(opened[-1].status(), 30)

        statuses = [await status(who) for who in ("alpha", "alpha", "alpha", "beta")]
        assert statuses == [200, 200, 429, 200], "a share, and no more"
        assert await status("gamma") == 429, "all that tenants can have is taken"
        assert await status("operator") == 200
        for call in opened:
            await call.close()
        assert await status("alpha") == 200, "places come back"
        await opened[-1].close()

    asyncio.run(scenario())
    assert not getattr(service.app.state.shardwise.pools, what).shares.taken


REFUSED: dict[str, str] = {
    "streams": "/v1/frontiers/there-is-none/events",
    "archives": "/v1/tenants/alpha/export",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_asks_the_database_nothing(
    service: Administered, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to be the cheapest answer: who is at a limit asks again at once."""
    state = service.app.state.shardwise
    assert service("alpha", "GET", "/v1/me").status_code == 200
    settings = replace(state.settings, auth_cache_s=60)
    monkeypatch.setattr(state.gate, "_settings", settings)
    assert service("alpha", "GET", "/v1/me").status_code == 200
    asked: list[str] = []
    engine = state.database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    shares = getattr(state.pools, what).shares
    shares.take("alpha", SHARE)
    try:
        answer = service("alpha", "GET", REFUSED[what])
    finally:
        shares.give("alpha", SHARE)
    assert (answer.status_code, asked) == (429, [])


def test_refusals_are_charged_and_wait_their_turn(
    service: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that is refused again and again takes no more time than its share."""
    times, seen = service.app.state.shardwise.pools.times, Counter[str]()

    def refused() -> None:
        answer = service("alpha", "POST", "/v1/tenants", json={"id": "x"})
        assert answer.status_code == 403

    with monkeypatch.context() as patch:
        patch.setattr(times, "charge", lambda lane, seconds: seen.update({lane: seconds}))
        for _ in range(20):
            refused()
    assert seen.keys() == {"alpha"} and seen["alpha"] > 20 * 1e-4
    times.charge("alpha", 60.0)
    try:
        service("beta", "GET", "/v1/me")
        began = time.monotonic()
        refused()
        assert time.monotonic() - began > LONGEST_TURN_S * 0.9
        began = time.monotonic()
        assert service("beta", "GET", "/v1/me").status_code == 200
        assert time.monotonic() - began < LONGEST_TURN_S / 2
    finally:
        times._debts.clear()


def test_known_answers_are_not_even_measured(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring them added a tenth to their time, and nothing is charged for them."""
    service = Administered(
        tmp_path, redis_url=redis_url, queue="unmeasured", auth_cache_s=60, rate_per_s=0
    )
    state = service.app.state.shardwise
    measured: list[Awaitable[None]] = []
    monkeypatch.setattr(state.curve_keys, "of", lambda query: b"known")

    def measure(work: Awaitable[None], charge: Callable[[float], None]) -> Awaitable[None]:
        measured.append(work)
        return charged(work, charge)

    monkeypatch.setattr(asgi, "charged", measure)
    try:
        service("alpha", "GET", "/v1/me")
        assert len(measured) == 1, "the key is remembered from now on"
        state.answers.put(("alpha", b"known"), Stored(b"{}", '"e"'))
        measured.clear()
        known = service("alpha", "GET", "/v1/curves?graph=x")
        assert (known.status_code, known.content) == (200, b"{}")
        assert measured == []
    finally:
        service.close()


def test_waiting_agents_of_one_tenant_leave_room_for_anothers(service: Administered) -> None:
    agents = {}
    for who in ("alpha", "beta"):
        client, headers = service.client, {"Authorization": f"Bearer {service.keys[who]}"}
        agents[who] = FakeAgent(client, f"{who}-1", headers=headers)

    async def scenario() -> None:
        opened = []
        for who in ("alpha", "alpha", "beta", "alpha"):
            agent = agents[who]
            path = f"/v1/agents/{agent.id}/assignments?wait_s=30"
            opened.append(OpenCall(service.app, agent.key, path))
        assert await asyncio.wait_for(opened[3].status(), 30) == 429
        assert all(call.waits for call in opened[:3])
        service.app.state.shardwise.stopping.set()
        assert [await call.status() for call in opened[:3]] == [200] * 3

    try:
        asyncio.run(scenario())
    finally:
        service.app.state.shardwise.stopping = asyncio.Event()


GZIP = gzip.compress(canonical_json(mlp(8)))
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reads": ("GET", "/v1/graphs", {}),
    "writes": ("POST", "/v1/keys", {"json": {"scopes": ["read"]}}),
    "ingest": ("POST", "/v1/graphs", {"content": canonical_json(mlp(8))}),
    "bodies": ("POST", "/v1/keys", {"content": b" " * 2**21 + b'{"scopes": ["read"]}'}),
    "unpacking": ("POST", "/v1/graphs", {"content": GZIP}),
    "lookups": ("GET", "/v1/me", {}),
    "packing": ("GET", "/v1/tenants/ops/export", {}),
    "rings": ("POST", "/v1/frontiers", {"json": {"graph": "shipped:vgg16", "gpus": 3,
                                                 "hardware": "dgx-v100-16gb"}}),
    "pages": ("GET", "/graphs", {}),
}  # fmt: skip


def test_the_calls_of_operators_take_their_lane_in_each_pool(service: Administered) -> None:
    """Each pool filled with all that tenants can have: an operator's call that needs it ends."""
    pools = service.app.state.shardwise.pools
    key = service.keys["operator"]
    headers = {"Authorization": f"Bearer {key}", "Cookie": f"shardwise_key={key}"}

    async def scenario() -> None:
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for name, (method, path, more) in CALLS.items():
                pool = getattr(pools, name)
                taken = fill(pool, *(f"tenant {number}" for number in range(8)))
                shares = pool.slots.shares if isinstance(pool, FairPool) else pool.shares
                assert shares.room("alpha") < 1, name
                call = client.request(method, path, headers=headers, **more)
                answer = await asyncio.wait_for(call, 30)
                assert answer.is_success, f"{name}: {answer.status_code} {answer.text}"
                for lane in set(taken):
                    shares.give(lane, shares.of(lane))

    asyncio.run(scenario())


def test_no_room_of_the_service_has_limits_of_its_own() -> None:
    """Threads and counts that know no tenant would be one tenant's to take (service/base/pools)."""
    forbidden = {"run_in_threadpool", "Semaphore", "BoundedSemaphore", "CapacityLimiter",
                 "ThreadPoolExecutor", "to_thread", "iterate_in_threadpool"}  # fmt: skip
    allowed = {
        "base/fair_pool.py": {"ThreadPoolExecutor"},
        "edge/token_server.py": {"Semaphore"},  # at most 50 ms each
        "mcp/route.py": {"to_thread"},  # once in a process
    }
    root = Path(inspect.getfile(package)).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        names = {
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Name | ast.Attribute)
        }
        if used := names & forbidden:
            found[path.relative_to(root).as_posix()] = used
    assert found == allowed
