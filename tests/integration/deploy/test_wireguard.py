"""deploy/wireguard on two hosts and an enemy, each a network namespace on one shared network."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.service.service_harness import wait_until

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.full,
    pytest.mark.needs("iproute2", "nftables", "wireguard-tools", "wireguard-go"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root"),
]
SAMPLES = Path(__file__).parents[3] / "deploy/wireguard"
PORT = 29400
SECRET = b"a gradient that others should not see"
RANKS = """
import sys, torch, torch.distributed as dist
rank, address = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://{address}:29400", rank=rank, world_size=2)
secret = torch.frombuffer(bytearray(sys.argv[3].encode()), dtype=torch.uint8)
for _ in range(20):
    dist.broadcast(secret.clone() if rank == 0 else torch.zeros_like(secret), 0)
print("waiting", flush=True)
sys.stdin.readline()
dist.barrier()
dist.destroy_process_group()
"""


def run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


class Host:
    """A namespace with an address on the shared network; with WireGuard if it has a key."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"swg{os.getpid()}x{number}"
        # The socket by which `wg` finds an interface is shared by all namespaces.
        self.interface = f"wg{os.getpid() % 10_000}x{number}"
        self.open, self.private = f"10.97.0.{number}", f"10.8.0.{number}"
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "set", "lo", "up")

    def do(self, *command: str, stdin: str = "") -> str:
        return run(*self.prefix, *command, stdin=stdin)

    @property
    def prefix(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    def protect(self, other: Host, keys: dict[Host, str]) -> None:
        """Follows the samples: their text with this host's names and addresses."""
        text = (SAMPLES / "wg0.conf").read_text()
        for sample, own in (
            ("10.8.0.2/32", f"{other.private}/32"),
            ("192.0.2.2", other.open),
            ("KEY_OF_THIS_HOST", keys[self]),
            ("PUBLIC_KEY_OF_THE_OTHER_HOST", run("wg", "pubkey", stdin=keys[other]).strip()),
        ):
            assert sample in text
            text = text.replace(sample, own)
        # wg-quick sets the address itself.
        configuration = re.sub(r"^Address.*\n", "", text, flags=re.MULTILINE)
        self.do("wireguard-go", self.interface)
        self.do("wg", "setconf", self.interface, "/dev/stdin", stdin=configuration)
        self.do("ip", "addr", "add", f"{self.private}/24", "dev", self.interface)
        self.do("ip", "link", "set", self.interface, "up")
        rules = (SAMPLES / "ranks.nft").read_text()
        assert '"wg0"' in rules
        self.do("nft", "-f", "-", stdin=rules.replace('"wg0"', f'"{self.interface}"'))

    def remove(self) -> None:
        delete = [*self.prefix, "ip", "link", "del", self.interface]
        subprocess.run(delete, capture_output=True, check=False)
        run("ip", "netns", "del", self.name)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two hosts and an enemy, whose namespace has the bridge: all packets pass it."""
    created = [Host(number) for number in (1, 2, 3)]
    enemy = created[2]
    run("ip", "-n", enemy.name, "link", "add", "name", "switch", "type", "bridge")
    run("ip", "-n", enemy.name, "addr", "add", f"{enemy.open}/24", "dev", "switch")
    run("ip", "-n", enemy.name, "link", "set", "switch", "up")
    for host in created[:2]:
        port = f"port{host.number}"
        run("ip", "-n", host.name, "link", "add", "eth0", "type", "veth",
            "peer", "name", port, "netns", enemy.name)  # fmt: skip
        run("ip", "-n", enemy.name, "link", "set", port, "master", "switch", "up")
        run("ip", "-n", host.name, "addr", "add", f"{host.open}/24", "dev", "eth0")
        run("ip", "-n", host.name, "link", "set", "eth0", "up")
    yield created
    for host in created:
        host.remove()


class Ranks:
    """Two ranks, one on each host, that stay connected until they are told to end."""

    def __init__(self, hosts: list[Host], address: str, interfaces: list[str]) -> None:
        self.processes = [
            subprocess.Popen(
                [*host.prefix, sys.executable, "-c", RANKS, str(rank), address, SECRET.decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"},
                text=True,
            )
            for rank, (host, interface) in enumerate(zip(hosts[:2], interfaces, strict=True))
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"

    def end(self) -> list[int]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("end\n")
            process.stdin.flush()
        return [process.wait(60) for process in self.processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


class Wire:
    """What the enemy sees on the shared network."""

    def __init__(self, enemy: Host) -> None:
        self.seen = bytearray()
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(enemy.name,))
        self._thread.start()
        assert self._ready.wait(30)

    def _listen(self, name: str) -> None:
        with Path(f"/run/netns/{name}").open("rb") as namespace:
            # Of this thread alone; the others stay where they are.
            _setns(namespace.fileno())
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as raw:
            raw.settimeout(0.2)
            self._ready.set()
            while True:
                try:
                    self.seen += raw.recv(65536)
                except TimeoutError:
                    # All that has come until then is read.
                    if self._stopped.is_set():
                        return

    def stop(self) -> bytes:
        self._stopped.set()
        self._thread.join()
        return bytes(self.seen)


def _setns(descriptor: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def reaches(host: Host, address: str) -> bool:
    """Whether this host can connect to the rendezvous."""
    program = f"import socket; socket.create_connection(({address!r}, {PORT}), 3)"
    done = subprocess.run([*host.prefix, sys.executable, "-c", program], capture_output=True)
    return done.returncode == 0


def test_ranks_on_the_open_network_can_be_read_and_reached(hosts: list[Host]) -> None:
    wire = Wire(hosts[2])
    with Ranks(hosts, hosts[0].open, ["eth0", "eth0"]) as ranks:
        assert reaches(hosts[2], hosts[0].open)
        assert ranks.end() == [0, 0]
    assert SECRET in wire.stop()


def test_the_samples_keep_others_out(hosts: list[Host]) -> None:
    keys = {host: run("wg", "genkey").strip() for host in hosts[:2]}
    hosts[0].protect(hosts[1], keys)
    hosts[1].protect(hosts[0], keys)
    wait_until(lambda: _shook_hands(hosts[0], hosts[1]), "the tunnel", 60)
    wire = Wire(hosts[2])
    with Ranks(hosts, hosts[0].private, [host.interface for host in hosts[:2]]) as ranks:
        assert not reaches(hosts[2], hosts[0].open)
        assert reaches(hosts[1], hosts[0].private)
        assert ranks.end() == [0, 0]
    seen = wire.stop()
    assert len(seen) > 1000
    assert SECRET not in seen


def _shook_hands(host: Host, other: Host) -> bool:
    """Whether the tunnel is up; a packet into it begins the handshake."""
    program = f"import socket; socket.socket(type=2).sendto(b'x', ({other.private!r}, 9))"
    host.do(sys.executable, "-c", program)
    return not host.do("wg", "show", host.interface, "latest-handshakes").endswith("\t0\n")
