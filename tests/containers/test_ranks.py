"""Ranks of a launch on containers: they are killed or stopped, and so are whole hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.agent.agent_harness import wait_for
from harness.agent.cluster import HOSTS, Cluster, running_cluster
from harness.containers.agent_hosts import ContainerHosts, container_hosts

pytestmark = [pytest.mark.engine, pytest.mark.needs("debootstrap"), pytest.mark.torch]

LEASE_S = 30
STOPPED_S = 3.0
CLEAR_S = 240.0
"""Patience for a lease and what follows it, on a loaded machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("hosts")
    with (
        container_hosts(folder) as network,
        running_cluster(folder, lease_s=LEASE_S, network=network) as running,
    ):
        yield running


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[ContainerHosts]:
    assert isinstance(cluster.network, ContainerHosts)
    yield cluster.network
    cluster.assert_no_orphan()


def held(cluster: Cluster, name: str) -> tuple[str, list[int], Path]:
    """Starts a rank on every host. Returns the launch, the ranks' processes by rank, and the file
    for which they wait."""
    go = cluster.folder / name
    launch = cluster.launch("hold", str(go), agents=HOSTS)
    return launch, [cluster.joined(launch, rank) for rank in range(HOSTS)], go


def host_of(cluster: Cluster, launch: str, rank: int) -> int:
    """Returns the host of a rank: each has one."""
    (part,) = [p for p in cluster.document(launch)["assignments"] if p["node_rank"] == rank]
    names = {cluster.agent(host)["id"]: host for host in range(HOSTS)}
    return names[part["agent"]]


def runs_again(cluster: Cluster) -> None:
    for host in range(HOSTS):
        wait_for(lambda host=host: cluster.agent(host)["state"] == "live", "all are live", CLEAR_S)
    cluster.wait_state(cluster.launch("ring", agents=HOSTS), "done")


def test_a_killed_rank_fails_the_launch_on_every_host(
    cluster: Cluster, hosts: ContainerHosts
) -> None:
    launch, processes, _ = held(cluster, "killed")
    hosts.signal(host_of(cluster, launch, 1), processes[1], "KILL")
    document = cluster.wait_state(launch, "failed")
    assert "signal 9" in document["reason"]
    assert all(part["state"] in ("failed", "stopped") for part in document["assignments"])
    runs_again(cluster)


def test_a_rank_that_stops_for_a_while_is_waited_for(
    cluster: Cluster, hosts: ContainerHosts
) -> None:
    launch, processes, go = held(cluster, "stopped")
    host = host_of(cluster, launch, 2)
    hosts.signal(host, processes[2], "STOP")
    go.touch()
    time.sleep(STOPPED_S)
    assert cluster.document(launch)["state"] == "running"
    hosts.signal(host, processes[2], "CONT")
    cluster.wait_state(launch, "done")


def test_a_host_that_hangs_loses_the_launch_and_comes_back(
    cluster: Cluster, hosts: ContainerHosts
) -> None:
    launch, _, _ = held(cluster, "frozen")
    hosts.freeze(2)
    try:
        document = cluster.wait_state(launch, "lost", "failed")
        assert document["reason"]
        for host in (0, 1):
            wait_for(lambda host=host: not cluster.processes(host), "the others' end", CLEAR_S)
    finally:
        hosts.thaw(2)
    # Its own lease ended meanwhile.
    wait_for(lambda: not cluster.processes(2), "its ranks' end", CLEAR_S)
    runs_again(cluster)


def test_a_host_that_dies_loses_the_launch_and_comes_back(
    cluster: Cluster, hosts: ContainerHosts
) -> None:
    launch, _, _ = held(cluster, "dead")
    hosts.restart(1)
    cluster.agents[1].wait(60)
    assert cluster.wait_state(launch, "lost", "failed")["reason"]
    for host in range(HOSTS):
        wait_for(lambda host=host: not cluster.processes(host), "the end of its ranks", CLEAR_S)
    cluster.start_agent(1)
    runs_again(cluster)
