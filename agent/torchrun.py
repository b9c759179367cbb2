"""The command that starts the ranks of an assignment, and what torchrun says of its failures.

The static rendezvous: the ranks are numbered as the service has numbered the nodes, because a
plan's mesh is an order of ranks; c10d's own rendezvous numbers them as they arrive. Node 0 serves
the store on the one port that the service has chosen. Neither authenticates: docs/agents.md.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from pathlib import Path

from agent.assignment import Assignment
from agent.inventory import interface_of

RANK_ENTRY = Path(__file__).with_name("rank_entry.py")
KEEPER = Path(__file__).with_name("keeper.py")
_FAILED = re.compile(r"local_rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_FAILED_EARLY = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def torchrun_command(
    assignment: Assignment, own_address: str, pipes: Path, program: tuple[str, ...]
) -> list[str]:
    """Returns the argument list of torchrun with `program` as each rank.

    No shell is involved.
    """
    rendezvous = assignment.rendezvous
    return [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(assignment.nodes),
        "--node-rank",
        str(assignment.node_rank),
        "--nproc-per-node",
        str(assignment.ranks_per_node),
        "--rdzv-backend",
        "static",
        "--rdzv-id",
        rendezvous.id,
        "--master-addr",
        rendezvous.host,
        "--master-port",
        str(rendezvous.port),
        "--local-addr",
        own_address,
        "--max-restarts",
        "0",
        "--no-python",
        sys.executable,
        "-I",
        "-S",
        str(RANK_ENTRY),
        str(pipes),
        *program,
    ]


def own_address(assignment: Assignment) -> str:
    """Returns the address at which other nodes reach this host: the one that faces node 0."""
    host = assignment.rendezvous.host
    if assignment.node_rank == 0:
        return host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, assignment.rendezvous.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return host


def network_environment(address: str) -> dict[str, str]:
    """Returns variables that make gloo and NCCL use the interface of `address`; by themselves they
    go by the host's name, which often means loopback."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return {}
    interface = interface_of(address)
    if interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def failed_rank(said: str) -> tuple[int, int] | None:
    """Returns (local rank, exit code) of the rank that failed first, from torchrun's messages."""
    if match := _FAILED_EARLY.search(said):
        return int(match[2]), int(match[1])
    if match := _FAILED.search(said):
        return int(match[1]), int(match[2])
    return None
