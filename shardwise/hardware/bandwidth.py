"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them (doc/PERFORMANCE.md).

    algbw = size / time        busbw = algbw · factor

    operation                       factor, n ranks in a group
    all_reduce                      2 (n-1)/n
    all_gather, reduce_scatter      (n-1)/n
    all_to_all                      (n-1)/n
    broadcast, send_receive         1

The bus bandwidth is what the slowest link carries along a ring, so it can be compared with
the link's peak whatever n is.
"""

from __future__ import annotations

from shardwise.errors import ShardwiseError

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

    @classmethod
    def named(cls, operation: str) -> UnknownCollective:
        """Returns the error for a name that is not one of `OPERATIONS`."""
        return cls(f"no cost for {operation!r}: expected one of {', '.join(OPERATIONS)}")


def bus_factor(operation: str, ranks: int) -> float:
    """Returns busbw / algbw for a group of `ranks`. Raises `UnknownCollective`."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    if operation in ("broadcast", "send_receive"):
        return 1.0
    raise UnknownCollective.named(operation)


def algorithm_bandwidth(size_bytes: float, time_s: float) -> float:
    """Returns bytes per second, `algbw`."""
    return size_bytes / time_s


def bus_bandwidth(operation: str, ranks: int, size_bytes: float, time_s: float) -> float:
    """Returns bytes per second, `busbw`."""
    return algorithm_bandwidth(size_bytes, time_s) * bus_factor(operation, ranks)
