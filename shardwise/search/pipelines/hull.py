"""Strategies that are the best at some price of memory: the lower hull of memory and time.

A strategy at a price takes one elimination, a frontier many. What lies above the line between two
strategies of the hull is missed; prices are asked for until no such line is further above the hull
than is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.search.solver_errors import solver_errors

MEMORY_ALONE = 1e6
"""A price at which memory decides alone: what the fastest strategy holds costs so many times what
it takes."""

TINY_S = 1e-12
"""Stands for the time of a strategy that takes none."""

ROUNDING = 1e-9
"""Relative: costs that are this near are equal."""


@dataclass(frozen=True)
class _Priced:
    """A strategy's choices, (operators,), its memory and its time."""

    choices: NDArray[np.uint32]
    memory_bytes: float
    time_s: float


def hull(problem: _core.Problem, epsilon: float) -> list[NDArray[np.uint32]]:
    """Returns the choices, (operators,), of the fastest strategy, that of the least memory, and
    others between them, so that no strategy is further than `epsilon` of its time below the lines
    from one to the next.

    Raises `Cancelled`, and `SolverError` where memory does not do.
    """
    fastest = _at(problem, 0.0)
    if fastest.memory_bytes <= 0.0:
        return [fastest.choices]
    price = MEMORY_ALONE * max(fastest.time_s, TINY_S) / fastest.memory_bytes
    found = [fastest, _at(problem, price)]
    lines = [(found[0], found[1])]
    while lines:
        fast, lean = lines.pop()
        saved_bytes = fast.memory_bytes - lean.memory_bytes
        if saved_bytes <= 0.0 or lean.time_s <= fast.time_s:
            continue
        price = (lean.time_s - fast.time_s) / saved_bytes
        one = _at(problem, price)
        cost_s = fast.time_s + price * fast.memory_bytes
        below_s = cost_s - (one.time_s + price * one.memory_bytes)
        if below_s > max(epsilon * one.time_s, ROUNDING * cost_s):
            found.append(one)
            lines += [(fast, one), (one, lean)]
    return [one.choices for one in found]


def _at(problem: _core.Problem, price: float) -> _Priced:
    """Returns the strategy of the least time where a byte costs `price` seconds."""
    with solver_errors():
        _, (memory_bytes, time_s), choices, _ = _core.least_time(problem, price=price)
    return _Priced(choices, memory_bytes, time_s)
