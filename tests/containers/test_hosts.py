"""Containers as hosts in two racks: links have the bandwidth that was set, also after a change."""

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
from shardwise.answers import Options, plan
from shardwise.documents import Plan
from shardwise.hardware import hardware_from_document

pytestmark = [pytest.mark.engine, pytest.mark.torch]

CARD, UPLINK = 60.0, 20.0
SOON_S = 0.01
"""What the fastest of some round trips takes besides what was set, on a busy machine."""
NEAR = 0.1
"""How far a measured bandwidth may be from the one that was set."""
MEASURE_S = 90.0
CARDS, DELAY_S = (40.0, 20.0, 10.0), 0.02
"""Megabits a second, each half of the one before."""
DATA = 1 - 66 / 1500
"""Of a link's bandwidth, what is not headers (harness/containers/shaped.py)."""
LONG = "64KiB"
"""Much against the 8 kB that pass a link at once after a pause."""
WIDE = ("zoo:mlp:layers=2,inputs=8192,hidden=64,classes=16,batch=64",)
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


ANSWER = """\
import socket
listener = socket.create_server(("0.0.0.0", 5002))
connection, _ = listener.accept()
while block := connection.recv(1):
    connection.sendall(block)
"""
ASK = """\
import socket, sys, time
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 5002))
        break
    except OSError:
        time.sleep(0.1)
taken = []
for _ in range(30):
    began = time.monotonic()
    connection.sendall(b"?")
    connection.recv(1)
    taken.append(time.monotonic() - began)
print(min(taken))
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShapedHosts, Path]]:
    shared = tmp_path_factory.mktemp("four")
    with shaped_hosts(shared, ("a", "b"), ("c", "d")) as hosts:
        yield hosts, shared


def strategy(plan: Plan) -> list[tuple[Any, ...]]:
    return [(group.split, group.zero, group.recompute) for group in plan.groups]


def test_half_the_bandwidth_changes_the_advice_to_what_is_faster_then(tmp_path: Path) -> None:
    """The first layer's inputs are gathered over hosts in one message, or exchanged and its outputs
    summed: more messages of fewer bytes, which pays where bytes take longer than delays. Where that
    is depends on the machine too: the card is halved until it is passed."""
    graph = captured_source(*WIDE).graph
    with shaped_hosts(tmp_path, ("a", "b")) as hosts, hosts.delayed(DELAY_S, 0.0):
        advised: list[Plan] = []
        for card in CARDS:
            hosts.shape(Bandwidths(card))
            profile = measured_profile(
                hosts, tmp_path, per_host=2, time_limit_s=240.0, max_size="1MiB",
                arguments=["--collectives", "--min-size", "16KiB", "--step", "8"],
            )  # fmt: skip
            assert profile["levels"][0]["latency_s"] < DELAY_S / 4, "only hosts are far apart"
            options = Options(micro_batches=(1,), time_limit_s=60.0)
            advised.append(plan(graph, hardware_from_document(profile), 4, options=options))
            print(card, advised[-1].predicted.replayed_time_s, strategy(advised[-1]))
            if strategy(advised[0]) != strategy(advised[-1]):
                break
        full, half = advised[-2:]
        assert strategy(full) != strategy(half)
        times = plan_times(
            hosts, tmp_path, WIDE, [full, half, full, half], per_host=2, warm_up=1, steps=7
        )
    print([known["iteration"] for known in times])
    of_full, of_half = (min(known["iteration"] for known in times[n::2]) for n in (0, 1))
    assert of_half < of_full


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


def test_a_profile_of_racks_has_three_levels_with_the_bandwidths_that_were_set(
    four: tuple[ShapedHosts, Path],
) -> None:
    hosts, shared = four
    hosts.shape(Bandwidths(CARD / 2, UPLINK / 2))
    profile = measured_profile(
        hosts, shared, per_host=2, time_limit_s=MEASURE_S, max_size="512KiB",
        arguments=["--collectives", "--nodes-per-rack", "2", "--operations", "all_reduce",
                   "--min-size", LONG, "--step", "8"],
    )  # fmt: skip
    inside, across, between = profile["levels"]
    assert [level["size"] for level in profile["levels"]] == [2, 2, 2]
    print([level["bandwidth_bytes_per_s"] * 8e-6 for level in profile["levels"]])
    assert between["uplinks"]
    assert across["bandwidth_bytes_per_s"] * 8e-6 == pytest.approx(DATA * CARD / 2, rel=NEAR)
    assert between["bandwidth_bytes_per_s"] * 8e-6 == pytest.approx(DATA * UPLINK / 2, rel=NEAR)
    assert inside["bandwidth_bytes_per_s"] > 2 * across["bandwidth_bytes_per_s"]


def round_trip_s(hosts: ShapedHosts, source: int, target: int) -> float:
    """Returns the shortest of some round trips of a byte: others waited for a core."""
    thread = threading.Thread(target=hosts.hosts[target].run, args=(sys.executable, "-c", ANSWER))
    thread.start()
    took = hosts.hosts[source].run(sys.executable, "-c", ASK, hosts.addresses[target])
    thread.join()
    return float(took)


def test_links_have_the_delay_that_was_set(four: tuple[ShapedHosts, Path]) -> None:
    hosts, _ = four
    hosts.shape(Bandwidths(CARD, UPLINK))
    for in_rack_s, between_racks_s in ((0.01, 0.04), (0.03, 0.02)):
        with hosts.delayed(in_rack_s, between_racks_s):
            pairs = ((0, 1, in_rack_s), (0, 2, between_racks_s), (3, 1, between_racks_s))
            for source, target, wanted_s in pairs:
                took_s = round_trip_s(hosts, source, target)
                assert 2 * wanted_s <= took_s < 2 * wanted_s + SOON_S
    assert round_trip_s(hosts, 0, 2) < SOON_S


def test_links_have_the_bandwidth_that_was_set(four: tuple[ShapedHosts, Path]) -> None:
    """Inside a rack that of a card, between racks that of the uplink, which two hosts share."""
    hosts, _ = four
    for card, uplink in ((CARD, UPLINK), (CARD / 2, UPLINK / 2)):
        hosts.shape(Bandwidths(card, uplink))
        for source, target, wanted in ((0, 1, card), (3, 2, card), (0, 2, uplink), (3, 1, uplink)):
            assert megabits(hosts, source, target, wanted) == pytest.approx(wanted, rel=NEAR)
