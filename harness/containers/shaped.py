"""Containers as hosts on links of a set bandwidth, in one rack or in two.

    host: ranks -- loopback, not shaped -- ranks
      |  card: tbf on the host's own interface, what it sends
    rack: a network of the engine's
      |  uplink: tbf on the router's interface in each rack, what the rack is sent
    router

What crosses racks passes cards and uplinks (`uplinks` of a profile's level, docs/hardware.md). All
ways are shaped in both directions. tbf counts whole frames: of a card's bandwidth 1 - 66 / MTU is
data (52 bytes of TCP and IP, 14 of Ethernet). Nothing is delayed but by `delayed`: netem, which is
made for it, is not in every kernel.
"""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.containers.debian import image
from harness.containers.hosts import Host, address, end_commands, endpoint, hosts, inspected
from harness.containers.late import late

QUEUE = "4mb"
"""What waits before a slow interface: more than ranks send at once, so that nothing is lost. A
collective in which the last packet is lost waits 0.2 s and more for it."""
BURST = "8kb"
"""What passes at once after a pause. tbf cuts larger packets, which htb lets pass whole: 64 KiB."""
PORT = 29500
FLAGS = (
    "--cpu-shares", "64",
    # What a connection sends at once is neither a guess at the link's bandwidth nor forgotten
    # between messages, whatever the machine's own default is.
    "--sysctl", "net.ipv4.tcp_congestion_control=reno",
    "--sysctl", "net.ipv4.tcp_slow_start_after_idle=0",
)  # fmt: skip


@dataclass(frozen=True)
class Bandwidths:
    """Megabits per second one way: of each host's card, and of each rack's uplink."""

    card: float
    uplink: float | None = None


class ShapedHosts:
    """Hosts in their order, rack by rack, with `addresses` in the order of the hosts."""

    def __init__(
        self, racks: Sequence[Sequence[Host]], router: Host | None, uplinks: Sequence[str]
    ) -> None:
        self.hosts = [host for rack in racks for host in rack]
        self.addresses = [address(host) for host in self.hosts]
        self._racks, self._router, self._uplinks = racks, router, uplinks

    def shape(self, bandwidths: Bandwidths) -> None:
        """Sets all links; those in use have their new bandwidth at once."""
        for host in self.hosts:
            _limit(host, "eth0", bandwidths.card)
        if self._router is not None:
            assert bandwidths.uplink is not None, "two racks have an uplink"
            for interface in self._uplinks:
                _limit(self._router, interface, bandwidths.uplink)

    @contextmanager
    def delayed(self, in_rack_s: float, between_racks_s: float) -> Iterator[None]:
        """Delays what hosts send to others of their rack, and to other racks; one way, seconds.

        Each delay takes a process that sees every packet: for links of tens of megabits.
        """
        networks = [_network(rack[0]) for rack in self._racks]
        with ExitStack() as running:
            for own, rack in zip(networks, self._racks, strict=True):
                delays = {
                    network: in_rack_s if network == own else between_racks_s
                    for network in networks
                }
                for host in rack:
                    running.enter_context(late(_process(host), delays))
            yield

    def torchrun(
        self, per_host: int, *arguments: str, variables: Mapping[str, str], timeout_s: float
    ) -> str:
        """Runs ranks on every host by torchrun; returns what the first host's print.

        Raises AssertionError, with the end of what it printed, if one fails.
        """
        started = []
        for number, host in enumerate(self.hosts):
            own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **variables}
            words = [word for key, value in own.items() for word in ("-e", f"{key}={value}")]
            started.append(
                subprocess.Popen(
                    ["docker", "exec", *words, host.container, *_torchrun(
                        len(self.hosts), number, per_host, self.addresses[0]), *arguments],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip
        try:
            printed = [process.communicate(timeout=timeout_s)[0] for process in started]
        except subprocess.TimeoutExpired:
            for host in self.hosts:
                end_commands(host)
            raise
        finally:
            for process in started:
                process.kill()
        for host, process, text in zip(self.hosts, started, printed, strict=True):
            assert process.returncode == 0, f"{host.name}: {text[-3000:]}"
        return printed[0]


@contextmanager
def shaped_hosts(shared: Path, *racks: Sequence[str]) -> Iterator[ShapedHosts]:
    """Yields hosts with these names in one rack or two, their links as fast as the machine's.

    All see the folder `shared`. Skips the test where there is no container engine, or no tc.
    """
    if shutil.which("tc") is None or shutil.which("nsenter") is None:
        pytest.skip("needs tc and nsenter: sudo apt-get install iproute2 util-linux")
    tag = image("hosts")
    with ExitStack() as running:
        started = []
        for names in racks:
            machines, _ = running.enter_context(hosts(tag, names, shared, flags=FLAGS))
            started.append([machines[name] for name in names])
        router, uplinks = None, []
        if len(racks) == 2:
            flags = (*FLAGS, "--sysctl", "net.ipv4.ip_forward=1")
            machines, _ = running.enter_context(hosts(tag, ["router"], shared, flags=flags))
            router = machines["router"]
            uplinks = _route(router, started)
        yield ShapedHosts(started, router, uplinks)


def _torchrun(hosts: int, number: int, per_host: int, first: str) -> list[str]:
    return [
        sys.executable, "-m", "shardwise.execute.torchrun", "--nnodes", str(hosts), "--node-rank",
        str(number), "--nproc-per-node", str(per_host), "--master-addr", first, "--master-port",
        str(PORT),
    ]  # fmt: skip


def _route(router: Host, racks: Sequence[Sequence[Host]]) -> list[str]:
    """Puts a router between two racks; returns its interface in each."""
    known = [inspected(rack[0]) for rack in racks]
    networks = [next(iter(of["NetworkSettings"]["Networks"])) for of in known]
    for network in networks:
        _run("docker", "network", "connect", network, router.container)
    ways = inspected(router)["NetworkSettings"]["Networks"]
    subnets = [_network(rack[0]) for rack in racks]
    interfaces = []
    for rack, other in ((0, 1), (1, 0)):
        way = ways[networks[rack]]
        for host in racks[rack]:
            _inside(host, "ip", "route", "add", subnets[other], "via", way["IPAddress"])
        for line in _inside(router, "ip", "-oneline", "-4", "address").splitlines():
            _, interface, _, address, *_ = line.split()
            if address.startswith(f"{way['IPAddress']}/"):
                interfaces.append(interface)
    return interfaces


def _limit(host: Host, interface: str, megabits: float) -> None:
    _inside(host, "tc", "qdisc", "replace", "dev", interface, "root", "handle", "1:", "tbf",
            "rate", f"{megabits}mbit", "burst", BURST, "limit", QUEUE)  # fmt: skip


def _network(host: Host) -> str:
    """Returns the network of a host's rack, such as 172.18.0.0/16."""
    place = endpoint(host)
    own = f"{place['IPAddress']}/{place['IPPrefixLen']}"
    return str(ipaddress.ip_interface(own).network)


def _process(host: Host) -> int:
    return int(inspected(host)["State"]["Pid"])


def _inside(host: Host, *command: str) -> str:
    """Runs one of this machine's programs on the host's network."""
    return _run("nsenter", "--target", str(_process(host)), "--net", *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
