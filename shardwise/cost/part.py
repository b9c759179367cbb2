"""The solver's problem over some configurations of each group, or with other costs.

Costs are indexed by the whole problem's rows; a solution is a strategy of the whole problem with
the same cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.crossings import EdgeTable
from shardwise.cost.group_costs import GroupCosts
from shardwise.sharding.layout import Floats
from shardwise.sharding.pattern import GroupPattern

Masks = Sequence[NDArray[np.bool_]]
"""Per group which of its configurations are allowed, each of shape (K,)."""


@dataclass(frozen=True)
class Part:
    """The solver's problem, and per group the whole problem's rows that its choices mean."""

    problem: _core.Problem
    rows: tuple[NDArray[np.int64], ...]

    def whole(self, choices: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Returns choices of the part, shape (points, groups), as rows of the whole."""
        columns = [rows[choices[:, g]] for g, rows in enumerate(self.rows)]
        if not columns:
            return choices
        return np.stack(columns, axis=1).astype(np.uint32)


class Edge(Protocol):
    """A crossing between two groups, or two classes of them, with its costs."""

    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def table(self) -> EdgeTable: ...


def part_of(
    patterns: Sequence[GroupPattern],
    costs: Sequence[GroupCosts],
    edges: Sequence[Edge],
    allowed: Masks,
    *,
    time_only: bool = False,
) -> Part:
    """Returns the problem in which group g takes one of the configurations marked by `allowed[g]`.

    Memory and time are the sums'; with `time_only` memory is 0, so that the frontier is the single
    fastest strategy. Raises `ValueError` if a group has no configuration left.
    """
    part = _core.Problem()
    known_rows: dict[tuple[int, int], tuple[NDArray[np.int64], Hashable]] = {}
    rows: list[NDArray[np.int64]] = []
    ids: dict[Hashable, int] = {}
    for pattern, cost, mask in zip(patterns, costs, allowed, strict=True):
        at = (id(cost), id(mask))
        if at not in known_rows:
            kept = np.flatnonzero(mask)
            known_rows[at] = (kept, (id(cost), kept.tobytes()))
        kept, key = known_rows[at]
        if not len(kept):
            raise ValueError(f"no configuration is left of {pattern.group.name}")
        if key not in ids:
            ids[key] = part.add_costs(
                _counted(cost.memory_bytes[kept], time_only), cost.time_s[kept]
            )
        part.add_operator(pattern.group.name, ids[key])
        rows.append(kept)
    _add_edges(
        part,
        edges,
        rows,
        lambda table: (_counted(table.memory_bytes, time_only), table.time_s),
    )
    return Part(part, tuple(rows))


def _counted(memory: Floats, time_only: bool) -> Floats:
    return np.zeros_like(memory) if time_only else memory


def _add_edges(
    part: _core.Problem,
    edges: Sequence[Edge],
    rows: Sequence[NDArray[np.int64]],
    costs_of: Callable[[EdgeTable], tuple[Floats, Floats]],
) -> None:
    tables: dict[int, int] = {}
    for edge in edges:
        table = edge.table
        if id(table) not in tables:
            tables[id(table)] = part.add_table(*costs_of(table), table.count)
        part.add_edge(
            edge.source,
            edge.target,
            tables[id(table)],
            table.rows[rows[edge.source]],
            table.columns[rows[edge.target]],
        )
