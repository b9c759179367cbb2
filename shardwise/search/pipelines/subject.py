"""A graph for pipelines: no group spans blocks, no parameter is at both ends of the model.

A parameter that is read both before and after blocks (a tied embedding) would be one group that
spans the whole model. Here each reader outside blocks has its own copy; if copies end up in
different stages, their gradients are summed once a step (`hops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.graph import Graph, content_id
from shardwise.graph.graph import Operator, Tensor
from shardwise.search.search import Subject
from shardwise.sharding.coarsen import coarsen
from shardwise.sharding.pattern import Patterns
from shardwise.sharding.segments import Blocks
from shardwise.tdl import registry


@dataclass(frozen=True)
class Tied:
    """A parameter and its copies, by name; the parameter itself is the first."""

    copies: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class StagedSubject:
    """A subject that can be cut between blocks, and its copied parameters."""

    subject: Subject
    tied: tuple[Tied, ...]

    @classmethod
    def of(cls, graph: Graph) -> StagedSubject:
        """Returns the subject of a graph. It keeps the graph's id."""
        blocks = Blocks(graph.operators)
        untied, tied = _untied(graph, blocks)
        coarsened = coarsen(
            untied, lambda op: registry.analyse(op, untied.tensors), within=blocks.of
        )
        return cls(Subject(untied, content_id(graph), coarsened, Patterns(coarsened)), tied)


def _untied(graph: Graph, blocks: Blocks) -> tuple[Graph, tuple[Tied, ...]]:
    """Returns the graph with a copy of each parameter per reading position outside blocks, and the
    copied ones."""
    gaps = _gaps(graph.operators, blocks)
    renamed: dict[tuple[str, str], str] = {}
    tensors: dict[str, Tensor] = dict(graph.tensors)
    tied = []
    for name, tensor in graph.tensors.items():
        if tensor.role != "parameter":
            continue
        readers = graph.consumers[name]
        places = list(dict.fromkeys(gaps[op.name] for op in readers))
        if len(places) < 2 or None in places:
            continue
        copies = [name, *(f"{name} (copy {n})" for n in range(2, len(places) + 1))]
        for copy in copies[1:]:
            tensors[copy] = replace(tensor, name=copy)
        for op in readers:
            renamed[op.name, name] = copies[places.index(gaps[op.name])]
        tied.append(Tied(tuple(copies), tensor.size_bytes))
    if not tied:
        return graph, ()
    operators = tuple(
        replace(op, inputs=tuple(renamed.get((op.name, name), name) for name in op.inputs))
        for op in graph.operators
    )
    return replace(graph, tensors=tensors, operators=operators), tuple(tied)


def _gaps(operators: Sequence[Operator], blocks: Blocks) -> dict[str, int | None]:
    """Returns for each operator outside blocks the number of blocks before it; None for one
    inside."""
    seen: set[str] = set()
    gaps: dict[str, int | None] = {}
    for op in operators:
        block = blocks.of(op)
        if block is not None:
            seen.add(block)
        gaps[op.name] = len(seen) if block is None else None
    return gaps
