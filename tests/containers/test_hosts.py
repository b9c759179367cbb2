"""Containers as hosts in two racks: links have the bandwidth that was set, also after a change."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.containers.shaped import Bandwidths, ShapedHosts, shaped_hosts

pytestmark = pytest.mark.engine

CARD, UPLINK = 60.0, 20.0
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
