"""Times of collectives on a group shape (docs/costs.md, Collectives; TensorOpt §3.2).

Sizes are as nccl-tests defines them, in bytes on one rank: all_reduce the buffer, all_gather
the gathered output, reduce_scatter the input before, all_to_all the local buffer, send_receive
and broadcast the message.

Measured tables come first: log-log interpolation between measured sizes, the largest size's
bandwidth above it. A shape without a table is derived from measured ones by the rules of
`derived.py`, and where none applies modelled from the levels of links as NCCL works: every
operation runs along a ring through all n ranks, nodes one after another, so all its links carry the
same bytes at once and the slowest decides. With levels i from the innermost, 0, outwards, p_i parts
of a group in a unit of level i (ranks in a node, nodes in a rack, …), s_i sibling groups that share
the links of one unit of level i-1 (a node's network card), and B_i their bandwidth,

    t = V · max over i with p_i > 1 of c_i + Σ steps_i · latency_i
    c_0 = 1 / B_0, c_i = s_i / B_i

    operation        V, bytes on each link     steps_i
    all_reduce       2 (n-1)/n size            2 log2 p_i
    all_gather       (n-1)/n size              log2 p_i
    reduce_scatter   (n-1)/n size              log2 p_i
    broadcast        size                      log2 p_i

(Latencies of trees, which NCCL takes for small messages.) nccl-tests' bus bandwidth is that of
the slowest link for this reason: one EDR card a machine gives 12.2 GB/s (NVIDIA/nccl-tests issue
29). Newer versions take a tree for all_reduce on two nodes, which crosses the network once each way
and inside loads links with twice the size (NVIDIA/nccl issue 946); a profile whose library is older
says `two_node_trees: false`. A node here is all that has no links but level 0 and its uplinks, such
as an NVLink domain:

    tree, two nodes  V = size, c_in counted twice

Pairwise operations move V_i to peers whose nearest common unit is of level i, R_i ranks of a group
in a unit of level i:

    t = Σ V_i · R_(i-1) · c_i + Σ steps_i · latency_i

    all_to_all       V_i (R_i - R_(i-1))/n size, log2 p_i steps (overlapped)
    send_receive     V_i = size at the outermost level that the group crosses, else 0; 1 step

What a level says of itself (`levels.py`) changes c_i:

    uplinks            c_i at least c_(i-1): for pairs R_(i-1) c_i at least R_(i-2) c_(i-1)
    oversubscription   c_i = s_i · oversubscription / B_i
    rails              s_i at least D / R_(i-1), D devices in a unit of level i-1; oversubscription
                       only between different positions in nodes: rings have none, of all_to_all's
                       pairs one in R_0 has none, of send_receive's all where R_0 = 1
    fully_connected    c_0 = (size_0 - 1) / ((p_0 - 1) B_0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log2, prod
from typing import Literal

import numpy as np

from shardwise.hardware.bandwidth import UnknownCollective
from shardwise.hardware.derived import derived_table, interpolate
from shardwise.hardware.grid import Floats
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.levels import Link
from shardwise.hardware.mesh import GroupShape

Basis = Literal["measured", "interpolated", "derived", "modelled"]


@dataclass(frozen=True)
class Estimate:
    """A time in seconds, its provenance, and its 10th and 90th percentile where measured."""

    time_s: float
    provenance: Basis
    p10_s: float | None = None
    p90_s: float | None = None


def collective_times(
    hardware: Hardware, operation: str, sizes_bytes: Floats, shape: GroupShape
) -> Floats:
    """Returns seconds for each size, all sibling groups running at once.

    Zero for a group of one.
    """
    if shape.size == 1:
        return np.zeros_like(sizes_bytes)
    table = find_table(hardware, operation, shape)
    if table is not None:
        return interpolate(table, sizes_bytes, np.array(table.times_s))
    per_byte, fixed = _coefficients(hardware, operation, shape)
    return np.asarray(sizes_bytes * per_byte + fixed, dtype=np.float64)


def collective_time(
    hardware: Hardware, operation: str, size_bytes: float, shape: GroupShape
) -> Estimate:
    """Returns the time of one size, with its provenance."""
    size = np.array([size_bytes])
    time = float(collective_times(hardware, operation, size, shape)[0])
    table = None if shape.size == 1 else find_table(hardware, operation, shape)
    if table is None:
        return Estimate(time, "modelled")
    spread = [
        float(interpolate(table, size, np.array(times))[0]) if times else None
        for times in (table.p10_s, table.p90_s)
    ]
    if table.derived:
        return Estimate(time, "derived", *spread)
    return Estimate(
        time, "measured" if size_bytes in table.sizes_bytes else "interpolated", *spread
    )


def find_table(hardware: Hardware, operation: str, shape: GroupShape) -> CollectiveTable | None:
    """Returns the measured table of a shape, else a derived one, else None."""
    if not hardware.collectives or prod(shape.counts) != shape.size:
        return None  # tables are of evenly filled nodes
    measured = hardware.tables.get((operation, shape.counts, shape.consecutive))
    if (
        measured is not None
        and shape.nodes > 1
        and (measured.siblings or inf) < shape.siblings_per_node
    ):
        return None  # measured without all that share a network card: too fast
    return measured if measured is not None else derived_table(hardware, operation, shape)


@dataclass(frozen=True)
class _Crossing:
    """Seconds per byte on the links of one level, `below` ranks of a group sharing them.

    `ring` is that of a ring, `own_position` and `others` that of what each rank sends to peers
    across the level, at its own position of their nodes and at all others. `steps` is log2 of the
    parts, `crossed` whether there are several.
    """

    ring: float
    own_position: float
    others: float
    below: int
    steps: float
    crossed: bool


def _crossings(links: tuple[Link, ...], shape: GroupShape) -> list[_Crossing]:
    """Returns what crossing each level costs a group, whether or not it does."""
    found: list[_Crossing] = []
    below, spanned, nodes = 1, shape.size, False
    for link, level in zip(links, shape.by_level, strict=False):
        nodes = nodes or (bool(found) and not link.uplinks)
        if not found:
            all_links = link.fully_connected and level.parts > 1
            unused = (link.size - 1) / (level.parts - 1) if all_links else 1
            ring = own = others = max(unused, 1) / link.bandwidth
        else:
            # With rails each device's part of the bandwidth is its own.
            sharing = max(level.siblings, link.below / below) if link.rails else level.siblings
            others = sharing * link.oversubscription / link.bandwidth
            ring = own = sharing / link.bandwidth if link.rails else others
        if link.uplinks and found:
            last = found[-1]
            ring = max(ring, last.ring)
            own = max(own, last.below * last.own_position / below)
            others = max(others, last.below * last.others / below)
        # Where groups are uneven the worst of each level differ: these add up to those of one.
        steps = log2(spanned / level.units if nodes else level.ranks / below)
        found.append(_Crossing(ring, own, others, below, steps, level.parts > 1))
        below, spanned = level.ranks, level.units
    return found


@lru_cache(maxsize=65536)
def _modelled(
    links: tuple[Link, ...], operation: str, shape: GroupShape, two_node_trees: bool
) -> tuple[float, float]:
    """Returns (seconds per byte, seconds) of a group's collective."""
    n, levels = shape.size, shape.by_level
    crossings = _crossings(links, shape)
    slowest = _slowest(crossings)
    # Level 0 and its uplinks are a node to the library.
    inner = next((i for i, link in enumerate(links) if i and not link.uplinks), len(links))
    inner = min(inner, len(levels))
    steps = [crossing.steps for crossing in crossings]
    if operation == "all_reduce":
        per_byte = 2 * (n - 1) / n * slowest
        if two_node_trees and levels[inner - 1].units == 2:
            inside, across = _slowest(crossings[:inner]), _slowest(crossings[inner:])
            per_byte = min(per_byte, max(2 * inside, across))
        steps = [2 * step for step in steps]
    elif operation in ("all_gather", "reduce_scatter"):
        per_byte = (n - 1) / n * slowest
    elif operation == "broadcast":
        per_byte = slowest
    elif operation == "all_to_all":
        per_byte = 0.0
        # Peers at a rank's own position are one in as many as a node has ranks of the group.
        same = 1 / levels[inner - 1].ranks if shape.aligned else 0.0
        for crossing, level in zip(crossings, levels, strict=False):
            slower = crossing.others
            if crossing.own_position != slower:
                slower = same * crossing.own_position + (1 - same) * slower
            per_byte += (level.ranks - crossing.below) / n * crossing.below * slower
    elif operation == "send_receive":
        top = max((i for i, crossing in enumerate(crossings) if crossing.crossed), default=0)
        railed = levels[inner - 1].ranks == 1 and shape.aligned
        last = crossings[top]
        per_byte = last.below * (last.own_position if railed else last.others)
        steps = [1.0 if i == top else 0.0 for i in range(len(steps))]
    else:
        raise UnknownCollective.named(operation)
    return per_byte, sum(step * link.latency_s for step, link in zip(steps, links, strict=False))


def _slowest(crossings: Sequence[_Crossing]) -> float:
    """Returns seconds per byte of the slowest links that a ring through the group passes."""
    return max((crossing.ring for crossing in crossings if crossing.crossed), default=0.0)


def link_coefficients(hardware: Hardware, operation: str, shape: GroupShape) -> float:
    """Returns seconds per byte with every link at its peak: no efficiency, no latency."""
    return _modelled(hardware.peak_links, operation, shape, False)[0]


def _coefficients(hardware: Hardware, operation: str, shape: GroupShape) -> tuple[float, float]:
    return _modelled(hardware.links, operation, shape, hardware.two_node_trees)
