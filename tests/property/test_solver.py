"""The solver behind its binding against an oracle written here: plain enumeration in Python."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import _core

METHODS = ("auto", "elimination", "ldp", "brute-force")
COVERED = 1 + 1e-12
"""What rounding may take: sums of a dozen costs in another order."""


@dataclass(frozen=True)
class Drawn:
    """A problem as plain lists: costs[o][k] and edges (source, target, cells[i][j][a])."""

    costs: list[list[tuple[float, float]]]
    edges: list[tuple[int, int, list[list[list[tuple[float, float]]]]]]


@st.composite
def drawn(draw: st.DrawFn, *, whole: bool) -> Drawn:
    number = (
        st.integers(0, 30).map(float)
        if whole
        else st.floats(0, 1e9, allow_subnormal=False) | st.just(0.0)
    )
    pair = st.tuples(number, number)
    costs = draw(st.lists(st.lists(pair, min_size=1, max_size=3), min_size=1, max_size=5))
    ends = st.integers(0, len(costs) - 1)
    # Now and then every pair is joined: two cycles and more seldom come by chance.
    every_pair = list(itertools.combinations(range(min(len(costs), 4)), 2))
    joined = draw(st.lists(st.tuples(ends, ends), max_size=6) | st.just(every_pair))
    edges = []
    for source, target in joined:
        if source == target:
            continue
        cells = [
            [draw(st.lists(pair, min_size=1, max_size=2)) for _ in costs[target]]
            for _ in costs[source]
        ]
        edges.append((source, target, cells))
    return Drawn(costs, edges)


def core_problem(problem: Drawn) -> _core.Problem:
    core = _core.Problem()
    for o, choices in enumerate(problem.costs):
        memory, time = np.array(choices, dtype=np.float64).T.copy()
        core.add_operator(f"o{o}", core.add_costs(memory, time))
    for source, target, cells in problem.edges:
        count = np.array([[len(cell) for cell in row] for row in cells], dtype=np.uint8)
        shape = (*count.shape, int(count.max()))
        memory, time = np.zeros(shape), np.zeros(shape)
        for i, row in enumerate(cells):
            for j, cell in enumerate(row):
                for a, (m, t) in enumerate(cell):
                    memory[i, j, a], time[i, j, a] = m, t
        core.add_edge(
            source,
            target,
            core.add_table(memory, time, count),
            np.arange(len(cells), dtype=np.uint32),
            np.arange(len(cells[0]), dtype=np.uint32),
        )
    return core


def strategy_cost(problem: Drawn, choices: Any, alternatives: Any) -> tuple[float, float]:
    memory, time = 0.0, 0.0
    for costs, choice in zip(problem.costs, choices, strict=True):
        memory, time = memory + costs[choice][0], time + costs[choice][1]
    for (source, target, cells), a in zip(problem.edges, alternatives, strict=True):
        m, t = cells[choices[source]][choices[target]][a]
        memory, time = memory + m, time + t
    return memory, time


def enumerated(problem: Drawn) -> list[tuple[float, float]]:
    """The true frontier."""
    every = []
    for choices in itertools.product(*(range(len(c)) for c in problem.costs)):
        counts = [range(len(cells[choices[s]][choices[t]])) for s, t, cells in problem.edges]
        every += [strategy_cost(problem, choices, a) for a in itertools.product(*counts)]
    frontier: list[tuple[float, float]] = []
    for memory, time in sorted(every):
        if not frontier or time < frontier[-1][1]:
            frontier.append((memory, time))
    return frontier


def points(solution: _core.Solution) -> list[tuple[float, float]]:
    return list(zip(solution.memory_bytes.tolist(), solution.time_s.tolist(), strict=True))


def check_points_add_up(problem: Drawn, solution: _core.Solution) -> None:
    for cost, choices, alternatives in zip(
        points(solution), solution.choices.tolist(), solution.edge_choices.tolist(), strict=True
    ):
        assert strategy_cost(problem, choices, alternatives) == cost


def covered(by: list[tuple[float, float]], those: list[tuple[float, float]], e: float) -> bool:
    factor = (1 + e) * COVERED
    return all(any(p[0] <= m * factor and p[1] <= t * factor for p in by) for m, t in those)


@given(drawn(whole=True))
def test_exact_methods_equal_enumeration(problem: Drawn) -> None:
    expected = enumerated(problem)
    core = core_problem(problem)
    for method in METHODS:
        solution = _core.solve(core, method=method)
        assert points(solution) == expected, method
        assert solution.exact and solution.epsilon == 0.0 and solution.status == "exact"
        check_points_add_up(problem, solution)


@given(drawn(whole=False))
def test_real_costs_up_to_rounding(problem: Drawn) -> None:
    expected = enumerated(problem)
    core = core_problem(problem)
    for method in METHODS:
        solution = _core.solve(core, method=method)
        computed = points(solution)
        assert covered(computed, expected, 0.0) and covered(expected, computed, 0.0), method
        assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(computed))
        check_points_add_up(problem, solution)


@given(drawn(whole=True))
def test_the_heuristic_is_never_below_the_frontier(problem: Drawn) -> None:
    solution = _core.solve(core_problem(problem), method="heuristic")
    assert covered(enumerated(problem), points(solution), 0.0)
    check_points_add_up(problem, solution)
    assert solution.exact == (solution.status == "exact")
    if solution.exact:
        assert points(solution) == enumerated(problem)
    else:
        assert math.isinf(solution.epsilon)


def random_chain(operators: int, choices: int, seed: int = 7) -> _core.Problem:
    """A chain with skip edges whose choices trade memory against time: exact frontiers explode."""
    rng = np.random.default_rng(seed)
    core = _core.Problem()
    for o in range(operators):
        memory = rng.uniform(1, 9, choices)
        costs = core.add_costs(memory, 10 - memory + rng.uniform(0, 1, choices))
        core.add_operator(f"o{o}", costs)
    every = np.arange(choices, dtype=np.uint32)
    shape = (choices, choices, 1)
    for distance in (1, 2):
        for o in range(0, operators - distance, distance):
            memory = rng.uniform(0, 2, shape)
            time = 2 - memory + rng.uniform(0, 1, shape)
            table = core.add_table(memory, time, np.ones(shape[:2], np.uint8))
            core.add_edge(o, o + distance, table, every, every)
    return core


def test_a_deep_problem_within_epsilon() -> None:
    core = random_chain(100, 8)
    solution = _core.solve(core, epsilon=0.03)
    assert solution.status == "within_epsilon" and not solution.exact
    assert 0 < solution.epsilon <= 0.03
    finer = _core.solve(core, epsilon=0.01)
    # Two answers about one frontier: each covers the other within what it claims.
    assert covered(points(solution), points(finer), solution.epsilon)
    assert covered(points(finer), points(solution), finer.epsilon)


def test_a_memory_target_gives_the_fastest_within_it_and_a_bound() -> None:
    core = random_chain(100, 8)
    whole = _core.solve(core, epsilon=0.03)
    for share in (0.1, 0.5, 0.9):
        target = float(whole.memory_bytes[0] * (1 - share) + whole.memory_bytes[-1] * share)
        near = _core.solve(core, epsilon=0.01, memory_target_bytes=target)
        bound = near.time_lower_bound_s
        fitting = near.time_s[near.memory_bytes <= target]
        assert bound is not None and len(fitting)
        assert bound <= fitting[-1] <= bound * 1.01
        assert whole.time_s[whole.memory_bytes <= target][-1] >= bound * (1 - 1e-9)
        assert near.statistics["optima"] <= 20


def test_thread_count_changes_nothing() -> None:
    core = random_chain(60, 6)
    one, two = (_core.solve(core, epsilon=0.01, threads=n) for n in (1, 2))
    assert points(one) == points(two)
    assert np.array_equal(one.choices, two.choices)
    assert np.array_equal(one.edge_choices, two.edge_choices)


def test_progress_cancels_and_its_errors_come_through() -> None:
    core = random_chain(400, 24)
    seen: list[tuple[str, float]] = []

    def stop(stage: str, fraction: float) -> bool:
        seen.append((stage, fraction))
        return False

    with pytest.raises(_core.Cancelled, match="cancelled"):
        _core.solve(core, method="ldp", progress=stop)
    assert len(seen) == 1 and 0 <= seen[0][1] <= 1

    def fail(stage: str, fraction: float) -> bool:
        raise LookupError(stage)

    with pytest.raises(LookupError):
        _core.solve(core, method="ldp", progress=fail)


def test_cancelling_later_keeps_what_was_found() -> None:
    core = random_chain(150, 10)
    seen: list[str] = []

    def until_bounded(stage: str, fraction: float) -> bool:
        seen.append(stage)
        return "bounding" not in seen or stage == "bounding"

    solution = _core.solve(core, epsilon=1e-6, progress=until_bounded)
    assert solution.status == "cancelled"
    assert len(solution.time_s) > 2
    assert 0 < solution.epsilon < math.inf


@pytest.mark.parametrize(
    "bad",
    [
        {"method": "magic"},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"time_limit_s": -1.0},
        {"memory_target_bytes": math.nan},
        {"memory_target_bytes": -1.0},
    ],
)
def test_settings_out_of_range_are_value_errors(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        _core.solve(_core.Problem(), **bad)


@given(
    nodes=st.integers(1, 6),
    arcs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=14),
)
def test_shortest_paths_equal_floyd_warshall(nodes: int, arcs: list[tuple[int, int, int]]) -> None:
    arcs = [(s % nodes, t % nodes, w) for s, t, w in arcs]
    expected = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(expected, 0)
    for s, t, w in arcs:
        expected[s, t] = min(expected[s, t], w)
    for k in range(nodes):
        expected = np.minimum(expected, expected[:, k, None] + expected[None, k, :])
    sources, targets = (np.array([a[i] for a in arcs], dtype=np.uint32) for i in (0, 1))
    weights = np.array([a[2] for a in arcs], dtype=np.float64)
    distance, last = _core.shortest_paths(nodes, sources, targets, weights)
    assert np.array_equal(distance, expected)
    for s, t in itertools.product(range(nodes), repeat=2):
        length, at = 0.0, t
        while last[s, at] >= 0:
            arc = int(last[s, at])
            assert targets[arc] == at
            length, at = length + weights[arc], int(sources[arc])
        assert (at == s) == bool(np.isfinite(distance[s, t]))
        if at == s:
            assert length == distance[s, t]


def test_the_generator_draws_every_kind() -> None:
    """The properties above mean something only if the interesting problems are drawn."""
    seen: set[str] = set()

    @settings(max_examples=400, derandomize=True)
    @given(drawn(whole=True))
    def record(problem: Drawn) -> None:
        pairs = [tuple(sorted(edge[:2])) for edge in problem.edges]
        joined = {o for pair in pairs for o in pair}
        if len(problem.costs) == 1:
            seen.add("single")
        if len(set(pairs)) < len(pairs):
            seen.add("parallel edges")
        if len(joined) < len(problem.costs) > 1:
            seen.add("disconnected")
        if len(set(pairs)) > len(joined) > 2:
            seen.add("more than one cycle")
        if any((0.0, 0.0) in choices for choices in problem.costs):
            seen.add("free choice")
        if any(len(cell) > 1 for _, _, cells in problem.edges for row in cells for cell in row):
            seen.add("alternatives")
        if len(enumerated(problem)) > 3:
            seen.add("long frontier")

    record()
    assert seen == {
        "single",
        "parallel edges",
        "disconnected",
        "more than one cycle",
        "free choice",
        "alternatives",
        "long frontier",
    }
