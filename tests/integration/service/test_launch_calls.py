"""Launches over HTTP, on both back ends: a fake agent that knows only the calls."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import httpx
import pytest

from harness.service.fake_agent import FakeAgent, inventory
from harness.service.launch_calls import OF_PLAN, ended, launch, measurement, state_of
from harness.service.service_harness import Service, System
from shardwise.hardware import hardware_document, load_hardware


@pytest.fixture
def client(own_system: System) -> httpx.Client:
    return own_system.client


def test_a_gang_of_two_from_token_to_logs(client: httpx.Client) -> None:
    agents = [FakeAgent(client, f"gang-{n}") for n in range(2)]
    for agent in agents:
        assert agent.beat()["inventory_wanted"] is True
        assert agent.beat(inventory=inventory(2))["inventory_wanted"] is False
    location = launch(client, [agent.id for agent in agents], 2, arguments=["; rm -rf /", "$(x)"])
    parts = [agent.must_claim() for agent in agents]
    assert [part["node_rank"] for part in parts] == [0, 1]
    assert parts[0]["rendezvous"] == parts[1]["rendezvous"]
    assert parts[0]["rendezvous"]["host"] == "10.1.1.7"
    assert parts[0]["arguments"] == ["; rm -rf /", "$(x)"], "a list, untouched"
    assert parts[0]["token"] != parts[1]["token"]
    assert state_of(client, location) == "starting"
    shown = client.get(location)
    assert parts[0]["token"] not in shown.text, "a token is its agent's alone"
    for agent, part in zip(agents, parts, strict=True):
        agent.say(part, "running")
    assert state_of(client, location) == "running"
    host = client.get(f"/v1/agents/{agents[0].id}").json()
    assert host["slots_free"] == 0
    assert host["jobs"] == [
        {"assignment": parts[0]["id"], "launch": parts[0]["launch"], "state": "running"}
    ]
    agents[0].report(
        agents[0].of(parts[0], "log", rank=0, stream="stdout", first_line=1, lines=["one", "two"]),
        agents[0].of(parts[0], "log", rank=1, stream="stderr", first_line=1, lines=["drei"]),
    )
    logs = client.get(f"{location}/logs?limit=2").json()
    assert [line["text"] for line in logs["lines"]] == ["one", "two"] and logs["more"]
    rest = client.get(f"{location}/logs?after={logs['next']}").json()
    assert [(line["rank"], line["text"]) for line in rest["lines"]] == [(1, "drei")]
    assert client.get(f"{location}/logs?rank=1").json()["lines"] == rest["lines"]
    for agent, part in zip(agents, parts, strict=True):
        agent.say(part, "done", exit_code=0, peak_rss_bytes=1e6)
    done = ended(client, location)
    assert done["state"] == "done"
    assert [part["exit_code"] for part in done["assignments"]] == [0, 0]
    assert client.get(f"/v1/agents/{agents[0].id}").json()["slots_free"] == 2


def test_events_tell_a_launchs_course(own_system: System) -> None:
    client = own_system.client
    agent = FakeAgent(client)
    location = launch(client, [agent.id])
    heard: list[tuple[str, dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: heard.extend(own_system.service.events(location)))
    thread.start()
    agent.say(agent.must_claim(), "failed", reason="exit code 1", exit_code=1)
    thread.join(30)
    assert heard[-1][0] == "failed"
    assert heard[-1][1]["reason"] == "agent fake: failed: exit code 1"


def test_results_accuracy_and_refits(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    name = f"measured-{uuid.uuid4().hex[:6]}"
    launch(client, [agent.id], hardware=name)
    part = agent.must_claim()
    profile = {**hardware_document(load_hardware("l4")), "provenance": "measured just now"}
    assert agent.report(agent.of(part, "result", name="profile.json", document=profile))["accepted"]
    agent.say(part, "done")
    location = launch(client, [agent.id], **OF_PLAN)
    part = agent.must_claim()
    taken = agent.report(
        agent.of(part, "result", name="run.json", document=measurement(1.2)),
        agent.of(part, "result", name="run2.json", document=measurement(1.3)),
        agent.of(part, "result", name="bad.json", document=measurement(graph=7)),
        agent.of(part, "result", name="other.json", document={"schema": "theirs/1"}),
    )
    assert len(taken["accepted"]) == 2
    rewritten = agent.of(part, "result", name="run2.json", document=measurement(1.3, steps=11))
    assert agent.report(rewritten)["accepted"] == [rewritten["id"]], (
        "written again: the newest counts"
    )
    assert "document.graph" in taken["refused"][0]["reason"]
    assert "unknown schema 'theirs/1'" in taken["refused"][1]["reason"]
    agent.say(part, "done")
    done = ended(client, location)
    assert [run["errors"]["iteration"] for run in done["runs"]] == pytest.approx([0.2, 0.3])
    assert [run["measurement"]["steps"] for run in done["runs"]] == [10, 11]
    stored = [h for h in client.get("/v1/hardware").json()["items"] if h["name"] == name]
    assert stored[0]["provenance"] == "measured just now"
    accuracy = client.get("/v1/accuracy?hardware=l4&graph=sha256:g").json()["items"]
    assert accuracy[0]["count"] >= 2 and accuracy[0]["hardware_name"] == "l4"
    errors = accuracy[0]["median_absolute_error"]
    assert 0.2 <= errors["iteration"] <= 0.3
    assert errors["peak"] == pytest.approx(0.05) and errors["communication"] is None
    metrics = client.get("/metrics").text
    assert 'shardwise_prediction_relative_error_count{device_kind="cpu",quantity="peak"}' in metrics
    recent = 'shardwise_recent_prediction_error_ratio{device_kind="cpu",quantity="iteration"} '
    errors = [line.removeprefix(recent) for line in metrics.splitlines() if recent in line]
    assert len(errors) == 1 and 0.2 <= float(errors[0]) <= 0.3
    assert 'shardwise_reports_total{outcome="refused"}' in metrics
    body = {"launches": [done["id"]]}
    refitted = client.post("/v1/hardware/l4/refits", json=body)
    assert refitted.status_code == 201, refitted.text
    version = refitted.json()
    assert version["previous_id"] == load_hardware("l4").id
    assert "from 2 runs" in version["provenance"]
    assert client.post("/v1/hardware/l4/refits", json=body).status_code == 200, "known already"
    nothing = client.post(f"/v1/hardware/{version['id']}/refits")
    assert nothing.status_code == 422 and "no runs" in nothing.json()["detail"]
    versions = client.get(f"/v1/hardware/{version['id']}/versions").json()
    assert version["id"] in [item["id"] for item in versions["items"]]
    assert versions["builtin"][0]["name"] == "l4"


def test_a_run_that_cannot_be_is_held_until_it_is_accepted(client: httpx.Client) -> None:
    """Out of accuracy, metrics and refits; the audit has who let it in."""
    agent = FakeAgent(client)
    location = launch(client, [agent.id], **of_another_graph())
    part = agent.must_claim()
    graph = part["plan"]["graph"]
    taken = agent.report(
        agent.of(part, "result", name="a", document=measurement(1.3, graph=graph)),
        agent.of(part, "result", name="b", document=measurement(1e-300, graph=graph)),
        agent.of(part, "result", name="c", document=measurement(1.3)),
        agent.of(part, "result", name="d", document=measurement(1.3, graph=graph, hardware="a100")),
        agent.of(part, "result", name="e", document=measurement(1.3, graph=graph, gpus=8)),
    )
    assert len(taken["accepted"]) == 2
    for refused, name in zip(taken["refused"], ("graph", "hardware", "gpus"), strict=True):
        assert f"document.{name}: " in refused["reason"]
        assert "is not the launch's" in refused["reason"]
    agent.say(part, "done")
    sound, held = ended(client, location)["runs"]
    assert (sound["held"], held["judged"]) == (None, None)
    assert held["held"].startswith("iteration: 1e-300 s, but the model's products alone take 0.4 s")

    def counted() -> int:
        items = client.get(f"/v1/accuracy?graph={graph}").json()["items"]
        return int(items[0]["count"]) if items else 0

    assert counted() == 1
    waiting = client.get(f"/v1/accuracy?graph={graph}").json()["held"]
    assert [run["id"] for run in waiting] == [held["id"]]
    page = location.removeprefix("/v1")
    for address in ("/accuracy", page):
        assert "products alone take 0.4 s" in client.get(address).text
    assert "Reject this run" in client.get(page).text
    at = f"{location}/runs/{held['id']}"
    for verb, verdict, count in (("accept", "accepted", 2), ("reject", "rejected", 1)):
        answer = client.post(f"{at}/{verb}")
        assert answer.status_code == 200, answer.text
        assert [run["judged"] for run in answer.json()["runs"]] == [None, verdict]
        assert counted() == count
    assert client.get(f"/v1/accuracy?graph={graph}").json()["held"] == []
    last = client.get("/v1/audit").json()["items"][0]
    assert (last["action"], last["target"]) == ("runs.reject", f"{at}/reject")
    own = {"Origin": str(client.base_url).rstrip("/")}
    clicked = client.post(f"{page}/runs/{held['id']}/accept", headers=own)
    assert (clicked.status_code, clicked.headers["Location"], counted()) == (303, page, 2)
    assert "Accepted by an administrator" in client.get(page).text
    answer = client.post(f"{location}/runs/{sound['id']}/accept")
    assert (answer.status_code, answer.json()["field"]) == (422, "run")
    assert client.post(f"{location}/runs/run_none/accept").status_code == 404


def of_another_graph() -> dict[str, Any]:
    """A launch of a plan for a graph of its own, so that no other test's runs are counted."""
    return {**OF_PLAN, "plan": {**OF_PLAN["plan"], "graph": f"sha256:{uuid.uuid4().hex}"}}


def test_profiles_only_come_from_what_measures_them(client: httpx.Client) -> None:
    agent = FakeAgent(client)
    profile = hardware_document(load_hardware("l4"))
    much = {**profile, "devices": [{**profile["devices"][0], "memory_bandwidth_bytes_per_s": 1e30}]}
    launch(client, [agent.id], **OF_PLAN)
    part = agent.must_claim()
    of_a_run = agent.report(agent.of(part, "result", name="p", document=profile))
    assert "a profile from a launch that runs a plan" in of_a_run["refused"][0]["reason"]
    agent.say(part, "done")
    launch(client, [agent.id])
    part = agent.must_claim()
    nameless = agent.report(
        agent.of(part, "result", name="p", document=profile),
        agent.of(part, "result", name="q", document=measurement(1.0)),
        agent.of(part, "result", name="r", document={**much, "name": "of-nobody"}),
    )
    reasons = [refused["reason"] for refused in nameless["refused"]]
    assert "name: 'l4' is another profile" in reasons[0]
    assert "the launch runs no plan" in reasons[1]
    assert "4 times that of the built-in profiles" in reasons[2]
    agent.say(part, "done")


def test_launches_that_make_no_sense_are_refused(client: httpx.Client) -> None:
    plan = {"schema": "shardwise.plan/1", "id": "sha256:x", "graph": "sha256:none",
            "hardware": "l4", "gpus": 4, "predicted": {}}  # fmt: skip
    mixed = {**plan, "schema": "shardwise.pipeline/1", "bundle": "v100=2,p100=2"}
    for body, status, field in (
        ({}, 422, "plan"),
        ({"plan": mixed}, 422, "plan.bundle"),
        ({"kind": "dance"}, 422, "kind"),
        ({"plan": {"schema": "other/1"}}, 422, "plan.schema"),
        (
            {"plan": {**plan, "schema": "shardwise.plan/2", "order": _order(2**20)}},
            422,
            "plan.order.rows",
        ),
        ({"plan": plan, "agents": 3}, 422, "agents"),
        ({"plan": plan, "agents": 2, "ranks_per_agent": 1}, 422, "ranks_per_agent"),
        ({"plan": plan}, 404, None),
        ({"plan_id": "sha256:none"}, 404, None),
        ({"kind": "measure", "agents": 0}, 422, "agents"),
        ({"kind": "measure", "agents": ["a", "a"]}, 422, "agents"),
        ({"kind": "measure", "agents": ["nobody"]}, 404, None),
        ({"kind": "measure", "entry_point": "../../bin/sh"}, 422, "entry_point"),
        ({"kind": "measure", "environment": {"A=B": "c"}}, 422, "environment.A=B"),
        ({"kind": "measure", "arguments": ["x" * 5000]}, 422, "arguments[0]"),
        ({"kind": "measure", "master_port": 22}, 422, "master_port"),
        ({"kind": "measure", "time_limit_s": -1}, 422, "time_limit_s"),
        ({"kind": "measure", "plan": plan}, 422, "plan"),
    ):
        answer = client.post("/v1/launches", json=body)
        assert (answer.status_code, answer.json().get("field")) == (status, field), answer.text


def test_a_folded_plan_reaches_agents_whole(client: httpx.Client) -> None:
    """They may be of releases that read version 1 alone."""
    agent = FakeAgent(client)
    plan = {**OF_PLAN["plan"], "schema": "shardwise.plan/2", "order": _order(8)}
    launch(client, [agent.id], **{**OF_PLAN, "plan": plan})
    part = agent.must_claim()
    assert part["plan"] == {**OF_PLAN["plan"], "order": [f"op{k}" for k in range(8)]}
    agent.say(part, "done")


def _order(times: int) -> dict[str, Any]:
    return {"templates": {"a": "op{0}"}, "rows": [{"repeat": times, "rows": ["a:{0+1k}"]}]}


def test_a_launch_is_made_once_for_its_key(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"kind": "measure", "agents": 900}
    first, again = (client.post("/v1/launches", json=body, headers=headers) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    client.delete(first.json()["location"])
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    tokens = [
        client.post("/v1/agents/tokens", json={}, headers=headers).json()["token"] for _ in "12"
    ]
    inventories = {"inventory": inventory()}
    statuses = [
        client.post("/v1/agents", json={"token": token, **inventories}).status_code
        for token in tokens
    ]
    assert statuses == [401, 201], "a repeat makes the first token worthless"


def test_a_second_service_places_and_answers_too(own_system: System) -> None:
    """Two processes on one database: the launch is made at one, the agent waits at the other."""
    if own_system.kind == "embedded":
        pytest.skip("an embedded service is one process; test_gangs.py races two on SQLite")
    other = Service(own_system.folder, **own_system.variables)
    try:
        agent = FakeAgent(own_system.client, "at-the-first")
        claimed: list[Any] = []
        thread = threading.Thread(target=lambda: claimed.append(agent.claim(wait_s=20)))
        thread.start()
        location = launch(other.client, [agent.id])
        thread.join(30)
        assert claimed[0] is not None
        agent.client = other.client
        agent.say(claimed[0], "done")
        assert ended(own_system.client, location)["state"] == "done"
    finally:
        other.stop()
