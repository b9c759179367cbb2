"""Agents over HTTP, on both back ends: a fake agent that knows only the calls."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from harness.service.fake_agent import FakeAgent, inventory, new_token
from harness.service.launch_calls import ended, launch, state_of
from harness.service.service_harness import System, wait_until
from service.store.launch_tables import Agent, Assignment
from service.store.tables import Audit, Key

CHALLENGE = "Bearer"


@pytest.fixture
def client(own_system: System) -> httpx.Client:
    return own_system.client


def stale_id(agent: FakeAgent, assignment: dict[str, Any]) -> dict[str, Any]:
    """A report under a token that is not the assignment's."""
    return {**agent.of(assignment, "state", state="done"), "token": "0" * 32}


def test_enrolment_is_by_token_once(own_system: System) -> None:
    client = own_system.client
    token = new_token(client, name="from-the-token")
    body = {"token": token, "inventory": inventory()}
    answer = client.post("/v1/agents", json=body)
    assert answer.status_code == 201
    agent = answer.json()
    assert client.get(f"/v1/agents/{agent['id']}").json()["name"] == "from-the-token"
    refused = [
        client.post("/v1/agents", json=given)
        for given in (body, {**body, "token": "swe_" + "x" * 43}, {"inventory": {}}, [])
    ]
    refused.append(client.post("/v1/agents", content=b"{"))
    assert [answer.status_code for answer in refused] == [401] * 5
    texts = {answer.text.replace(answer.json()["request_id"], "") for answer in refused}
    assert len(texts) == 1, "the same answer, whatever is wrong with the token"
    assert refused[0].json()["type"].endswith("enrolment-refused")
    assert refused[0].headers["WWW-Authenticate"] == CHALLENGE
    database = own_system.database()
    with database.read() as session:
        rows = session.execute(
            select(Audit.tenant_id, Audit.target, Audit.status).where(
                Audit.action == "agents.enrol"
            )
        ).all()
        stored = session.scalar(select(Key.secret_hash).where(Key.agent_id == agent["id"]))
    database.close()
    assert ("local", f"/v1/agents/{agent['id']}", 201) in rows
    assert ("local", "replayed token 'from-the-token'", 401) in rows
    assert ("", "unknown token ''", 401) in rows
    assert stored is not None and agent["key"].split("_", 2)[2] not in stored


def test_a_token_of_several_uses(client: httpx.Client) -> None:
    created = client.post("/v1/agents/tokens", json={"uses": 2})
    assert created.status_code == 201 and created.json()["uses"] == 2
    token = created.json()["token"]
    agents = [FakeAgent(client, f"node-{n}", token=token) for n in range(2)]
    assert agents[0].id != agents[1].id and agents[0].key != agents[1].key
    for agent in agents:
        agent.beat()
    third = client.post("/v1/agents", json={"token": token, "inventory": inventory()})
    assert third.status_code == 401 and third.json()["type"].endswith("enrolment-refused")
    for bad in (0, 1001, 1.5, "2"):
        answer = client.post("/v1/agents/tokens", json={"uses": bad})
        assert (answer.status_code, answer.json()["field"]) == (422, "uses"), answer.text


def test_a_bad_inventory_does_not_use_the_token_up(client: httpx.Client) -> None:
    token = new_token(client)
    for bad in ({}, {"slots": -1}, {"slots": 1, "schema": "shardwise.inventory/2"}):
        answer = client.post("/v1/agents", json={"token": token, "inventory": bad})
        assert answer.status_code == 422, answer.text
        assert answer.json()["field"].startswith("inventory")
    FakeAgent(client, token=token)


def test_an_open_service_stays_open_and_an_agent_needs_its_key(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    assert client.get("/v1/agents").status_code == 200, "no key is needed on this host"
    body = {"boot_id": "b", "inventory_hash": "h", "jobs": []}
    answer = client.post(f"/v1/agents/{agent.id}/heartbeat", json=body)
    assert answer.status_code == 401


def test_an_agents_key_reaches_its_own_calls_alone(client: httpx.Client) -> None:
    agent, other = FakeAgent(client, "one"), FakeAgent(client, "two")
    beat = {"boot_id": "b", "inventory_hash": "h", "jobs": []}
    unknown = f"agent_{'0' * 32}"
    for stranger in (other.id, unknown):
        for method, what, body in (
            ("POST", "heartbeat", beat),
            ("GET", "assignments", None),
            ("POST", "reports", {"reports": []}),
        ):
            answer = agent.call(method, f"/v1/agents/{stranger}/{what}", json=body)
            assert answer.status_code == 404, (stranger, what)
    for method, path in (
        ("GET", "/v1/agents"),
        ("GET", f"/v1/agents/{agent.id}"),
        ("DELETE", f"/v1/agents/{agent.id}"),
        ("POST", "/v1/agents/tokens"),
        ("POST", f"/v1/agents/{agent.id}/undrain"),
        ("POST", "/v1/launches"),
        ("GET", "/v1/graphs"),
        ("GET", "/v1/accuracy"),
    ):
        assert agent.call(method, path).status_code == 403, (method, path)


def test_reports_count_once_in_any_order(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    location = launch(client, [agent.id])
    part = agent.must_claim()
    log = agent.of(part, "log", rank=0, lines=["once"])
    done, late = agent.of(part, "state", state="done"), agent.of(part, "state", state="running")
    unknown = {**agent.of(part, "state", state="done"), "assignment": "asn_none"}
    wrong = stale_id(agent, part)
    odd = agent.of(part, "gossip")
    first = agent.report(log, wrong, done, late, unknown, odd)
    assert first["accepted"] == [log["id"], done["id"]]
    reasons = {entry["id"]: entry["reason"] for entry in first["refused"]}
    assert reasons[wrong["id"]] == "the token is not the assignment's"
    assert reasons[late["id"]] == "the assignment has ended: done"
    assert reasons[unknown["id"]] == "this agent has no such assignment"
    assert "kind" in reasons[odd["id"]]
    assert agent.report(log, wrong, done, late, unknown, odd) == first, "the same, once more"
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(lambda _: agent.report(log), range(8)))
    assert again == [{"accepted": [log["id"]], "refused": []}] * 8
    assert ended(client, location)["state"] == "done"
    assert [line["text"] for line in client.get(f"{location}/logs").json()["lines"]] == ["once"]


def test_too_much_is_refused_or_bounded(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    location = launch(client, [agent.id])
    part = agent.must_claim()
    for n in range(4):
        lines = [f"{n}-{i}" for i in range(30)]
        agent.report(agent.of(part, "log", rank=0, first_line=30 * n, lines=lines, dropped=1))
    logs = client.get(f"{location}/logs").json()
    assert [line["text"] for line in logs["lines"]][-1] == "3-29", "the newest are kept"
    assert len(logs["lines"]) == 50
    assert logs["dropped"] == 70 + 4
    agent.report(agent.of(part, "log", rank=0, lines=["x" * 9000] * 10))
    logs = client.get(f"{location}/logs").json()
    assert len(logs["lines"]) == 4 and len(logs["lines"][0]["text"]) == 4096
    many = {"reports": [agent.of(part, "state", state="running") for _ in range(257)]}
    assert agent.own("POST", "reports", json=many).status_code == 422
    assert agent.own("POST", "reports", json={"reports": [{"kind": "log"}]}).status_code == 422
    huge = agent.of(part, "result", name="r", document={"schema": "x", "pad": "x" * (4 * 2**20)})
    assert "document" in agent.report(huge)["refused"][0]["reason"]
    padded = {"reports": [], "pad": "x" * (17 * 2**20)}
    assert agent.own("POST", "reports", json=padded).status_code == 413
    agent.say(part, "done")


def test_a_silent_agent_loses_its_lease(client: httpx.Client) -> None:
    """No heartbeat comes; the launch ends, and what the agent says later is too late."""
    silent, other = FakeAgent(client, "silent"), FakeAgent(client, "other")
    location = launch(client, [silent.id, other.id])
    parts = silent.must_claim(), other.must_claim()
    silent.say(parts[0], "running")
    other.say(parts[1], "running")

    def told_to_stop() -> bool:
        return bool(other.beat()["stop"])

    wait_until(told_to_stop, "the other is told to stop")
    other.say(parts[1], "stopped")
    lost = ended(client, location)
    assert lost["state"] == "lost"
    assert lost["reason"].startswith("agent silent: lost")
    assert client.get(f"/v1/agents/{silent.id}").json()["state"] == "lost"
    late = silent.report(
        silent.of(parts[0], "state", state="done"),
        silent.of(parts[0], "log", rank=0, lines=["what it had on its disk"]),
    )
    assert len(late["refused"]) == 1 and len(late["accepted"]) == 1
    assert silent.beat()["stop"] == [parts[0]["id"]]
    assert client.get(f"/v1/agents/{silent.id}").json()["state"] == "live"
    assert "on its disk" in client.get(f"{location}/logs").text


def lease_for_long(system: System, agent: FakeAgent, assignment: str) -> None:
    """A restart may take longer than this module's leases; that is another test's matter."""
    database = system.database()
    with database.write() as session:
        for table, name in ((Agent, agent.id), (Assignment, assignment)):
            session.execute(update(table).where(table.id == name).values(lease_expires_at=4e9))
    database.close()


def test_the_service_is_killed_between_claim_and_answer(own_system: System) -> None:
    agent = FakeAgent(own_system.client, "survivor")
    location = launch(own_system.client, [agent.id])
    first = agent.must_claim()
    lease_for_long(own_system, agent, first["id"])
    own_system.service.stop(signal.SIGKILL)
    own_system.restart_service()
    agent.client = own_system.client
    agent.tokens.clear()  # the answer never came

    def again() -> dict[str, Any] | None:
        agent.beat()
        return agent.claim(wait_s=1.0)

    second = wait_until(again, "it is handed out again")
    lease_for_long(own_system, agent, second["id"])
    assert (second["id"], second["token"]) == (first["id"], first["token"])
    stranger = {**agent.of(second, "state", state="done"), "token": "0" * 32}
    assert agent.report(stranger)["refused"][0]["reason"] == "the token is not the assignment's"
    agent.say(second, "running")
    done = agent.of(second, "state", state="done")
    agent.report(done)
    own_system.service.stop(signal.SIGKILL)
    own_system.restart_service()
    agent.client = own_system.client
    assert agent.report(done) == {"accepted": [done["id"]], "refused": []}, "its answer was lost"
    assert ended(own_system.client, location)["state"] == "done"


def test_a_poll_is_answered_when_work_comes(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    assert agent.claim(wait_s=0) is None
    claimed: list[Any] = []
    thread = threading.Thread(target=lambda: claimed.append(agent.claim(wait_s=20)))
    thread.start()
    location = launch(client, [agent.id])
    thread.join(20)
    assert claimed and claimed[0] is not None
    agent.say(claimed[0], "done")
    assert ended(client, location)["state"] == "done"


def test_stop_drain_delete(client: httpx.Client) -> None:
    agent = FakeAgent(client, "drained")
    drained = client.post(f"/v1/agents/{agent.id}/drain", json={"reason": "new drivers"}).json()
    assert (drained["state"], drained["reason"]) == ("drained", "new drivers")
    location = launch(client, [agent.id])
    assert agent.claim(wait_s=0) is None
    assert "1 drained" in client.get(location).json()["reason"]
    assert client.post(f"/v1/agents/{agent.id}/undrain").json()["state"] == "live"
    part = agent.must_claim()
    agent.say(part, "running")
    stopped = client.delete(location).json()
    assert (stopped["state"], stopped["ending"]) == ("running", "stopped")
    assert agent.beat()["stop"] == [part["id"]]
    agent.say(part, "stopped")
    assert ended(client, location)["state"] == "stopped"
    second = launch(client, [agent.id])
    agent.must_claim()
    assert client.delete(f"/v1/agents/{agent.id}").status_code == 204
    assert state_of(client, second) in ("lost", "queued")
    assert client.get(f"/v1/agents/{agent.id}").status_code == 404

    def gone() -> bool:
        return agent.own("GET", "assignments").status_code == 401

    wait_until(gone, "its key is revoked")


def test_a_restarted_agent_reports_what_it_has_lost(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    location = launch(client, [agent.id])
    part = agent.must_claim()
    agent.beat()
    agent.say(part, "running")
    agent.boot_id = "boot-2"
    assert agent.beat()["stop"] == []
    assert agent.say(part, "lost", reason="the agent was killed")["refused"] == []
    document = ended(client, location)
    assert document["state"] == "lost"
    assert document["reason"] == "agent fake: lost: the agent was killed"


@pytest.mark.full
def test_five_hundred_agents_wait(own_system: System) -> None:
    """They hold no threads: while they wait, other calls are answered at once."""
    import asyncio

    from service.store.keys import create_key

    database = own_system.database()
    keys = {}
    with database.write() as session:
        for n in range(500):
            name = f"agent_many{n:05}"
            keys[name] = create_key(session, "local", ("agent",), agent_id=name)
            session.add(
                Agent(
                    id=name, tenant_id="local", name=name, key_id=keys[name].split("_")[1],
                    created_at=1.0, seen_at=4e9, lease_expires_at=4e9, state="live",
                    inventory=inventory(1), slots=1,
                )
            )  # fmt: skip
    names = list(keys)
    url = own_system.service.url

    async def waits(client: httpx.AsyncClient, name: str) -> Any:
        headers = {"Authorization": f"Bearer {keys[name]}"}
        path = f"/v1/agents/{name}/assignments?wait_s=15"
        chosen, until = name in names[:50], time.monotonic() + 120
        while True:
            answer = await client.get(path, headers=headers)
            assignment = answer.json()["assignment"]
            # Those that get work ask until they have it: the launch may be late.
            if assignment is not None or not chosen or time.monotonic() > until:
                return assignment

    async def all_wait() -> tuple[list[Any], float]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            polls = [asyncio.create_task(waits(client, name)) for name in names]
            await asyncio.sleep(0)
            body = {"kind": "measure", "agents": names[:50]}
            while (await client.get("/healthz")).status_code != 200:
                continue
            loop = asyncio.get_running_loop()
            started = loop.time()
            assert (await client.get("/v1/graphs")).status_code == 200
            seconds = loop.time() - started
            assert (await client.post("/v1/launches", json=body)).status_code == 201
            return await asyncio.gather(*polls), seconds

    try:
        assignments, seconds = asyncio.run(all_wait())
    finally:
        with database.write() as session:
            for agent in session.scalars(select(Agent).where(Agent.id.in_(names))):
                session.delete(agent)
        database.close()
    assert sum(assignment is not None for assignment in assignments) == 50
    assert seconds < 10
