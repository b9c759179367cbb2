"""Containers as hosts with links of a set bandwidth: what they measure is what was set, plans run
between them, and half the bandwidth is seen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from harness.containers.host_runs import measured_profile, plan_times
from harness.containers.shaped import Bandwidths, ShapedHosts, shaped_hosts
from harness.execute.sources import captured_source
from shardwise.advise import Options, plan
from shardwise.hardware import hardware_from_document

pytestmark = pytest.mark.engine

CARD, UPLINK = 60.0, 20.0
SOURCE = ("zoo:mlp:layers=2,inputs=128,hidden=256,classes=8,batch=64",)
NEAR = 0.1
"""How far a measured bandwidth may be from the one that was set."""
RECEIVE = """\
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 5001))
connection, _ = listener.accept()
connection.recv(1 << 16)
began, count = time.monotonic(), 0
while block := connection.recv(1 << 20):
    count += len(block)
print(count * 8e-6 / (time.monotonic() - began))
"""
SEND = """\
import socket, sys, time
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 5001))
        break
    except OSError:
        time.sleep(0.1)
for _ in range(int(float(sys.argv[2]) * 2e6 / 8) >> 16):
    connection.sendall(bytes(1 << 16))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShapedHosts, Path]]:
    shared = tmp_path_factory.mktemp("two")
    with shaped_hosts(shared, ("a", "b")) as hosts:
        yield hosts, shared


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShapedHosts, Path]]:
    shared = tmp_path_factory.mktemp("four")
    with shaped_hosts(shared, ("a", "b"), ("c", "d")) as hosts:
        yield hosts, shared


def megabits(hosts: ShapedHosts, source: int, target: int, set_to: float) -> float:
    """Returns the megabits a second of two seconds' worth of data from one host to another."""
    printed: list[str] = []
    receive = (sys.executable, "-c", RECEIVE)
    thread = threading.Thread(target=lambda: printed.append(hosts.hosts[target].run(*receive)))
    thread.start()
    address = hosts.addresses[target]
    hosts.hosts[source].run(sys.executable, "-c", SEND, address, str(set_to))
    thread.join()
    return float(printed[0])


def test_links_have_the_bandwidth_that_was_set(four: tuple[ShapedHosts, Path]) -> None:
    """Inside a rack that of a card, between racks that of the uplink, which two hosts share."""
    hosts, _ = four
    for card, uplink in ((CARD, UPLINK), (CARD / 2, UPLINK / 2)):
        hosts.shape(Bandwidths(card, uplink))
        for source, target, wanted in ((0, 1, card), (3, 2, card), (0, 2, uplink), (3, 1, uplink)):
            assert megabits(hosts, source, target, wanted) == pytest.approx(wanted, rel=NEAR)


def measured(two: tuple[ShapedHosts, Path], card: float) -> dict[str, Any]:
    hosts, shared = two
    hosts.shape(Bandwidths(card))
    return measured_profile(
        hosts, shared, per_host=2, time_limit_s=60.0, max_size="256KiB",
        arguments=["--step", "4", "--collectives"],
    )  # fmt: skip


def test_two_hosts_measure_their_card_and_run_a_plan(two: tuple[ShapedHosts, Path]) -> None:
    """At half the bandwidth they measure half, and the same plan communicates longer."""
    hosts, shared = two
    profiles = [measured(two, card) for card in (CARD / 2, CARD)]
    for profile, card in zip(profiles, (CARD / 2, CARD), strict=True):
        inside, between = profile["levels"]
        assert (inside["name"], between["name"]) == ("inside a node", "between nodes")
        assert (profile["nodes"], inside["size"], between["size"]) == (2, 2, 2)
        assert between["bandwidth_bytes_per_s"] * 8e-6 == pytest.approx(card, rel=2 * NEAR), (
            "on a busy machine collectives reach less"
        )
        assert inside["bandwidth_bytes_per_s"] > 2 * between["bandwidth_bytes_per_s"]
    graph = captured_source(*SOURCE).graph
    options = Options(micro_batches=(1,), zero=(0,), time_limit_s=10.0)
    advised = plan(graph, hardware_from_document(profiles[1]), 4, options=options)
    assert advised.nodes == 2
    took = []
    for card in (CARD, CARD / 8):
        hosts.shape(Bandwidths(card))
        took += plan_times(
            hosts, shared, SOURCE, [advised], per_host=2, warm_up=1, steps=2, alone=3
        )
    assert took[0]["communication"] < took[1]["communication"]
