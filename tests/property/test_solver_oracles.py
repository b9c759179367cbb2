"""The solver against HiGHS on problems of middle size.

A thousand small problems of every family are compared with enumeration, point by point, in
solver/frontier/tests/oracles.rs; what they cannot show is that nothing goes wrong at size. Here
the frontier, read at several memory caps, equals an integer program's minimum
(benchmarks/integer_program.py): another formulation, other code, another method.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from integer_program import Fastest, IntegerProgram

from harness.middle_problems import Middle, problem
from harness.tiers import examples, some
from shardwise import _core
from shardwise.search.problem import build, problem_from_json

MIDDLE = (
    Middle("chain", 30, (8, 16), whole=True, seed=1),
    Middle("chain", 60, (8, 16), whole=False, seed=2),
    Middle("series-parallel", 30, (8, 16), whole=True, seed=3),
    Middle("series-parallel", 40, (8, 12), whole=False, seed=4),
    Middle("series-parallel", 60, (8, 10), whole=True, seed=5),
    Middle("treewidth 3", 30, (8, 10), whole=True, seed=6),
    Middle("treewidth 3", 30, (8, 10), whole=False, seed=7),
)
METHODS = ("auto", "elimination", "ldp")
EPSILON = 0.01
CAPS = examples(4, 10)
"""Memory caps, of which each is an integer program that takes seconds."""
SAME = 1e-6
"""Relative; HiGHS closes its gap to 0, but with tolerances of its own."""


def core_problem(of: dict[str, Any]) -> _core.Problem:
    return build(problem_from_json(json.dumps(of).encode()))


@cache
def near(middle: Middle) -> _core.Solution:
    """The frontier within 1 %."""
    return _core.solve(core_problem(problem(middle)), epsilon=EPSILON)


def caps(of: dict[str, Any]) -> list[float]:
    """Caps from tight to loose, between bytes so that no tolerance decides what fits."""
    memory = [[c["memory_bytes"] for c in o["choices"]] for o in of["operators"]]
    least = sum(min(choices) for choices in memory)
    # The fastest choice of each operator: more memory than that hardly helps.
    fastest = sum(
        min(o["choices"], key=lambda c: c["time_s"])["memory_bytes"] for o in of["operators"]
    )
    shares = np.linspace(0.02, 1.0, CAPS)
    return [float(np.floor(least + share * (fastest - least)) + 0.5) for share in shares]


def least_memory(of: dict[str, Any], choices: list[int]) -> float:
    """Returns a strategy's least memory: of its operators and of every edge's best alternative."""
    numbers = {o["name"]: i for i, o in enumerate(of["operators"])}
    memory: float = sum(
        o["choices"][k]["memory_bytes"] for o, k in zip(of["operators"], choices, strict=True)
    )
    for edge in of["edges"]:
        i, j = (choices[numbers[edge[end]]] for end in ("source", "target"))
        memory += min(c["memory_bytes"] for c in edge["choices"][i][j])
    return memory


def check_oracle(of: dict[str, Any], fastest: Fastest, cap: float, which: str) -> None:
    """HiGHS's strategy is one, fits, and HiGHS itself proved that it is the fastest."""
    assert fastest.memory_bytes <= cap, which
    assert least_memory(of, fastest.choices) <= fastest.memory_bytes * (1 + 1e-12), which
    assert fastest.bound_s == pytest.approx(fastest.time_s, rel=SAME), which


ALWAYS = (1, 3, 6)
"""Seeds of the problems of MIDDLE that `make test` runs: one of each family, with whole costs."""


@pytest.mark.parametrize("middle", some(MIDDLE, lambda middle: middle.seed in ALWAYS), ids=str)
def test_frontiers_equal_highs_at_memory_caps(middle: Middle) -> None:
    of = problem(middle)
    core = core_problem(of)
    exact = {method: _core.solve(core, method=method) for method in METHODS}
    assert near(middle).epsilon <= EPSILON or near(middle).status == "budget"
    oracle = IntegerProgram(of)
    for cap in caps(of):
        which = f"{middle}, cap {cap}"
        fastest = oracle.fastest_within(cap)
        if fastest is not None:
            check_oracle(of, fastest, cap, which)
            check_covered(near(middle), fastest, which)
        for method, frontier in exact.items():
            assert frontier.exact, (method, which)
            check_equal(frontier, fastest, cap, (method, which))


def check_equal(
    frontier: _core.Solution, fastest: Fastest | None, cap: float, which: object
) -> None:
    fitting = frontier.time_s[frontier.memory_bytes <= cap]
    if fastest is None:
        assert len(fitting) == 0, which
    else:
        assert fitting[-1] == pytest.approx(fastest.time_s, rel=SAME), which


def check_covered(frontier: _core.Solution, fastest: Fastest, which: object) -> None:
    """The certificate: some point is within (1 + epsilon) of this strategy in both costs."""
    factor = (1 + frontier.epsilon) * (1 + 1e-12)
    within = frontier.memory_bytes <= fastest.memory_bytes * factor
    assert frontier.time_s[within][-1] <= fastest.time_s * factor, which


def test_the_epsilon_that_was_asked_is_reached() -> None:
    for middle in MIDDLE:
        assert near(middle).epsilon <= EPSILON, middle


def test_some_certificates_above_are_not_zero() -> None:
    """Exact tracking may answer as well; should it come to answer all, add larger problems."""
    answers = [near(middle) for middle in MIDDLE]
    assert any(a.status == "within_epsilon" and a.epsilon > 0 for a in answers)


def test_highs_says_when_nothing_fits() -> None:
    of = problem(MIDDLE[0])
    frontier = _core.solve(core_problem(of))
    oracle = IntegerProgram(of)
    least = float(frontier.memory_bytes[0])
    assert oracle.fastest_within(least - 0.5) is None
    fitting = oracle.fastest_within(least + 0.5)
    assert fitting is not None and fitting.memory_bytes == least
    # Asked again without a cap that binds, it forgets the one before.
    free = oracle.fastest_within(1e6)
    assert free is not None and free.time_s == pytest.approx(frontier.time_s[-1], rel=SAME)


def test_the_problems_are_what_they_are_called() -> None:
    widths = {"chain": 1, "series-parallel": 2, "treewidth 3": 3}
    for middle in MIDDLE:
        of = problem(middle)
        numbers = {o["name"]: i for i, o in enumerate(of["operators"])}
        edges = [(numbers[e["source"]], numbers[e["target"]]) for e in of["edges"]]
        assert {o for pair in edges for o in pair} == set(range(middle.operators))
        assert width(middle.operators, edges) == widths[middle.family], middle
        counts = [len(o["choices"]) for o in of["operators"]]
        assert len(counts) == middle.operators >= 30
        assert min(counts) >= 8 and max(counts) <= 16
        cells = [c for e in of["edges"] for row in e["choices"] for c in row]
        assert any(len(cell) > 1 for cell in cells)


def width(operators: int, edges: list[tuple[int, int]]) -> int:
    """The width of eliminating the operator with the fewest neighbours first.

    Where it is at most 3 it is the treewidth: until nothing has fewer than three neighbours,
    each elimination is a contraction, so what is left is a minor.
    """
    near: dict[int, set[int]] = {o: set() for o in range(operators)}
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    widest = 0
    while near:
        gone = min(near, key=lambda o: len(near[o]))
        around = near.pop(gone)
        widest = max(widest, len(around))
        for a, b in itertools.permutations(around, 2):
            near[a].add(b)
        for a in around:
            near[a].discard(gone)
    return widest
