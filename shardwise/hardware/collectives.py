"""Times of collectives on a group shape (docs/costs.md, Collectives; TensorOpt §3.2).

Sizes are as nccl-tests defines them, in bytes on one rank: all_reduce the buffer, all_gather
the gathered output, reduce_scatter the input before, all_to_all the local buffer, send_receive
and broadcast the message.

Measured tables come first: log-log interpolation between measured sizes, the largest size's
bandwidth above it. A shape without a table is derived from measured ones by the rules of
`derived.py`, and where none applies modelled from the link levels as NCCL works: every operation
runs along a ring through all n ranks, nodes one after another, so all its links carry
the same bytes at once and the slowest decides. With N nodes, r ranks of a group on a node and s
sibling groups that share a node's network card,

    t = V · max(1 / B_in, s / B_node) + steps · latency

    operation        V, bytes on each link     steps
    all_reduce       2 (n-1)/n size            2 (log2 r + log2 N)
    all_gather       (n-1)/n size              log2 r + log2 N
    reduce_scatter   (n-1)/n size              log2 r + log2 N
    broadcast        size                      log2 r + log2 N

(1 / B_in only where r > 1, s / B_node only where N > 1; latencies of trees, which NCCL takes for
small messages). nccl-tests' bus bandwidth is that of the slowest link for this reason: one EDR
card a machine gives 12.2 GB/s (NVIDIA/nccl-tests issue 29). Newer versions take a tree for
all_reduce on two nodes, which crosses the network once each way and inside loads links with twice
the size (NVIDIA/nccl issue 946); a profile whose library is older says `two_node_trees: false`:

    tree, N = 2      t = max(2 size / B_in, s size / B_node) + steps · latency

Pairwise operations move V_in inside the node, V_out across the network:

    t = V_in / B_in + V_out · r · s / B_node + steps · latency

    all_to_all       V_in (r-1)/n size, V_out (n-r)/n size, log2 n steps (overlapped)
    send_receive     V_in = size on one node, else V_out = size; 1 step
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, log2
from typing import Literal

import numpy as np

from shardwise.hardware.bandwidth import UnknownCollective
from shardwise.hardware.derived import derived_table, interpolate
from shardwise.hardware.device import Floats
from shardwise.hardware.hardware import CollectiveTable, Hardware
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
    if not hardware.collectives or shape.nodes * shape.ranks_per_node != shape.size:
        return None  # tables are of evenly filled nodes
    key = (operation, shape.nodes, shape.ranks_per_node, shape.consecutive)
    measured = hardware.tables.get(key)
    if (
        measured is not None
        and shape.nodes > 1
        and (measured.siblings or inf) < shape.siblings_per_node
    ):
        return None  # measured without all that share a network card: too fast
    return measured if measured is not None else derived_table(hardware, operation, shape)


@lru_cache(maxsize=65536)
def _modelled(
    inner: tuple[float, float],
    outer: tuple[float, float],
    operation: str,
    shape: GroupShape,
    two_node_trees: bool,
) -> tuple[float, float]:
    """Returns (seconds per byte, seconds) from (bandwidth, latency) of both levels."""
    n, nodes = shape.size, shape.nodes
    r = min(shape.ranks_per_node, n)
    inside = 1 / inner[0] if r > 1 else 0.0
    across = shape.siblings_per_node / outer[0] if nodes > 1 else 0.0
    steps = (log2(r), log2(nodes))
    if operation == "all_reduce":
        per_byte = 2 * (n - 1) / n * max(inside, across)
        if nodes == 2 and two_node_trees:
            per_byte = min(per_byte, max(2 * inside, across))
        steps = (2 * steps[0], 2 * steps[1])
    elif operation in ("all_gather", "reduce_scatter"):
        per_byte = (n - 1) / n * max(inside, across)
    elif operation == "broadcast":
        per_byte = max(inside, across)
    elif operation == "all_to_all":
        per_byte = (r - 1) / n * inside + (n - r) / n * r * across
    elif operation == "send_receive":
        per_byte = inside if nodes == 1 else r * across
        steps = (1.0, 0.0) if nodes == 1 else (0.0, 1.0)
    else:
        raise UnknownCollective.named(operation)
    return per_byte, steps[0] * inner[1] + steps[1] * outer[1]


def link_coefficients(hardware: Hardware, operation: str, shape: GroupShape) -> float:
    """Returns seconds per byte with every link at its peak: no efficiency, no latency."""
    inside, between = hardware.levels[0], hardware.levels[-1]
    return _modelled(
        (inside.bandwidth_bytes_per_s, 0.0),
        (between.bandwidth_bytes_per_s, 0.0),
        operation,
        shape,
        False,
    )[0]


def _coefficients(hardware: Hardware, operation: str, shape: GroupShape) -> tuple[float, float]:
    inside, between = hardware.levels[0], hardware.levels[-1]
    return _modelled(
        (inside.bandwidth_bytes_per_s * inside.efficiency, inside.latency_s),
        (between.bandwidth_bytes_per_s * between.efficiency, between.latency_s),
        operation,
        shape,
        hardware.two_node_trees,
    )
