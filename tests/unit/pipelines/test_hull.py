"""The lower hull of memory and time, against all strategies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise import _core
from shardwise.search.pipelines.hull import hull

COSTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=6, unique=True
)


def solved(operators: list[list[tuple[int, int]]]) -> _core.Problem:
    problem = _core.Problem()
    for number, costs in enumerate(operators):
        memory, time = np.array(costs, dtype=np.float64).T
        problem.add_operator(f"{number}", problem.add_costs(memory.copy(), time.copy()))
    return problem


CONVEX = [(0, 60), (1, 40), (3, 24), (6, 12), (11, 4), (20, 1)]


@example([CONVEX])
@example([CONVEX, [(2, 9), (5, 1)]])
@given(operators=st.lists(COSTS, min_size=1, max_size=3))
def test_no_strategy_is_below_the_hull(operators: list[list[tuple[int, int]]]) -> None:
    found = hull(solved(operators), 0.0)
    points = []
    for choices in found:
        chosen = [costs[c] for costs, c in zip(operators, choices, strict=True)]
        points.append((sum(memory for memory, _ in chosen), sum(time for _, time in chosen)))
    every = [(0, 0)]
    for costs in operators:
        every = [(m + a, t + b) for m, t in every for a, b in costs]
    for price in (0.0, 0.01, 0.5, 1.0, 2.5, 6.0, 12.0, 40.0):
        least = min(time + price * memory for memory, time in every)
        assert min(time + price * memory for memory, time in points) == pytest.approx(least)


def test_a_price_is_finite_and_not_negative() -> None:
    problem = solved([[(1, 1)]])
    for price in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="price"):
            _core.least_time(problem, price=price)
