"""What the search computes in Rust beside eliminations: weighted tables, gathered values."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise import _core
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import assemble
from shardwise.cost.crossings import AFTER, BEFORE, REBUILT
from shardwise.cost.options import Options, quiet
from shardwise.graph import read_graph
from shardwise.hardware import Mesh, load_hardware
from shardwise.replay.edge_values import COLUMNS
from shardwise.replay.replay import Replayer
from shardwise.search.search import Subject

SECONDS = [name for name in COLUMNS if name.endswith("_s")]


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    subject = Subject.of(read_graph(shipped_graph("gpt2")))
    options = Options()
    hardware = load_hardware("dgx-h100")
    mesh = Mesh.build(hardware, 4)
    problem = assemble(subject.variant(options, 2), hardware, mesh, options, quiet, 2)
    return Replayer(problem, options.step)


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


def test_a_cell_takes_the_least_alternative_that_counts() -> None:
    problem = _core.Problem()
    costs = problem.add_costs(np.zeros(2), np.zeros(2))
    first, second = problem.add_operator("a", costs), problem.add_operator("b", costs)
    time_s = np.array([[[5.0, 4.0], [7.0, 1.0]], [[6.0, 6.5], [8.0, 9.0]]])
    table = problem.add_least_table(time_s, np.array([[2, 1], [1, 2]], dtype=np.uint8))
    rows = np.array([0, 1], dtype=np.uint32)
    problem.add_edge(first, second, table, rows, rows)
    bound, choices, _ = _core.least_time(problem)
    assert bound == 4.0
    assert choices.tolist() == [0, 0]
    with pytest.raises(ValueError, match="at most A"):
        problem.add_least_table(time_s, np.full((2, 2), 3, dtype=np.uint8))
