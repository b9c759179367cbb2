"""Times of collectives on a group shape (COSTS.md, Collectives; TensorOpt §3.2).

Sizes are as nccl-tests defines them, in bytes on one rank: all_reduce the buffer, all_gather
the gathered output, reduce_scatter the input before, all_to_all the local buffer, send_receive
and broadcast the message.

Measured tables come first: log-log interpolation between measured sizes, the largest size's
bandwidth above it. A shape without a table is modelled from the link levels, with n ranks of
which r on a node, N nodes, and s sibling groups that share a node's network card:

    V_in    bytes that a rank moves inside its node, V_out across the network
    t       = V_in / B_in + V_out · r · s / B_node + steps · latency

    operation        V_in                 V_out               steps
    all_reduce       2 (r-1)/r V          2 (N-1)/N V/r       2 (log2 r + log2 N)
    all_gather       (r-1)/r V            (N-1)/N V/r         log2 r + log2 N
    reduce_scatter   (r-1)/r V            (N-1)/N V/r         log2 r + log2 N
    all_to_all       (r-1)/n V            (n-r)/n V           log2 n (pairwise, overlapped)
    send_receive     V or 0               V or 0              1
    broadcast        V                    V / r               log2 r + log2 N

(hierarchical rings; latencies of trees, as NCCL uses for small messages). V_out·r·s/B_node is
the time of a node's card: r ranks of s groups share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Literal

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.hardware.hardware import CollectiveTable, Floats, Hardware
from shardwise.hardware.mesh import GroupShape

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_receive",
    "broadcast",
)


class UnknownCollective(ShardwiseError):
    """An operation that has no cost; the message names it."""


@dataclass(frozen=True)
class Estimate:
    """A time in seconds and what it stands on."""

    time_s: float
    provenance: Literal["measured", "interpolated", "modelled"]


def collective_times(
    hardware: Hardware, operation: str, sizes_bytes: Floats, shape: GroupShape
) -> Floats:
    """Seconds for each size, all sibling groups running at once. Zero for a group of one."""
    if shape.size == 1:
        return np.zeros_like(sizes_bytes)
    table = _measured(hardware, operation, shape)
    if table is not None:
        return _interpolate(table, sizes_bytes)
    per_byte, fixed = _coefficients(hardware, operation, shape)
    return np.asarray(sizes_bytes * per_byte + fixed, dtype=np.float64)


def collective_time(
    hardware: Hardware, operation: str, size_bytes: float, shape: GroupShape
) -> Estimate:
    """One size, with what the time stands on."""
    time = float(collective_times(hardware, operation, np.array([size_bytes]), shape)[0])
    table = _measured(hardware, operation, shape)
    if table is None:
        return Estimate(time, "modelled")
    return Estimate(time, "measured" if size_bytes in table.sizes_bytes else "interpolated")


def _measured(hardware: Hardware, operation: str, shape: GroupShape) -> CollectiveTable | None:
    for table in hardware.collectives:
        if (
            table.operation == operation
            and (table.nodes, table.ranks_per_node) == (shape.nodes, shape.ranks_per_node)
            and table.consecutive == shape.consecutive
        ):
            return table
    return None


def _interpolate(table: CollectiveTable, sizes_bytes: Floats) -> Floats:
    sizes, times = np.array(table.sizes_bytes), np.array(table.times_s)
    inside = np.exp(np.interp(np.log(np.maximum(sizes_bytes, 1.0)), np.log(sizes), np.log(times)))
    beyond = sizes_bytes / (sizes[-1] / times[-1])
    return np.asarray(np.where(sizes_bytes > sizes[-1], beyond, inside))


@lru_cache(maxsize=65536)
def _modelled(
    inner: tuple[float, float], outer: tuple[float, float], operation: str, shape: GroupShape
) -> tuple[float, float]:
    """(seconds per byte, seconds) from (bandwidth, latency) of both levels."""
    n, nodes = shape.size, shape.nodes
    r = min(shape.ranks_per_node, n)
    share = outer[0] / (r * shape.siblings_per_node)
    inside_steps, between_steps = log2(r), log2(nodes)
    if operation in ("all_gather", "reduce_scatter", "all_reduce"):
        times = 2 if operation == "all_reduce" else 1
        v_in = times * (r - 1) / r
        v_out = times * (nodes - 1) / nodes / r
        steps = (times * inside_steps, times * between_steps)
    elif operation == "all_to_all":
        v_in, v_out = (r - 1) / n, (n - r) / n
        steps = (inside_steps, between_steps)
    elif operation == "send_receive":
        v_in, v_out = (1.0, 0.0) if nodes == 1 else (0.0, 1.0)
        steps = (1.0, 0.0) if nodes == 1 else (0.0, 1.0)
    elif operation == "broadcast":
        v_in, v_out = float(r > 1), (1.0 / r if nodes > 1 else 0.0)
        steps = (inside_steps, between_steps)
    else:
        raise UnknownCollective(f"no cost for {operation!r}: it is one of {', '.join(OPERATIONS)}")
    per_byte = v_in / inner[0] + v_out / share
    return per_byte, steps[0] * inner[1] + steps[1] * outer[1]


def _coefficients(hardware: Hardware, operation: str, shape: GroupShape) -> tuple[float, float]:
    inside, between = hardware.levels[0], hardware.levels[-1]
    return _modelled(
        (inside.bandwidth_bytes_per_s * inside.efficiency, inside.latency_s),
        (between.bandwidth_bytes_per_s * between.efficiency, between.latency_s),
        operation,
        shape,
    )
