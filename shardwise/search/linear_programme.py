"""The linear programme of a game between paths and strategies, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from shardwise.sharding.layout import Floats

DEAREST = 100.0
"""The most that all of the limit may be priced at, in times of the longest path."""


@dataclass(frozen=True)
class Equilibrium:
    """The value of the game (seconds), the mix of paths (P,), the prices of memory per moment
    (seconds a byte), and the mix of strategies (S,)."""

    value_s: float
    paths: Floats
    prices: Floats
    strategies: Floats


def equilibrium(times_s: Floats, over_bytes: Floats, limit_bytes: float) -> Equilibrium:
    """Returns the equilibrium of S strategies and P paths under a memory limit.

        max v   with   v <= sum_j times[s, j] y_j + sum_r over[s, r] mu_r   for every s,
        y a mix, mu >= 0

    `times_s` (S, P) are the durations of a path's tasks, `over_bytes` (S, R) is how far a strategy
    exceeds the limit at a moment (negative below it).
    """
    strategies, paths = times_s.shape
    moments = over_bytes.shape[1]
    scale_s = float(times_s.max())
    columns = 1 + paths + moments
    matrix = np.zeros((strategies + 1, columns))
    matrix[:strategies, 0] = 1.0
    matrix[:strategies, 1 : 1 + paths] = -times_s / scale_s
    matrix[:strategies, 1 + paths :] = -over_bytes / limit_bytes
    matrix[strategies, 1 : 1 + paths] = 1.0
    rows, indices = np.nonzero(matrix)
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = columns, strategies + 1
    programme.sense_ = highspy.ObjSense.kMaximize
    programme.col_cost_ = np.eye(1, columns)[0]
    programme.col_lower_ = np.array([-highspy.kHighsInf] + [0.0] * (paths + moments))
    programme.col_upper_ = np.array([highspy.kHighsInf] + [1.0] * paths + [DEAREST] * moments)
    programme.row_lower_ = np.array([-highspy.kHighsInf] * strategies + [1.0])
    programme.row_upper_ = np.array([0.0] * strategies + [1.0])
    programme.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    programme.a_matrix_.start_ = np.searchsorted(rows, np.arange(strategies + 2)).astype(np.int32)
    programme.a_matrix_.index_ = indices.astype(np.int32)
    programme.a_matrix_.value_ = matrix[rows, indices]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.passModel(programme)
    highs.run()
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    duals = np.abs(np.array(solution.row_dual)[:strategies])
    return Equilibrium(
        float(values[0]) * scale_s,
        _mix(values[1 : 1 + paths]),
        np.maximum(values[1 + paths :], 0.0) * scale_s / limit_bytes,
        _mix(duals),
    )


def _mix(weights: Floats) -> Floats:
    """Returns weights that add up to 1; in equal shares where there are none."""
    weights = np.maximum(weights, 0.0)
    total = float(weights.sum())
    return weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))
