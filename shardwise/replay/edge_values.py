"""What an edge does under a pair of configurations and an alternative, term by term, for replay.

The terms of the costs in `crossings.py`: both directions of re-scheduling, what is rebuilt in
backward, which copies are there. Only the pairs that strategies chose are worked out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchEdge, SearchProblem
from shardwise.cost.crossings import AFTER, BEFORE, BOTH, REBUILT
from shardwise.cost.pins import forbidden_end
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.sharding.layout import Floats, Layouts, local_elements

COLUMNS = (
    "forward_s",
    "backward_s",
    "moved",
    "same",
    "moved_back",
    "same_back",
    "target_bytes",
    "target_staged",
    "gradient_bytes",
    "gradient_staged",
    "keep_target",
    "keep_source",
    "keep_same",
    "before",
    "before_s",
    "before_bytes",
    "before_staged",
    "before_again",
    "before_again_s",
    "before_again_bytes",
    "before_again_staged",
    "after",
    "after_s",
    "after_bytes",
    "after_staged",
    "rerun_moved",
    "rerun_moved_s",
    "rerun_moved_bytes",
    "rerun_moved_staged",
    "rerun_same",
)
"""Of one tensor. Seconds of its moves; flags; bytes of the copies that moves make (0: none), and
of what they hold besides (`staging.py`).

`keep_target`: the reader's copy stays until backward; `keep_source`: so does the producer's own,
as far as the producer needs it; `keep_same`: there is one copy, and it stays. `before`, `after`:
backward moves the producer's (the reader's) copy again for the other; `before_again`: as `before`,
for a reader that runs forward again. `rerun_…`: the reader gets it from the producer's
recomputation of forward.
"""

COLUMN = {name: number for number, name in enumerate(COLUMNS)}


class EdgeValues:
    """The columns of all edges that share one table of costs."""

    def __init__(self, problem: SearchProblem, edge: SearchEdge) -> None:
        self._table = edge.table
        name, context = edge.tensors[0], problem.context
        tensor = context.graph.tensors[name]
        source, target = problem.patterns[edge.source], problem.patterns[edge.target]
        out, into = source.exits.index(name), target.entries.index(name)
        exit_layouts = problem.costs[edge.source].exits[out]
        entry_layouts = problem.costs[edge.target].entries[into]
        row, column = _first(self._table.rows), _first(self._table.columns)
        item = DTYPE_BYTES[tensor.dtype]
        forbidden = forbidden_end(context.pins, source.group)
        self._paths = context.rescheduler(tensor.shape, item, forbidden)
        self._here = self._paths.register(exit_layouts.forward[row])
        self._there = self._paths.register(entry_layouts.forward[column])
        self._backward = context.patterns.carries_gradient(name)
        if self._backward:
            self._back_to = self._paths.register(exit_layouts.gradient[row])
            self._back_from = self._paths.register(entry_layouts.gradient[column])
        # The producer needs its own copy in backward, and the edge decides which is kept.
        self._owed = source.exit_deferred[out] & ~problem.costs[edge.source].recompute[row]
        self._recomputes = problem.costs[edge.target].recompute[column]
        self._at_source = _bytes(tensor.shape, exit_layouts.forward[row], context.mesh.sizes, item)
        self._at_target = _bytes(
            tensor.shape, entry_layouts.forward[column], context.mesh.sizes, item
        )

    def cells(
        self,
        at_source: NDArray[np.int64],
        at_target: NDArray[np.int64],
        alternative: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Returns the cell of each choice, same shape as the three."""
        _, columns, alternatives = self._table.memory_bytes.shape
        row = self._table.rows[at_source].astype(np.int64)
        column = self._table.columns[at_target].astype(np.int64)
        return np.asarray((row * columns + column) * alternatives + alternative)

    def values(self, cells: NDArray[np.int64]) -> Floats:
        """Returns the columns of N cells, shape (N, columns)."""
        _, columns, alternatives = self._table.memory_bytes.shape
        pair, alternative = np.divmod(cells, alternatives)
        row, column = np.divmod(pair, columns)
        here, there = self._here[row], self._there[column]
        kept = self._table.kept[row, column, alternative]
        moved = here != there
        forward = self._paths.distance(here, there)
        staged = self._paths.staged_bytes(here, there)
        at_source, at_target = self._at_source[row], self._at_target[column]
        before = moved & (kept == BEFORE)
        after = moved & (kept == AFTER) & self._owed[row]
        rerun = moved & (kept == REBUILT)
        result = np.zeros((len(cells), len(COLUMNS)))

        def fill(name: str, values: NDArray[np.generic]) -> None:
            result[:, COLUMN[name]] = values

        fill("forward_s", forward)
        fill("moved", moved)
        fill("same", ~moved)
        fill("target_bytes", np.where(moved, at_target, 0.0))
        fill("target_staged", staged)
        fill("keep_target", moved & ((kept == AFTER) | (kept == BOTH)))
        fill("keep_source", ~after)
        fill("keep_same", ~moved & (kept != REBUILT))
        for name, which in (
            ("before", before & ~self._recomputes[column]),
            ("before_again", before & self._recomputes[column]),
            ("rerun_moved", rerun),
        ):
            fill(name, which)
            fill(f"{name}_s", np.where(which, forward, 0.0))
            fill(f"{name}_bytes", np.where(which, at_target, 0.0))
            fill(f"{name}_staged", np.where(which, staged, 0.0))
        fill("after", after)
        fill("after_bytes", np.where(after, at_source, 0.0))
        if after.any():
            fill("after_s", np.where(after, self._paths.distance(there, here), 0.0))
            back = self._paths.staged_bytes(there, here)
            fill("after_staged", np.where(after, back, 0.0))
        fill("rerun_same", ~moved & (kept == REBUILT))
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
        result[:, COLUMN["gradient_staged"]] = self._paths.staged_bytes(start, end)
        result[:, COLUMN["gradient_bytes"]] = np.where(moved, self._at_source[row], 0.0)


def _first(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Returns one configuration per row of the table."""
    return np.unique(numbers, return_index=True)[1]


def _bytes(shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64], item: int) -> Floats:
    return local_elements(shape, layouts, sizes) * item
