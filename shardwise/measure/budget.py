"""Splits time over passes, tables and sizes.

Every table gets an equal share of the time left when its turn comes, so that time one table did not
need goes to the next ones. In the first pass sizes ascend, each with the fewest repeats; a size is
left out, along with all larger ones, if the time that it is expected to take would not fit. In
further passes every size gets an equal share of the table's.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_UPS = 2
FEWEST_REPEATS, MOST_REPEATS = 3, 9
BLOCK_S = 1e-3
MOST_IN_BLOCK = 10
"""Calls shorter than a block are timed several in a row, as nccl-tests does with all calls."""


@dataclass(frozen=True)
class Effort:
    """How often a size is timed (`repeats`) and how many calls each timing covers (`calls`)."""

    repeats: int
    calls: int


def share_s(left_s: float, parts_left: int) -> float:
    """Returns seconds for the next of `parts_left` tables of a measurement, or sizes of a table."""
    return max(left_s, 0.0) / max(parts_left, 1)


def fits(left_s: float, call_s: float, pause_s: float) -> bool:
    """Returns whether a call that takes `call_s` can be timed in the time left.

    Before each repeat all ranks meet, which takes `pause_s`.
    """
    return (call_s + pause_s) * (WARM_UPS + FEWEST_REPEATS) <= left_s


def next_call_s(call_s: float, before_s: float, step: float) -> float:
    """Returns seconds of a call of `step` times the size, by the last one and the one before.

    A call takes a latency and a time for each byte, and sizes grow by `step`, so its time grows by
    `step` times as much as before: where that was latency alone, hardly at all.
    """
    return call_s + step * max(call_s - before_s, 0.0)


def effort(share: float, call_s: float, pause_s: float) -> Effort:
    """Returns the effort that `share` seconds allow for a call that took `call_s` when warm."""
    calls = min(max(int(BLOCK_S / max(call_s, 1e-7)), 1), MOST_IN_BLOCK)
    affordable = int(share / max(call_s * calls + pause_s, 1e-7))
    return Effort(min(max(affordable, FEWEST_REPEATS), MOST_REPEATS), calls)
