"""Hosts of two kinds under a real service: measured by one launch, run by another, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.agent.agent_harness import wait_for
from harness.agent.cluster import Cluster, running_cluster
from harness.commands import succeed
from harness.execute.mixed import profile as mixed_profile
from shardwise.hardware import hardware_from_document

pytestmark = pytest.mark.torch

SOURCE = "zoo:mlp:layers=2,inputs=64,hidden=128,classes=8,batch=32"
SETTINGS = {0: 'kind = "slow"\nslowed = 2.0', 1: 'kind = "fast"', 2: 'kind = "fast"'}
MEASURING = ["--time-limit=5", "--max-size=64KiB", "--collectives", "--quiet"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kinds")
    with running_cluster(folder, lease_s=30, settings=SETTINGS) as running:
        yield running
        running.assert_no_orphan()


def _launch(cluster: Cluster, **request: Any) -> str:
    answer = cluster.http.post("/v1/launches", json=request)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
def profile(cluster: Cluster) -> dict[str, Any]:
    """The profile that one measurement on a fast and a slow host has made."""
    hosts = [cluster.agent(host)["id"] for host in (1, 0)]
    launch = _launch(
        cluster,
        kind="measure",
        agents=hosts,
        ranks_per_agent=1,
        hardware="two-kinds",
        arguments=MEASURING,
    )
    cluster.wait_state(launch, "done")
    items = cluster.http.get("/v1/hardware").json()["items"]
    (found,) = [item["id"] for item in items if item["name"] == "two-kinds"]
    document: dict[str, Any] = cluster.http.get(f"/v1/hardware/{found}").json()
    return document


@pytest.fixture(scope="module")
def plan(cluster: Cluster) -> dict[str, Any]:
    """A plan on both kinds, whose graph the service has."""
    graph, hardware, plan = (cluster.folder / n for n in ("graph.json", "hw.json", "plan.json"))
    succeed("capture", SOURCE, "-o", str(graph))
    assert cluster.http.post("/v1/graphs", content=graph.read_bytes()).status_code == 201
    # Slow links and fast devices would leave one kind idle: then there is nothing to place.
    quick = {"bandwidth_bytes_per_s": 1e12, "latency_s": 0.0, "efficiency": 1.0}
    known = mixed_profile()
    first = known["devices"][0]
    flops = {"fast": 2e6, "slow": 1e6}
    known["devices"] = [
        {**first, "kind": kind, "peak_flops_per_s": {"float32": speed, "float64": speed}}
        for kind, speed in flops.items()
    ]
    one = {"nodes": 1, "per_node": 1, "inside": quick, "network": quick}
    known["groups"] = [{"name": kind, "kind": kind, **one} for kind in flops]
    hardware.write_text(json.dumps(known))
    bundle = ["--gpus", "fast=1,slow=1", "--micro-batches", "1", "--time-limit", "10"]
    succeed("plan", str(graph), "--hardware", str(hardware), *bundle, "-o", str(plan))
    document: dict[str, Any] = json.loads(plan.read_bytes())
    assert [block["group"] for block in document["cluster"]["blocks"]] == ["fast", "slow"]
    return document


@pytest.mark.full
def test_one_measurement_of_hosts_of_two_kinds_gives_a_profile_with_groups(
    profile: dict[str, Any],
) -> None:
    hardware = hardware_from_document(profile)
    assert [(g.name, g.nodes, g.per_node) for g in hardware.groups] == [
        ("fast", 1, 1),
        ("slow", 1, 1),
    ]
    assert {table.groups for table in hardware.collectives} == {("fast", "slow")}
    assert [kind["slowed"] for kind in hardware.measurement["kinds"]] == [1.0, 2.0]


def test_a_launch_takes_hosts_of_the_kinds_of_its_plan_in_order(
    cluster: Cluster, plan: dict[str, Any]
) -> None:
    launch = _launch(cluster, plan=plan, arguments=["--steps=2", "--warm-up=1"])
    ended = cluster.wait_state(launch, "done")
    names = [part["agent_name"] for part in ended["assignments"]]
    assert len(names) == 2
    assert names[0] in ("host1", "host2") and names[1] == "host0"
    (run,) = ended["runs"]
    assert run["device_kind"] == "1 fast, 1 slow"


def test_hosts_of_other_kinds_are_not_taken(cluster: Cluster, plan: dict[str, Any]) -> None:
    wrong = [cluster.agent(host)["id"] for host in (0, 1)]
    launch = _launch(cluster, plan=plan, agents=wrong, arguments=["--steps=1"])

    def refused() -> str:
        reason = str(cluster.document(launch)["reason"])
        return reason if "of another kind" in reason else ""

    reason = wait_for(refused, "a reason")
    assert "node 0 needs an agent with 1 free slots of fast" in reason
    cluster.http.delete(f"/v1/launches/{launch}")
    for body, field in (
        ({"agents": 3}, "agents"),
        ({"ranks_per_agent": 1}, "ranks_per_agent"),
        ({"device_kind": "fast"}, "device_kind"),
    ):
        answer = cluster.http.post("/v1/launches", json={"plan": plan, **body})
        assert answer.status_code == 422, answer.text
        assert field in answer.text
