"""Strategies with their sums and proof."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.part import Part
from shardwise.documents.common import TofuReport
from shardwise.sharding.layout import Floats

STATUSES = ("exact", "within_epsilon", "heuristic", "budget", "cancelled")
"""Ways in which a search ends, the worst last."""


@dataclass(frozen=True)
class Solution:
    """The solver's points, ascending in memory and strictly descending in time.

    Arrays of shape (points,), in bytes and seconds; `choices` (points, groups) are configurations
    of the whole problem, `edge_choices` (points, edges) alternatives. The rest is as in
    `_core.Solution`.
    """

    memory_bytes: Floats
    time_s: Floats
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]
    exact: bool
    epsilon: float
    time_lower_bound_s: float | None
    status: str
    seconds: float
    method: str
    statistics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def empty(cls, problem: SearchProblem) -> Solution:
        """Returns a solution without points or proof."""
        return cls(
            np.zeros(0),
            np.zeros(0),
            np.zeros((0, len(problem.costs)), dtype=np.uint32),
            np.zeros((0, len(problem.edges)), dtype=np.uint32),
            exact=False,
            epsilon=float("inf"),
            time_lower_bound_s=None,
            status="within_epsilon",
            seconds=0.0,
            method="replayed",
        )

    def report(self) -> TofuReport | None:
        """Returns the objective of another system's method, if one was used."""
        return None

    @classmethod
    def of(cls, part: Part, solved: _core.Solution) -> Solution:
        """Returns the solver's solution of a part of a problem."""
        return cls(
            solved.memory_bytes,
            solved.time_s,
            part.whole(solved.choices),
            solved.edge_choices,
            solved.exact,
            solved.epsilon,
            solved.time_lower_bound_s,
            solved.status,
            solved.seconds,
            solved.method,
            solved.statistics,
        )
