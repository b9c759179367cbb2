"""The real service is killed under two hosts' launch; the lease is longer than its absence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.agent.agent_harness import wait_for
from harness.agent.cluster import HOSTS, Cluster, running_cluster

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), lease_s=180) as running:
        yield running
        running.assert_no_orphan()


@pytest.mark.full
def test_a_launch_outlives_a_killed_service(cluster: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    launch = cluster.launch("hold", str(go), agents=2)
    for rank in range(2):
        cluster.joined(launch, rank)
    cluster.kill_service()
    cluster.restart_service()
    assert cluster.document(launch)["state"] == "running"
    go.touch()
    cluster.wait_state(launch, "done")
    for rank in range(2):
        assert f"rank {rank} of 2 says 3" in cluster.lines(launch, rank)


@pytest.mark.full
def test_an_end_in_the_service_s_absence_is_reported_later(
    cluster: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    launch = cluster.launch("hold", str(go), agents=2)
    for rank in range(2):
        cluster.joined(launch, rank)
    cluster.kill_service()
    go.touch()
    for host in range(HOSTS):
        wait_for(lambda host=host: not cluster.processes(host), "the ranks' end")
    cluster.restart_service()
    cluster.wait_state(launch, "done")
    for rank in range(2):
        assert f"rank {rank} of 2 says 3" in cluster.lines(launch, rank)
