"""The dynamic programme over a pipeline's stages: the least sum with every stage below a limit.

Row i and column j of a stage's matrix stand for the units between two cuts; the columns of one
stage are the rows of the next, the first has one row and the last one column. Infinite entries are
not allowed. Solved stage by stage from the end (Bellman), a matrix at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from shardwise.sharding.layout import Floats


def least_sum(
    through: Sequence[Floats], ahead: Sequence[Floats], limit_s: float
) -> tuple[int, ...] | None:
    """Returns the stages' columns with the least sum of `through`, each below a limit in `ahead`,
    or None."""
    rest, chosen = np.zeros(1), []
    for of_stage, stage_ahead in zip(reversed(through), reversed(ahead), strict=True):
        total = np.where(stage_ahead < limit_s, of_stage, inf) + rest[None, :]
        chosen.append(total.argmin(axis=1))
        rest = total.min(axis=1)
    if not np.isfinite(rest[0]):
        return None
    columns: list[int] = []
    for picks in reversed(chosen):
        columns.append(int(picks[columns[-1] if columns else 0]))
    return tuple(columns)


def least_longest(ahead: Sequence[Floats]) -> float:
    """Returns a lower bound on the longest stage, over all cuts."""
    rest = np.full(1, -inf)
    for of_stage in reversed(ahead):
        rest = np.maximum(of_stage, rest[None, :]).min(axis=1)
    return float(rest[0])


def of_cuts(matrices: Sequence[Floats], columns: Sequence[int]) -> list[float]:
    """Returns the stages' entries between the cuts named by their columns."""
    rows = (0, *columns[:-1])
    return [float(m[at]) for m, at in zip(matrices, zip(rows, columns, strict=True), strict=True)]
