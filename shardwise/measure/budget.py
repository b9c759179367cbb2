"""Time, shared out over passes, tables and sizes.

Every table gets an equal share of what is left when its turn comes, so that time that one did not
need goes to the next ones, and every size of a table an equal share of the table's. Sizes ascend; a
size is left out, and with it all larger ones, when twice the time of the one before would not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_UPS = 2
FEWEST_REPEATS, MOST_REPEATS = 3, 9
BLOCK_S = 1e-3
MOST_IN_BLOCK = 10
"""Calls shorter than a block are timed several in a row, as nccl-tests does all of its calls."""


@dataclass(frozen=True)
class Effort:
    """How often a size is timed (`repeats`) and how many calls each timing spans (`calls`)."""

    repeats: int
    calls: int


def share_s(left_s: float, parts_left: int) -> float:
    """Seconds for the next of `parts_left` tables of a measurement, or sizes of a table."""
    return max(left_s, 0.0) / max(parts_left, 1)


def fits(left_s: float, call_s: float, pause_s: float) -> bool:
    """Whether a call that takes `call_s` can be timed in what is left.

    Before each repeat all ranks meet, for `pause_s`.
    """
    return (call_s + pause_s) * (WARM_UPS + FEWEST_REPEATS) <= left_s


def effort(share: float, call_s: float, pause_s: float) -> Effort:
    """How much of it in `share` seconds, for a call that took `call_s` when warm."""
    calls = min(max(int(BLOCK_S / max(call_s, 1e-7)), 1), MOST_IN_BLOCK)
    affordable = int(share / max(call_s * calls + pause_s, 1e-7))
    return Effort(min(max(affordable, FEWEST_REPEATS), MOST_REPEATS), calls)
