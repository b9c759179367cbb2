"""The solver against HiGHS on problems of middle size.

A thousand small problems of every family are compared with enumeration, point by point, in
solver/frontier/tests/oracles.rs; what they cannot show is that nothing goes wrong at size. Here
the frontier, read at ten memory caps, equals an integer program's minimum
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
from middle_problems import CHOICES, FAMILIES, pairs, problem

from shardwise import _core
from shardwise.advise.problem import build, problem_from_json

# (family, operators, seed, whole bytes)
EXACT = (
    ("chain", 30, 1, True),
    ("chain", 60, 2, False),
    ("series-parallel", 30, 3, True),
    ("series-parallel", 40, 4, False),
    ("treewidth 3", 30, 5, True),
    ("treewidth 3", 36, 6, True),
)
CERTIFIED = (
    ("series-parallel", 60, 7, False),
    ("treewidth 3", 60, 8, False),
)
CAPS = 10
SAME = 1e-6
"""Relative; HiGHS closes its gap to 0, but with tolerances of its own."""


@cache
def document(family: str, operators: int, seed: int, whole: bool) -> dict[str, Any]:
    return problem(family, operators, seed, whole=whole)


def core_problem(of: dict[str, Any]) -> _core.Problem:
    return build(problem_from_json(json.dumps(of).encode()))


def caps(of: dict[str, Any]) -> list[float]:
    """Ten caps from tight to loose, between bytes so that no tolerance decides what fits."""
    memory = [[c["memory_bytes"] for c in o["choices"]] for o in of["operators"]]
    least = sum(min(choices) for choices in memory)
    # The fastest choice of each operator: more memory than that hardly helps.
    fastest = sum(
        min(o["choices"], key=lambda c: c["time_s"])["memory_bytes"] for o in of["operators"]
    )
    shares = np.linspace(0.02, 1.0, CAPS)
    return [float(np.floor(least + share * (fastest - least)) + 0.5) for share in shares]


def cost_of(of: dict[str, Any], choices: list[int]) -> float:
    """The least memory of a strategy: operators, and the leanest alternative of every edge."""
    numbers = {o["name"]: i for i, o in enumerate(of["operators"])}
    memory = sum(
        o["choices"][k]["memory_bytes"] for o, k in zip(of["operators"], choices, strict=True)
    )
    for edge in of["edges"]:
        i, j = (choices[numbers[edge[end]]] for end in ("source", "target"))
        memory += min(c["memory_bytes"] for c in edge["choices"][i][j])
    return memory


def check_oracle(of: dict[str, Any], found: Fastest, cap: float, which: str) -> None:
    """HiGHS's strategy is one, fits, and HiGHS itself proved that it is the fastest."""
    assert found.memory_bytes <= cap, which
    assert cost_of(of, found.choices) <= found.memory_bytes * (1 + 1e-12), which
    assert found.bound_s == pytest.approx(found.time_s, rel=SAME), which


@pytest.mark.parametrize(("family", "operators", "seed", "whole"), EXACT)
def test_the_exact_frontier_equals_highs_at_ten_caps(
    family: str, operators: int, seed: int, whole: bool
) -> None:
    of = document(family, operators, seed, whole)
    frontiers = {
        method: _core.solve(core_problem(of), method=method) for method in ("auto", "elimination")
    }
    oracle = IntegerProgram(of)
    for cap in caps(of):
        which = f"{family}, {operators} operators, seed {seed}, whole {whole}, cap {cap}"
        found = oracle.fastest_within(cap)
        for method, frontier in frontiers.items():
            assert frontier.exact, (method, which)
            fitting = frontier.time_s[frontier.memory_bytes <= cap]
            if found is None:
                assert len(fitting) == 0, (method, which)
            else:
                check_oracle(of, found, cap, which)
                assert fitting[-1] == pytest.approx(found.time_s, rel=SAME), (method, which)


@pytest.mark.parametrize(("family", "operators", "seed", "whole"), CERTIFIED)
def test_the_certificate_covers_what_highs_finds(
    family: str, operators: int, seed: int, whole: bool
) -> None:
    of = document(family, operators, seed, whole)
    core = core_problem(of)
    frontier = _core.solve(core, epsilon=0.01)
    # Otherwise there is no certificate to test.
    assert frontier.status == "within_epsilon"
    assert 0 < frontier.epsilon <= 0.01
    factor = 1 + frontier.epsilon
    oracle = IntegerProgram(of)
    for cap in caps(of):
        which = f"{family}, {operators} operators, seed {seed}, whole {whole}, cap {cap}"
        found = oracle.fastest_within(cap)
        fitting = frontier.time_s[frontier.memory_bytes <= cap]
        if found is None:
            assert len(fitting) == 0, which
            continue
        check_oracle(of, found, cap, which)
        within = frontier.memory_bytes <= found.memory_bytes * factor
        assert frontier.time_s[within][-1] <= found.time_s * factor, which
        # Nothing is faster than the fastest.
        assert not len(fitting) or fitting[-1] >= found.time_s * (1 - SAME), which


def test_highs_says_when_nothing_fits() -> None:
    of = document("chain", 30, 1, True)
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
    rng = np.random.default_rng(0)
    for operators in (30, 45, 60):
        for family, most in zip(FAMILIES, (1, 2, 3), strict=True):
            for _ in range(10):
                edges = pairs(family, operators, rng)
                assert {o for pair in edges for o in pair} == set(range(operators))
                assert width(operators, edges) == most, (family, operators)
    for family, operators, seed, whole in EXACT + CERTIFIED:
        of = document(family, operators, seed, whole)
        counts = [len(o["choices"]) for o in of["operators"]]
        assert len(counts) == operators
        assert CHOICES[0] <= min(counts) and max(counts) <= CHOICES[1]
        cells = [c for e in of["edges"] for row in e["choices"] for c in row]
        assert any(len(cell) > 1 for cell in cells)


def width(operators: int, edges: list[tuple[int, int]]) -> int:
    """The width of eliminating the operator with the fewest neighbours first.

    That is the treewidth where it is at most 3 and each family keeps to its own bound here.
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
