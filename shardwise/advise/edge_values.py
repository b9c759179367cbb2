"""What an edge does under a pair of configurations and an alternative, term by term, for replay.

The terms of `assemble.py`'s edge costs: both directions of re-scheduling, what is rebuilt in
backward, which copies are there. Only the pairs that strategies chose are worked out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.assemble import ALTERNATIVES, SearchEdge, SearchProblem
from shardwise.advise.layout import Floats, Layouts, local_elements
from shardwise.graph.graph import DTYPE_BYTES

COLUMNS = (
    "forward_s",
    "backward_s",
    "rebuild_target_s",
    "rebuild_source_s",
    "moved",
    "same",
    "moved_back",
    "same_back",
    "keep_target",
    "rebuild_target",
    "rebuild_source",
    "keep_source",
    "target_bytes",
    "source_bytes",
    "rebuilt_target_bytes",
    "rebuilt_source_bytes",
)
"""Seconds of one tensor's moves, flags, and bytes of the copies that they make (0: none)."""

COLUMN = {name: number for number, name in enumerate(COLUMNS)}
_BEFORE, _AFTER = ALTERNATIVES.index("before"), ALTERNATIVES.index("after")


class EdgeValues:
    """The columns of all edges that share one table of costs."""

    def __init__(self, problem: SearchProblem, edge: SearchEdge) -> None:
        self._table = edge.table
        name = edge.tensors[0]
        tensor = problem.context.graph.tensors[name]
        source, target = problem.patterns[edge.source], problem.patterns[edge.target]
        out, into = source.exits.index(name), target.entries.index(name)
        made = problem.costs[edge.source].exits[out]
        read = problem.costs[edge.target].entries[into]
        row, column = _first(self._table.rows), _first(self._table.columns)
        self._paths = problem.context.rescheduler(tensor.shape, DTYPE_BYTES[tensor.dtype])
        self._here = self._paths.register(made.forward[row])
        self._there = self._paths.register(read.forward[column])
        self._backward = problem.context.patterns.carries_gradient(name)
        if self._backward:
            self._back_to = self._paths.register(made.gradient[row])
            self._back_from = self._paths.register(read.gradient[column])
        self._deferred = source.exit_deferred[out]
        sizes, item = problem.context.mesh.sizes, DTYPE_BYTES[tensor.dtype]
        self._at_source = _bytes(tensor.shape, made.forward[row], sizes, item)
        self._at_target = _bytes(tensor.shape, read.forward[column], sizes, item)

    def cells(
        self,
        at_source: NDArray[np.int64],
        at_target: NDArray[np.int64],
        alternative: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The cell of each choice, same shape as the three."""
        _, columns, alternatives = self._table.memory_bytes.shape
        row = self._table.rows[at_source].astype(np.int64)
        column = self._table.columns[at_target].astype(np.int64)
        return (row * columns + column) * alternatives + alternative

    def values(self, cells: NDArray[np.int64]) -> Floats:
        """Of N cells, shape (N, columns)."""
        _, columns, alternatives = self._table.memory_bytes.shape
        pair, alternative = np.divmod(cells, alternatives)
        row, column = np.divmod(pair, columns)
        here, there = self._here[row], self._there[column]
        kept = self._table.kept[row, column, alternative]
        moved = here != there
        again = moved & (kept == _BEFORE)
        undone = moved & (kept == _AFTER) & self._deferred
        result = np.zeros((len(cells), len(COLUMNS)))

        def fill(name: str, values: NDArray[np.generic]) -> None:
            result[:, COLUMN[name]] = values

        forward = self._paths.distance(here, there)
        fill("forward_s", forward)
        fill("rebuild_target_s", np.where(again, forward, 0.0))
        if undone.any():
            fill("rebuild_source_s", np.where(undone, self._paths.distance(there, here), 0.0))
        fill("moved", moved)
        fill("same", ~moved)
        fill("keep_target", moved & ~again)
        fill("rebuild_target", again)
        fill("rebuild_source", undone)
        fill("keep_source", ~undone)
        fill("target_bytes", np.where(moved, self._at_target[column], 0.0))
        fill("rebuilt_target_bytes", np.where(again, self._at_target[column], 0.0))
        fill("rebuilt_source_bytes", np.where(undone, self._at_source[row], 0.0))
        self._fill_backward(result, row, column)
        return result

    def _fill_backward(
        self, result: Floats, row: NDArray[np.int64], column: NDArray[np.int64]
    ) -> None:
        if not self._backward:
            result[:, COLUMN["same_back"]] = 1.0
            return
        start, end = self._back_from[column], self._back_to[row]
        moved = start != end
        result[:, COLUMN["backward_s"]] = self._paths.distance(start, end)
        result[:, COLUMN["moved_back"]] = moved
        result[:, COLUMN["same_back"]] = ~moved
        result[:, COLUMN["source_bytes"]] = np.where(moved, self._at_source[row], 0.0)


def _first(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """One configuration per row of the table."""
    return np.unique(numbers, return_index=True)[1]


def _bytes(
    shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64], item: int
) -> Floats:
    return local_elements(shape, layouts, sizes) * item

