"""One run of a benchmark: an operation on a group, sizes and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.errors import BadInput

OPERATION_OF = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_receive",
    "broadcast": "broadcast",
}
"""nccl-tests' programs (`…_perf`) and what the cost model calls the operation."""


@dataclass(frozen=True)
class Place:
    """A rank of a run: its number, its communicator where there were several, its host."""

    rank: int
    group: int
    host: str
    device: str


@dataclass
class Row:
    """One size: bytes, seconds of one call (one per repeat that is known), element type."""

    size_bytes: int
    times_s: tuple[float, ...]
    dtype: str


@dataclass
class Run:
    """What one program printed; `operation` and `places` are empty where it did not name them."""

    file: str
    operation: str = ""
    places: list[Place] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """Nodes, ranks per node, whether consecutive, groups at once that share a node."""

    nodes: int
    ranks_per_node: int
    consecutive: bool
    siblings: int


def operation_of(program: str, file: str, line: int | None = None) -> str:
    """Returns the operation of `all_reduce_perf`.

    `BadInput` for one that the cost model does not know.
    """
    name = program.removesuffix("_perf")
    if name not in OPERATION_OF:
        raise BadInput(
            f"results of {program}",
            file=file,
            field=None if line is None else f"line {line}",
            expected=f"one of {', '.join(f'{n}_perf' for n in OPERATION_OF)}",
        )
    return OPERATION_OF[name]


def group_of(places: Sequence[Place], file: str) -> Group:
    """Returns the group shape of a run, from where its ranks were; the first of equal groups."""
    groups: dict[int, list[Place]] = {}
    for place in sorted(places, key=lambda p: p.rank):
        groups.setdefault(place.group, []).append(place)
    first = next(iter(groups.values()))
    if any(len(group) != len(first) for group in groups.values()):
        raise BadInput(
            "groups of different sizes", file=file, expected="groups of as many ranks each"
        )
    on = [place.host for place in first]
    hosts = dict.fromkeys(on)
    counts = {on.count(host) for host in hosts}
    if len(counts) != 1:
        raise BadInput(
            f"got {', '.join(f'{on.count(h)} ranks on {h}' for h in hosts)}",
            file=file,
            expected="as many ranks on every node",
        )
    ranks = [place.rank for place in first]
    sharing = sum(any(p.host == on[0] for p in group) for group in groups.values())
    return Group(
        len(hosts), counts.pop(), ranks == list(range(ranks[0], ranks[0] + len(ranks))), sharing
    )
