"""Three agents and the real service: a launch on two hosts, and each of them killed or cut off."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.agent.agent_harness import ROOT, wait_for
from harness.agent.cluster import HOSTS, Cluster, running_cluster

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), lease_s=15) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_stays(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.assert_no_orphan()


@pytest.mark.full
def test_a_launch_on_two_hosts_runs_to_the_end(cluster: Cluster) -> None:
    launch = cluster.launch("ring", agents=2, ranks=2)
    document = cluster.wait_state(launch, "done")
    assert {part["state"] for part in document["assignments"]} == {"done"}
    for rank in range(4):
        assert f"rank {rank} of 4 says 10" in cluster.lines(launch, rank)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["wrong", "replayed"])
def test_a_wrong_or_replayed_token_enrols_no_agent(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    token = "swe_wrong"
    if kind == "replayed":
        token = cluster.token()
        inventory = {"schema": "shardwise.inventory/1", "slots": 1}
        first = cluster.http.post(
            "/v1/agents", json={"token": token, "name": "first", "inventory": inventory}
        )
        assert first.status_code == 201
        cluster.http.delete(f"/v1/agents/{first.json()['id']}")
    done = subprocess.run(
        cluster.command(0, tmp_path / "data", token),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "refuses the enrolment" in done.stderr
    assert not (tmp_path / "data" / "identity.json").exists()


@pytest.mark.full
def test_a_killed_rank_fails_the_launch_on_every_host(cluster: Cluster, tmp_path: Path) -> None:
    launch = cluster.launch("hold", str(tmp_path / "go"), agents=2, ranks=2)
    pids = [cluster.joined(launch, rank) for rank in range(4)]
    os.kill(pids[3], signal.SIGKILL)
    document = cluster.wait_state(launch, "failed")
    assert "signal 9" in document["reason"]
    assert all(part["state"] in ("failed", "stopped") for part in document["assignments"])


@pytest.mark.full
def test_a_killed_agent_loses_the_launch_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    launch = cluster.launch("hold", str(tmp_path / "go"), agents=HOSTS)
    for rank in range(HOSTS):
        cluster.joined(launch, rank)
    cluster.kill_agent(1)
    # Its ranks end without it, those of the others when the launch is lost.
    wait_for(lambda: not cluster.processes(1), "no orphan of host1")
    document = cluster.wait_state(launch, "lost", "failed")
    assert document["reason"]
    cluster.start_agent(1)
    again = cluster.launch("ring", agents=HOSTS)
    cluster.wait_state(again, "done")


@pytest.mark.needs("iproute2")
def test_a_cut_link_loses_the_launch_and_stops_it_on_both_sides(
    cluster: Cluster, tmp_path: Path
) -> None:
    if not cluster.network.separate:
        pytest.skip("a link can be cut only between network namespaces, which only root makes")
    hosts = [cluster.agent(host)["id"] for host in (0, 2)]
    launch = cluster.launch("hold", str(tmp_path / "go"), agents=hosts)
    pids = [cluster.joined(launch, rank) for rank in range(2)]
    assert len(set(pids)) == 2
    cluster.network.cut(2)
    try:
        # Nothing reaches host2: its own lease ends.
        cluster.assert_no_orphan()
        document = cluster.wait_state(launch, "lost", "failed")
        assert document["reason"]
    finally:
        cluster.network.mend(2)
    assert "the lease has expired" in cluster.log(2)
    wait_for(lambda: cluster.agent(2)["state"] == "live", "host2 live again")
    again = cluster.launch("ring", agents=hosts)
    cluster.wait_state(again, "done")


@pytest.mark.full
def test_a_launch_is_stopped_on_every_host(cluster: Cluster, tmp_path: Path) -> None:
    launch = cluster.launch("hold", str(tmp_path / "go"), agents=HOSTS)
    for rank in range(HOSTS):
        cluster.joined(launch, rank)
    assert cluster.http.delete(f"/v1/launches/{launch}").status_code in (200, 202, 204)
    cluster.wait_state(launch, "stopped")
