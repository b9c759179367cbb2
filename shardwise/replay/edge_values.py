"""An edge's terms for replay, under a pair of configurations and an alternative.

These are the cost terms of `crossings.py`: re-scheduling in both directions, rebuilding in
backward, and which copies exist. They are computed only for pairs that strategies chose.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchEdge, SearchProblem
from shardwise.cost.crossings import AFTER, ALTERNATIVES, BEFORE, BOTH, REBUILT, End
from shardwise.cost.pins import forbidden_end
from shardwise.errors import InternalError
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.sharding.layout import Floats

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

MOST_ROWS = 10_000
"""Maximum cells of one edge whose columns are cached."""

Column = Floats | NDArray[np.bool_]

_MOVED_AGAIN = ("before", "before_again", "after", "rerun_moved")
"""Moves in backward; each has columns for its seconds and bytes besides its flag."""

COLUMN = {name: number for number, name in enumerate(COLUMNS)}


class EdgeValues:
    """The columns of all edges that share one table of costs."""

    def __init__(self, problem: SearchProblem, edge: SearchEdge) -> None:
        self._table = edge.table
        name, context = edge.tensors[0], problem.context
        tensor = context.graph.tensors[name]
        source, target = problem.patterns[edge.source], problem.patterns[edge.target]
        at_source = End.of_source(context, source, problem.costs[edge.source], name)
        at_target = End.of_target(context, target, problem.costs[edge.target], name)
        exit_layouts, entry_layouts = at_source.port, at_target.port
        row, column = _first(self._table.rows), _first(self._table.columns)
        item = DTYPE_BYTES[tensor.dtype]
        forbidden = forbidden_end(context.pins, source.group)
        self.paths = context.rescheduler(tensor.extents, item, forbidden)
        # Nodes of the layouts by row and by column; of the gradient by column and by row.
        self.here = self.paths.register(exit_layouts.forward[row])
        self.there = self.paths.register(entry_layouts.forward[column])
        self.gradient: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if context.patterns.carries_gradient(name):
            self.gradient = (
                self.paths.register(entry_layouts.gradient[column]),
                self.paths.register(exit_layouts.gradient[row]),
            )
        # The producer needs its own copy in backward, and the edge decides which is kept.
        self.owed = source.exit_deferred[source.exits.index(name)] & at_source.keeps[row]
        self.recomputes = at_target.again[column]
        mesh = context.mesh
        self.at_source = mesh.local_elements(tensor.extents, exit_layouts.forward[row]) * item
        self.at_target = mesh.local_elements(tensor.extents, entry_layouts.forward[column]) * item
        self._grids: dict[str, Floats] = {}
        self._rows_of = np.zeros(0, dtype=np.int64)
        self._known: Floats = np.zeros((0, len(COLUMNS)))

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

    def rows(self, cells: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Returns a table of columns (N, columns), and the row of each cell in it.

        Cells chosen before keep their rows. Above `MOST_ROWS` the table is cleared.
        """
        if not len(self._rows_of):
            self._rows_of = np.full(self._table.memory_bytes.size, -1, dtype=np.int64)
        new = cells[self._rows_of[cells] < 0]
        if new.size:
            if len(self._known) > MOST_ROWS:
                self._rows_of[:] = -1
                self._known, new = self._known[:0], cells
            occurring = np.unique(new)
            self._rows_of[occurring] = len(self._known) + np.arange(len(occurring))
            self._known = np.concatenate([self._known, self.values(occurring)])
        return self._known, self._rows_of[cells]

    def values(self, cells: NDArray[np.int64]) -> Floats:
        """Returns the columns of N cells, shape (N, columns)."""
        _, columns, alternatives = self._table.memory_bytes.shape
        pair, alternative = np.divmod(cells, alternatives)
        row, column = np.divmod(pair, columns)
        chosen = _Cells(self, row, column, self._table.kept[row, column, alternative])
        result = np.zeros((len(cells), len(COLUMNS)))
        for number, name in enumerate(COLUMNS):
            result[:, number] = chosen.column(name)
        return result

    def grid(self, name: str) -> Floats:
        """Returns one column of all cells, shape (R, C, A), also for unused alternatives."""
        if name not in self._grids:
            rows, columns, _ = self._table.memory_bytes.shape
            row, column = np.arange(rows)[:, None, None], np.arange(columns)[None, :, None]
            every = _Cells(self, row, column, self._table.kept)
            of_all = np.broadcast_to(every.column(name), self._table.kept.shape)
            self._grids[name] = of_all.astype(np.float64)
        return self._grids[name]

    def grid_of(self, number: int) -> Floats:
        """Returns the column of a number, as `grid`."""
        return self.grid(COLUMNS[number])

    def weighted(self, weights: Floats) -> Floats:
        """Returns the seconds of all cells, weighted, shape (R, C, A).

        `weights` are by column; those of columns other than seconds must be 0.
        """
        of = dict.fromkeys(COLUMNS, 0.0) | dict(zip(COLUMNS, weights.tolist(), strict=False))
        once = of.pop("forward_s") * self._forward_s + of.pop("backward_s") * self._backward_s
        there, back = np.zeros((2, len(ALTERNATIVES))), np.zeros((2, len(ALTERNATIVES)))
        there[:, BEFORE] = of.pop("before_s"), of.pop("before_again_s")
        there[:, REBUILT] = of.pop("rerun_moved_s")
        back[1, AFTER] = of.pop("after_s")
        if any(of.values()):
            other = ", ".join(name for name, weight in of.items() if weight)
            raise InternalError(f"weights of what is not in seconds: {other}")
        return _core.weighted_cells(
            self._table.kept,
            np.ascontiguousarray(once),
            self._forward_s,
            self._back_s,
            column_flags=self.recomputes,
            row_flags=self.owed,
            there_again=there,
            back_again=back,
        )

    @cached_property
    def _pairs(self) -> _Cells:
        """All pairs of rows and columns."""
        rows, columns, _ = self._table.memory_bytes.shape
        row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
        return _Cells(self, row, column, np.zeros((rows, columns), dtype=np.int8))

    @cached_property
    def _forward_s(self) -> Floats:
        """Seconds of the move in forward, shape (R, C)."""
        return np.ascontiguousarray(self._pairs.column("forward_s"), dtype=np.float64)

    @cached_property
    def _backward_s(self) -> Floats:
        """Seconds of the gradient's move, shape (R, C) or (1,)."""
        return np.asarray(self._pairs.column("backward_s"), dtype=np.float64)

    @cached_property
    def _back_s(self) -> Floats:
        """Seconds of moving the tensor back, shape (R, C)."""
        return np.ascontiguousarray(self.paths.distance(self.there[None, :], self.here[:, None]))


class _Cells:
    """Some cells: rows, columns and kept copies, broadcast to one shape."""

    def __init__(
        self,
        edge: EdgeValues,
        row: NDArray[np.int64],
        column: NDArray[np.int64],
        kept: NDArray[np.int8],
    ) -> None:
        self._edge = edge
        self._row, self._column, self._kept = row, column, kept
        self._here, self._there = edge.here[row], edge.there[column]
        self._known: dict[str, NDArray[np.bool_]] = {}

    def column(self, name: str) -> Column:
        """Returns one of `COLUMNS`."""
        if name in _MOVED_AGAIN:
            return self.moves_again(name)
        which, _, what = name.rpartition("_")
        if which in _MOVED_AGAIN:
            return np.where(self.moves_again(which), self._of_move(which, what), 0.0)
        return self._plain(name)

    def _plain(self, name: str) -> Column:
        edge, kept = self._edge, self._kept
        match name:
            case "forward_s":
                return self._forward_s
            case "moved":
                return self._moved
            case "same":
                return np.asarray(~self._moved)
            case "target_bytes":
                return np.where(self._moved, edge.at_target[self._column], 0.0)
            case "target_staged":
                return self._staged_there
            case "keep_target":
                return np.asarray(self._moved & ((kept == AFTER) | (kept == BOTH)))
            case "keep_source":
                return np.asarray(~self.moves_again("after"))
            case "keep_same":
                return np.asarray(~self._moved & (kept != REBUILT))
            case "rerun_same":
                return np.asarray(~self._moved & (kept == REBUILT))
        return self._gradient(name)

    def _gradient(self, name: str) -> Column:
        edge = self._edge
        if edge.gradient is None:
            return np.full(1, float(name == "same_back"))
        start, end = edge.gradient[0][self._column], edge.gradient[1][self._row]
        moved = start != end
        match name:
            case "backward_s":
                return edge.paths.distance(start, end)
            case "moved_back":
                return np.asarray(moved)
            case "same_back":
                return np.asarray(~moved)
            case "gradient_staged":
                return edge.paths.staged_bytes(start, end)
            case "gradient_bytes":
                return np.where(moved, edge.at_source[self._row], 0.0)
        raise KeyError(name)

    @cached_property
    def _moved(self) -> NDArray[np.bool_]:
        return np.asarray(self._here != self._there)

    @cached_property
    def _forward_s(self) -> Floats:
        return self._edge.paths.distance(self._here, self._there)

    @cached_property
    def _back_s(self) -> Floats:
        return self._edge.paths.distance(self._there, self._here)

    @cached_property
    def _staged_there(self) -> Floats:
        return self._edge.paths.staged_bytes(self._here, self._there)

    @cached_property
    def _staged_here(self) -> Floats:
        """The bytes that moves back to the producer's layout hold besides, if any."""
        happens = self.moves_again("after")
        start, end = (np.broadcast_to(nodes, happens.shape) for nodes in (self._there, self._here))
        staged = np.zeros(happens.shape)
        staged[happens] = self._edge.paths.staged_bytes(start[happens], end[happens])
        return staged

    def moves_again(self, which: str) -> NDArray[np.bool_]:
        """Returns whether backward moves the tensor again in this way."""
        if which not in self._known:
            self._known[which] = self._find_again(which)
        return self._known[which]

    def _find_again(self, which: str) -> NDArray[np.bool_]:
        edge = self._edge
        if which == "after":
            return np.asarray(self._moved & (self._kept == AFTER) & edge.owed[self._row])
        if which == "rerun_moved":
            return np.asarray(self._moved & (self._kept == REBUILT))
        recomputes = edge.recomputes[self._column]
        before = self._moved & (self._kept == BEFORE)
        return np.asarray(before & (recomputes if which == "before_again" else ~recomputes))

    def _of_move(self, which: str, what: str) -> Floats:
        """Returns a move's seconds, bytes of its copy, or bytes held besides."""
        edge, back = self._edge, which == "after"
        if what == "bytes":
            return edge.at_source[self._row] if back else edge.at_target[self._column]
        if what == "s":
            return self._back_s if back else self._forward_s
        return self._staged_here if back else self._staged_there


def _first(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Returns one configuration per row of the table."""
    return np.unique(numbers, return_index=True)[1]
