"""The layouts that a split gives one operator's inputs and outputs, forward and of gradients.

What `group_work.py` derives for all configurations at once, for one: `split[a]` is the position in
`semantics.variables` that mesh axis a splits, or None. Per axis and tensor:

    input    indexed by the variable: shard(dim), gradient too; else replicate, gradient partial
    output   indexed: shard(dim) both; a sum over the variable: partial, gradient replicate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.advise.layout import PARTIAL, REPLICATE
from shardwise.graph.graph import Operator
from shardwise.tdl.semantics import Access, OperatorSemantics

Layout = tuple[int, ...]
Split = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class LayoutPair:
    """The layout of a tensor and that of its gradient, one number per mesh axis."""

    forward: Layout
    gradient: Layout


@dataclass(frozen=True)
class OperatorLayouts:
    """In the order of the operator's inputs and outputs."""

    inputs: tuple[LayoutPair, ...]
    outputs: tuple[LayoutPair, ...]


def operator_layouts(semantics: OperatorSemantics, split: Split) -> OperatorLayouts:
    """The layouts of one operator under one split."""
    return OperatorLayouts(
        tuple(_input(accesses, split) for accesses in semantics.inputs),
        tuple(_output(semantics, accesses, split) for accesses in semantics.outputs),
    )


def whole_layouts(operator: Operator, axes: int) -> OperatorLayouts:
    """Those of an operator that every device computes in full on a mesh of so many axes."""
    whole = LayoutPair((REPLICATE,) * axes, (REPLICATE,) * axes)
    return OperatorLayouts((whole,) * len(operator.inputs), (whole,) * len(operator.outputs))


def split_of(variables: Sequence[int], assignment: Sequence[int]) -> Split:
    """A member's split: `variables` are its group variables, `assignment` one of those per axis.

    Where two of its variables are one group variable, the last stands for both.
    """
    by_group = {group: own for own, group in enumerate(variables)}
    return tuple(by_group.get(int(variable)) for variable in assignment)


def _input(accesses: Mapping[int, Access], split: Split) -> LayoutPair:
    forward, gradient = [], []
    for v in split:
        access = None if v is None else accesses.get(v)
        forward.append(REPLICATE if access is None else access.dim)
        whole = REPLICATE if v is None else PARTIAL
        gradient.append(whole if access is None else access.dim)
    return LayoutPair(tuple(forward), tuple(gradient))


def _output(
    semantics: OperatorSemantics, accesses: Mapping[int, Access], split: Split
) -> LayoutPair:
    forward, gradient = [], []
    for v in split:
        access = None if v is None else accesses.get(v)
        summed = v is not None and semantics.variables[v].is_reduction
        whole = PARTIAL if summed else REPLICATE
        forward.append(whole if access is None else access.dim)
        gradient.append(REPLICATE if access is None else access.dim)
    return LayoutPair(tuple(forward), tuple(gradient))
