"""Agents and launches from Python and from the command line, a fake agent at the other end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.commands import shardwise
from harness.page.launched import measurement
from harness.service.fake_agent import FakeAgent
from harness.service.launch_calls import OF_PLAN
from harness.service.service_harness import System
from harness.stored import content
from shardwise.client import AsyncClient, Client, Missing, Refused
from shardwise.hardware import load_hardware


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with Client(system.service.url) as opened:
        yield opened


@contextmanager
def at_work(system: System, state: str, *lines: str, **more: Any) -> Iterator[FakeAgent]:
    """An agent that takes one job, prints these lines and ends in this state."""
    with httpx.Client(base_url=system.service.url, timeout=60) as http:
        agent = FakeAgent(http, f"worker-{uuid.uuid4().hex[:6]}")

        def work() -> None:
            part = agent.claim(wait_s=30)
            if part is None:
                return
            agent.say(part, "running")
            results = []
            if plan := part["plan"]:
                results = [agent.of(part, "result", name="run", document=measurement(plan, 1.1))]
            agent.report(
                agent.of(part, "log", rank=0, first_line=1, lines=list(lines)),
                *results,
                agent.of(part, "state", state=state, **more),
            )

        thread = threading.Thread(target=work)
        thread.start()
        yield agent
        thread.join(60)
        http.delete(f"/v1/agents/{agent.id}")


def run(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    return shardwise(*arguments, "--server", system.service.url, env={})


def test_the_client_launches_and_waits(system: System, client: Client) -> None:
    token = client.enrolment_token("by-the-client", expires_s=60.0)
    assert token["token"].startswith("swe_") and token["uses"] == 1
    assert client.enrolment_token(uses=3)["uses"] == 3
    states: list[str] = []
    lines: list[str] = []
    with at_work(system, "done", "one", "two", exit_code=0) as agent:
        assert agent.id in [item["id"] for item in client.agents()]
        assert client.drain_agent(agent.id, "a while")["state"] == "drained"
        assert client.undrain_agent(agent.id)["state"] == "live"
        started = client.start_launch(**OF_PLAN, agents=[agent.id])
        ended = client.wait_launch(
            started["id"],
            lambda document: states.append(document["state"]),
            lambda line: lines.append(line["text"]),
            timeout_s=60,
        )
        assert client.agent(agent.id)["slots_free"] == 2
    assert (ended["state"], states[-1], lines) == ("done", "done", ["one", "two"])
    assert ended["runs"][0]["measurement"]["steps"] == 20
    assert client.launch(started["id"])["id"] in [item["id"] for item in client.launches("done")]
    assert [line["text"] for line in client.launch_log(started["id"], after=1)["lines"]] == ["two"]
    assert client.accuracy(hardware="l4")["items"][0]["graph_name"] == "toy"
    version = client.refit_hardware("l4", [started["id"]])
    assert version["previous_id"] == load_hardware("l4").id
    assert {item["name"] for item in client.hardware_versions(version["id"])} == {"l4"}
    with pytest.raises(Missing):
        client.launch("launch_none")
    never = client.start_launch(kind="measure", agents=900)["id"]
    client.stop_launch(never)
    assert client.usage()["quotas"]["max_stored_launches"]["used"] >= 2
    client.forget_launch(never)
    with pytest.raises(Missing):
        client.forget_launch(never)
    with pytest.raises(Refused) as refused:
        client.start_launch(kind="measure", agents=0)
    assert refused.value.field == "agents"


def test_the_async_client_does_the_same(system: System) -> None:
    async def ask() -> tuple[dict[str, Any], dict[str, Any], int]:
        async with AsyncClient(system.service.url) as client:
            never = await client.start_launch(kind="measure", agents=900)
            with pytest.raises(TimeoutError):
                await client.wait_launch(never["id"], timeout_s=0.1)
            stopped = await client.stop_launch(never["id"])
            listed = [launch async for launch in client.launches("stopped")]
            stored = (await client.usage())["quotas"]["max_stored_launches"]["used"]
            await client.forget_launch(never["id"])
            usage = await client.usage()
            assert usage["quotas"]["max_stored_launches"]["used"] == stored - 1
            accuracy = await client.accuracy()
            return stopped, accuracy, sum(launch["id"] == never["id"] for launch in listed)

    stopped, accuracy, listings = asyncio.run(ask())
    assert stopped["state"] == "stopped" and listings == 1
    assert accuracy["schema"] == "shardwise.accuracy/1"


def test_the_commands(system: System, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(content("plan-2"))
    entry = ("--entry-point", "train")
    with at_work(system, "done", "hello from rank 0") as agent:
        done = run(system, "launch", str(plan), *entry, "--on", agent.id, "--follow")
        assert done.returncode == 0, done.stderr
        assert "[0] hello from rank 0" in done.stdout
        assert "+10.0%" in done.stdout, "predicted against measured"
        assert "running" in done.stderr or "done" in done.stderr
        listed = json.loads(run(system, "agents", "list", "--json").stdout)["agents"]
        assert agent.id in [item["id"] for item in listed]
        drained = run(system, "agents", "drain", agent.id, "--reason", "why")
        assert drained.stdout.strip().endswith("drained")
        assert "drained" in run(system, "agents", "list").stdout
    created = json.loads(run(system, "agents", "token", "--uses", "2", "--json").stdout)
    assert created["uses"] == 2
    assert created["token"].startswith("swe_")
    with at_work(system, "failed", "oh", reason="exit code 7", exit_code=7) as agent:
        done = run(system, "launch", "--measure", "m", "--on", agent.id, "--json")
        assert done.returncode == 1
        failed = json.loads(done.stdout)
        assert failed["reason"].endswith("failed: exit code 7")
    show = run(system, "launches", "show", failed["id"])
    assert show.returncode == 0 and "exit code 7" in show.stdout
    logs = json.loads(run(system, "launches", "logs", failed["id"], "--json").stdout)
    assert [line["text"] for line in logs["lines"]] == ["oh"]
    detached = run(system, "launch", "--measure", "m", "--agents", "900", "--detach")
    launch_id = detached.stdout.strip()
    assert launch_id in run(system, "launches", "list", "--state", "queued").stdout
    assert "stopped" in run(system, "launches", "stop", launch_id).stdout
    assert run(system, "launches", "show", "launch_none").returncode == 1


def test_what_a_command_refuses(system: System, tmp_path: Path) -> None:
    odd = tmp_path / "plan.json"
    odd.write_text('{"schema": "other/1"}')
    for arguments, said in (
        (("launch", str(odd)), "unknown schema 'other/1'"),
        (("launch",), "plan: missing"),
        (("launch", "--measure", "m", "--env", "A"), "NAME=VALUE"),
    ):
        done = run(system, *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    alone = shardwise("agents", "list", env={})
    assert alone.returncode == 2 and "--server" in alone.stderr
