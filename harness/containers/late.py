"""A link that is late: a process between a container and its network keeps each packet a while.

    container -- route of a table of its own -- TUN -- this process waits -- raw socket -- link

The kernel's netem, which would do it, is not in every kernel; TUN is. What the process sends is
marked, and marked packets take the usual routes. When it ends, the device goes and with it the
detour. Delays are of what the container sends, one way.

    python harness/containers/late.py NETWORK=SECONDS…      in the container's network, by nsenter
"""

from __future__ import annotations

import fcntl
import heapq
import ipaddress
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MARK, TABLE, DEVICE = "7", "77", "late0"
SO_MARK, SO_SNDBUFFORCE = 36, 32
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
WAITING = 8192
"""Packets that may wait before they are read, and, as bytes of MTU, after they are sent."""
READY_S = 20.0

Delays = Mapping[ipaddress.IPv4Network, float]


@contextmanager
def late(pid: int, delays: Mapping[str, float]) -> Iterator[None]:
    """Delays what a process' network sends to other networks, by these networks in seconds."""
    words = [f"{network}={delay_s}" for network, delay_s in delays.items()]
    inside = ["nsenter", "--target", str(pid), "--net"]
    process = subprocess.Popen(
        [*inside, sys.executable, str(Path(__file__)), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        assert ready and process.stdout.readline() == "ready\n", "no packet is delayed"
        yield
    finally:
        process.kill()
        process.wait()
        # It is gone already where the container has been started anew.
        undo = [*inside, "ip", "rule", "del", "table", TABLE]
        subprocess.run(undo, capture_output=True, check=False)


def main(words: list[str]) -> None:
    """Delays packets until killed; prints `ready` once it does."""
    given = (word.rpartition("=") for word in words)
    delays = {ipaddress.IPv4Network(network): float(delay_s) for network, _, delay_s in given}
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    out.setsockopt(socket.SOL_SOCKET, SO_MARK, int(MARK))
    # Or the process would wait for a slow link while packets that it does not read are lost.
    out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, WAITING * MTU)
    _detour(delays)
    print("ready", flush=True)
    forward(device, out, delays)


def forward(device: int, out: socket.socket, delays: Delays) -> None:
    """Reads packets and sends each when it has waited; never returns."""
    waiting: list[tuple[float, int, bytes, str]] = []
    number = 0
    while True:
        pause_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        if select.select([device], [], [], pause_s)[0]:
            packet = os.read(device, 2 * MTU)
            if packet[0] >> 4 == 4:
                number += 1
                to = ipaddress.IPv4Address(packet[16:20])
                delay_s = max((s for network, s in delays.items() if to in network), default=0.0)
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, packet, str(to)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, packet, address = heapq.heappop(waiting)
            try:
                out.sendto(packet, (address, 0))
            except OSError:
                continue  # Lost, as where a queue is full or the network is away.


def _detour(delays: Delays) -> None:
    """Routes these networks to the device, from the address that would be taken without it."""
    # What comes back by another interface than it would leave by must not be dropped for that.
    for switch in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
        switch.write_text("0")
    _ip("link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", str(WAITING), "up")
    for network in delays:
        usual = _ip("-oneline", "route", "get", str(next(network.hosts()))).split()
        source = usual[usual.index("src") + 1]
        _ip("route", "add", str(network), "dev", DEVICE, "src", source, "table", TABLE)
    _ip("rule", "add", "not", "fwmark", MARK, "table", TABLE)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
