"""The fastest strategy within a memory cap, as an integer program on HiGHS: the optimality oracle.

    minimise    sum of t[v] y[v]
    subject to  sum of m[v] y[v] <= cap                                    (bytes)
                sum over k of x[o,k] = 1                      for every operator o
                sum over j, a of y[e,i,j,a] = x[source(e),i]  for every edge e and i
                sum over i, a of y[e,i,j,a] = x[target(e),j]  for every edge e and j

x[o,k] is 1 where operator o takes choice k, y[e,i,j,a] where edge e takes alternative a of the
cell (i, j); v runs over both kinds. x is binary. The marginals make y integral with x, except
between several alternatives of one cell, where y is binary too. Without the cap and on a graph
without cycles this linear program has integral corners; the cap is what takes branching.

Nothing of Shardwise is used: a problem comes as a `shardwise.problem/1` document, and its
frontier, read at the cap, has to be this program's minimum.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9
"""How far HiGHS may break a row or an integrality."""


@dataclass(frozen=True)
class Fastest:
    """An optimal strategy: its costs are added up here from its choices, not taken from HiGHS."""

    memory_bytes: float
    time_s: float
    bound_s: float
    choices: list[int]


class _Columns:
    """Variables under construction: their costs, kinds and rows."""

    def __init__(self) -> None:
        self.memory: list[float] = []
        self.time: list[float] = []
        self.binary: list[bool] = []

    def add(self, cost: dict[str, float], *, binary: bool) -> int:
        self.memory.append(cost["memory_bytes"])
        self.time.append(cost["time_s"])
        self.binary.append(binary)
        return len(self.time) - 1


Row = tuple[list[int], list[float], float]
"""Columns, coefficients, and what they add up to."""


class IntegerProgram:
    """One problem, asked with one cap after another."""

    seconds = 0.0
    """What the last question took."""

    def __init__(self, document: dict[str, Any], *, time_limit_s: float = math.inf) -> None:
        columns = _Columns()
        self._choices = [
            [columns.add(cost, binary=True) for cost in operator["choices"]]
            for operator in document["operators"]
        ]
        rows: list[Row] = [(own, [1.0] * len(own), 1.0) for own in self._choices]
        numbers = {o["name"]: i for i, o in enumerate(document["operators"])}
        for edge in document["edges"]:
            ends = [self._choices[numbers[edge[end]]] for end in ("source", "target")]
            rows += _marginals(columns, edge["choices"], *ends)
        self._memory, self._time = np.array(columns.memory), np.array(columns.time)
        # Both costs are scaled to about 1 per operator: HiGHS's tolerances are absolute.
        self._unit_bytes = max(self._memory.max(initial=0.0), 1e-300)
        self._unit_s = max(self._time.max(initial=0.0), 1e-300)
        self._solver: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (
            ("output_flag", False),
            ("time_limit", time_limit_s),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", TOLERANCE),
            ("primal_feasibility_tolerance", TOLERANCE),
            ("dual_feasibility_tolerance", TOLERANCE),
        ):
            self._solver.setOptionValue(option, value)
        self._cap_row = len(rows)
        self._solver.passModel(self._model(rows, np.array(columns.binary)))

    def _model(self, rows: list[Row], binary: NDArray[np.bool_]) -> highspy.HighsLp:
        used = np.flatnonzero(self._memory)
        everything = [*rows, (used.tolist(), (self._memory[used] / self._unit_bytes).tolist(), 0.0)]
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._time), len(everything)
        model.col_cost_ = self._time / self._unit_s
        model.col_lower_ = np.zeros(len(self._time))
        model.col_upper_ = np.ones(len(self._time))
        model.integrality_ = [
            highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
            for whole in binary
        ]
        model.row_lower_ = np.array([*(row[2] for row in rows), -highspy.kHighsInf])
        model.row_upper_ = np.array([*(row[2] for row in rows), highspy.kHighsInf])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = [len(row[0]) for row in everything]
        model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        model.a_matrix_.index_ = np.concatenate([row[0] for row in everything]).astype(np.int32)
        model.a_matrix_.value_ = np.concatenate([row[1] for row in everything])
        return model

    def fastest_within(self, cap_bytes: float) -> Fastest | None:
        """The fastest strategy with at most `cap_bytes`; None where there is none.

        Raises `TimeoutError` when the limit passes before it is proven.
        """
        started = time.perf_counter()
        scaled = cap_bytes / self._unit_bytes
        self._solver.clearSolver()
        self._solver.changeRowBounds(self._cap_row, -highspy.kHighsInf, scaled)
        self._solver.run()
        status = self._solver.getModelStatus()
        self.seconds = time.perf_counter() - started
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status == highspy.HighsModelStatus.kTimeLimit:
            raise TimeoutError(f"no proof after {self.seconds:.0f} s")
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS stopped with {self._solver.modelStatusToString(status)}")
        taken = np.array(self._solver.getSolution().col_value) > 0.5
        choices = [int(np.flatnonzero(taken[own])[0]) for own in self._choices]
        return Fastest(
            memory_bytes=float(self._memory[taken].sum()),
            time_s=float(self._time[taken].sum()),
            bound_s=self._solver.getInfo().mip_dual_bound * self._unit_s,
            choices=choices,
        )


def _marginals(
    columns: _Columns,
    cells: list[list[list[dict[str, float]]]],
    source: list[int],
    target: list[int],
) -> list[Row]:
    """The variables of an edge, and the rows that tie them to the choices at its ends."""
    of_row: list[list[int]] = [[] for _ in source]
    of_column: list[list[int]] = [[] for _ in target]
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            for cost in cell:
                column = columns.add(cost, binary=len(cell) > 1)
                of_row[i].append(column)
                of_column[j].append(column)
    ends = [*zip(source, of_row, strict=True), *zip(target, of_column, strict=True)]
    return [([*own, choice], [1.0] * len(own) + [-1.0], 0.0) for choice, own in ends]
