"""Search problems and random strategies of them, for laws that hold for every strategy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem, assemble
from shardwise.cost.options import Options, quiet
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Mesh
from shardwise.search.search import Subject


def problem_of(
    graph: Graph, hardware: Hardware, gpus: int, options: Options, micro_batches: int = 1
) -> SearchProblem:
    """Returns the search problem of a question."""
    patterns = Subject.of(graph).variant(options, micro_batches)
    return assemble(patterns, hardware, Mesh.build(hardware, gpus), options, quiet, micro_batches)


def random_strategies(
    problem: SearchProblem,
    count: int,
    draw: np.random.Generator,
    allowed: Sequence[NDArray[np.bool_]] | None = None,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns choices (count, groups), of those that `allowed` marks, and of edges (count, edges).

    Every choice is drawn on its own.
    """
    masks = allowed or [np.ones(len(cost.time_s), dtype=bool) for cost in problem.costs]
    choices = np.stack([draw.choice(np.flatnonzero(mask), count) for mask in masks], axis=1)
    edges = np.zeros((count, len(problem.edges)), dtype=np.int64)
    for e, edge in enumerate(problem.edges):
        rows, columns = edge.table.rows[choices[:, edge.source]], edge.table.columns
        alternatives = edge.table.count[rows, columns[choices[:, edge.target]]]
        edges[:, e] = draw.integers(0, 2**30, count) % alternatives
    return choices.astype(np.uint32), edges.astype(np.uint32)
