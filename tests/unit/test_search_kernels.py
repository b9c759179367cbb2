"""What the search computes in Rust beside eliminations: weighted tables, values from tables,
replays of them, cheapest alternatives."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwise import _core
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import assemble
from shardwise.cost.crossings import AFTER, BEFORE, REBUILT
from shardwise.cost.options import Options, quiet
from shardwise.graph import read_graph
from shardwise.hardware import Mesh, load_hardware
from shardwise.replay.edge_values import COLUMNS
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.replay.replay import Replayer
from shardwise.search.improve import Cheapest, Improver
from shardwise.search.search import Subject

SECONDS = [name for name in COLUMNS if name.endswith("_s")]


def _replayer(micro_batches: int) -> Replayer:
    subject = Subject.of(read_graph(shipped_graph("gpt2")))
    options = Options()
    hardware = load_hardware("dgx-h100")
    mesh = Mesh.build(hardware, 4)
    graph = subject.variant(options, micro_batches)
    problem = assemble(graph, hardware, mesh, options, quiet, micro_batches)
    return Replayer(problem, options.step)


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return _replayer(2)


def _drawn(replayer: Replayer, strategies: int, seed: int) -> tuple[NDArray[np.uint32], Improver]:
    """Returns random strategies, the half of them near the first, and charges for them."""
    random, problem = np.random.default_rng(seed), replayer.problem
    sizes = np.array([len(costs.time_s) for costs in problem.costs])
    choices = random.integers(0, sizes, (strategies, len(sizes)))
    near = np.arange(strategies) % 2 == 0
    kept = random.random(choices.shape) < 0.95
    choices = np.where(near[:, None] & kept, choices[0], choices)
    charges = OwnerCosts(
        random.random(),
        [random.random(size) for size in sizes],
        [random.random(edge.table.kept.shape) for edge in problem.edges],
    )
    return choices.astype(np.uint32), Improver(replayer, charges, np.inf)


def test_weighted_seconds_are_the_columns_weighted(replayer: Replayer) -> None:
    """Of every table, with a weight of its own for each kind of move."""
    weights = np.zeros(len(COLUMNS))
    for number, name in enumerate(SECONDS):
        weights[COLUMNS.index(name)] = 1.0 + number
    kinds: set[int] = set()
    for number in sorted(set(map(replayer.table_of_edge, range(len(replayer.problem.edges))))):
        values = replayer.edge_values(number)
        assert values is not None
        expected = sum(weights[COLUMNS.index(name)] * values.grid(name) for name in SECONDS)
        weighted = values.weighted(weights)
        assert np.allclose(weighted, expected, rtol=1e-12)
        edge = next(
            edge
            for e, edge in enumerate(replayer.problem.edges)
            if replayer.table_of_edge(e) == number
        )
        kinds |= set(edge.table.kept[weighted > 0].tolist())
    assert {AFTER, BEFORE, REBUILT} <= kinds


TABLES = {7: np.array([[1.0, 2.0], [3.0, 4.0]])}
CHOSEN = {7: np.array([[0, 1], [1, 0]])}


def _cells(items: int) -> _core.Cells:
    """Items 2 and 0 are cells of table 7, of the owners 0 and 1."""
    picks = (7, np.array([2, 0]), np.array([0, 1]), np.array([1, 0]))
    return _core.Cells(np.full(items, 9.0), [picks])


def test_fills_the_rows_that_owners_chose() -> None:
    filled = _cells(3).fill(2, TABLES, CHOSEN)
    assert filled.tolist() == [[3.0, 9.0, 2.0], [1.0, 9.0, 4.0]]


@pytest.mark.parametrize("which", [0, 1])
def test_arrays_in_another_order_are_refused(which: int) -> None:
    """Their memory would be read as if it were row by row."""
    given = [TABLES, CHOSEN]
    given[which] = {7: np.asfortranarray(given[which][7])}
    with pytest.raises(ValueError, match="row by row"):
        _cells(3).fill(2, *given)


def test_numbers_of_what_there_is_not_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers of what there is"):
        _cells(2)
    with pytest.raises(ValueError, match="numbers of what there is"):
        _cells(3).fill(2, TABLES, {7: np.array([[0, 1], [2, 0]])})
    with pytest.raises(ValueError, match="numbers of what there is"):
        _cells(3).fill(3, TABLES, CHOSEN)
    with pytest.raises(KeyError, match="no table 7"):
        _cells(3).fill(2, {}, CHOSEN)


@pytest.mark.parametrize("micro_batches", [2, 8])
@pytest.mark.parametrize("strategies", [1, 3, 40])
def test_replays_from_tables_are_those_of_values(micro_batches: int, strategies: int) -> None:
    """To the last digit, of few strategies and of many, which are replayed without what none of
    them needs."""
    replayer = _replayer(micro_batches)
    choices, improver = _drawn(replayer, strategies, seed=micro_batches)
    edges, _ = improver.refilled(choices)
    together = replayer.replay(choices, edges)
    for row in range(strategies):
        one = slice(row, row + 1)
        values = replayer.values(choices[one], edges[one])
        alone = replayer.replay_values(values, replayer.host_times(choices[one], edges[one]))
        for field in fields(alone):
            found = getattr(together, field.name)[row]
            assert found == pytest.approx(getattr(alone, field.name)[0], rel=1e-12), field.name
        assert together.peak_bytes[row] == alone.peak_bytes[0]
        assert together.peak_task[row] == alone.peak_task[0]
    values = replayer.values(choices, edges)
    same = replayer.replay_values(values, replayer.host_times(choices, edges))
    for field in fields(same):
        assert np.array_equal(getattr(together, field.name), getattr(same, field.name))


def test_edges_take_their_cheapest_alternatives(replayer: Replayer) -> None:
    choices, improver = _drawn(replayer, 5, seed=1)
    edges, totals = improver.refilled(choices)
    for one, alternatives, total in zip(choices, edges, totals, strict=True):
        expected = improver.charges.constant + sum(
            costs[choice] for costs, choice in zip(improver.charges.groups, one, strict=True)
        )
        crossings = zip(replayer.problem.edges, improver.charges.edges, strict=True)
        for (edge, costs), alternative in zip(crossings, alternatives, strict=True):
            row, column = edge.table.cell(one[edge.source], one[edge.target])
            of_pair = costs[row, column, : edge.table.count[row, column]]
            assert alternative == of_pair.argmin()
            expected += of_pair.min()
        assert total == pytest.approx(expected, rel=1e-12)


def test_unknown_choices_are_refused() -> None:
    groups = [np.array([1.0, 2.0])], np.array([0])
    edges: tuple[list[Cheapest], NDArray[np.int64]] = ([], np.zeros((0, 3), dtype=np.int64))
    found, totals = _core.refilled(np.array([[1]], dtype=np.uint32), 0.5, groups, edges)
    assert (found.shape, totals.tolist()) == ((1, 0), [2.5])
    with pytest.raises(ValueError, match="numbers of what there is"):
        _core.refilled(np.array([[2]], dtype=np.uint32), 0.5, groups, edges)
    with pytest.raises(ValueError, match="no table"):
        _core.refilled(np.array([[0]], dtype=np.uint32), 0.5, (groups[0], np.array([1])), edges)


def test_a_cell_takes_the_least_alternative_that_counts() -> None:
    problem = _core.Problem()
    costs = problem.add_costs(np.zeros(2), np.zeros(2))
    first, second = problem.add_operator("a", costs), problem.add_operator("b", costs)
    time_s = np.array([[[5.0, 4.0], [7.0, 1.0]], [[6.0, 6.5], [8.0, 9.0]]])
    table = problem.add_least_table(time_s, np.array([[2, 1], [1, 2]], dtype=np.uint8))
    rows = np.array([0, 1], dtype=np.uint32)
    problem.add_edge(first, second, table, rows, rows)
    bound, _, choices, _ = _core.least_time(problem)
    assert bound == 4.0
    assert choices.tolist() == [0, 0]
    with pytest.raises(ValueError, match="at most A"):
        problem.add_least_table(time_s, np.full((2, 2), 3, dtype=np.uint8))
