"""The rule by which a split gives an operator's tensors their layouts, forward and of gradients.

A split says for each mesh axis which variable of the operator it splits, if any. Per axis and
tensor:

    input    indexed by the variable: shard(dim), gradient too; else replicate, gradient partial
    output   indexed: shard(dim) both; a sum over the variable: partial, gradient replicate

An axis that splits nothing replicates both. One that splits the readers of an operator on
parameters alone (`on_parameters.py`), but no variable of its own, gives it TERMS: forward is
replicated, gradients of its inputs and outputs are partial. The rule is written for many splits at
once, shape (K, axes), as the search needs it; a plan's operator is one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.graph.graph import Operator
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.sharding.layout import PARTIAL, REPLICATE, Layouts

Layout = tuple[int, ...]
Split = tuple[int | None, ...]
"""Per mesh axis the position of a variable, or None."""

LayoutRows = tuple[Layouts, Layouts]
"""Layouts forward and of the gradient, shape (K, axes) each."""

WHOLE = -1
"""In rows of splits: the axis splits no variable of this operator."""

TERMS = -2
"""The same of an operator on parameters alone, whose gradients are then terms of a sum."""


@dataclass(frozen=True, slots=True)
class LayoutPair:
    """The layout of a tensor and that of its gradient, one number per mesh axis."""

    forward: Layout
    gradient: Layout


@dataclass(frozen=True)
class OperatorLayouts:
    """Layouts in the order of the operator's inputs and outputs."""

    inputs: tuple[LayoutPair, ...]
    outputs: tuple[LayoutPair, ...]


def operator_layouts(
    semantics: OperatorSemantics, split: Split, terms: Collection[int] = ()
) -> OperatorLayouts:
    """Returns the layouts of one operator under one split; `terms` are the axes of TERMS."""
    whole = [TERMS if axis in terms else WHOLE for axis in range(len(split))]
    row = np.array(
        [[other if v is None else v for v, other in zip(split, whole, strict=True)]], dtype=np.int8
    )
    return OperatorLayouts(
        tuple(_pair(input_layouts(accesses, row)) for accesses in semantics.inputs),
        tuple(_pair(output_layouts(semantics, accesses, row)) for accesses in semantics.outputs),
    )


def whole_layouts(operator: Operator, axes: int) -> OperatorLayouts:
    """Returns the layouts of an operator that every device of `axes` mesh axes computes in full."""
    whole = LayoutPair((REPLICATE,) * axes, (REPLICATE,) * axes)
    return OperatorLayouts((whole,) * len(operator.inputs), (whole,) * len(operator.outputs))


def split_of(variables: Sequence[int], assignment: Sequence[int]) -> Split:
    """Returns a member's split: `variables` are its group variables, `assignment` one of those per
    axis.

    Where two of its variables are one group variable, the last is taken.
    """
    by_group = {group: own for own, group in enumerate(variables)}
    return tuple(by_group.get(int(variable)) for variable in assignment)


def axes_of_terms(splits: Iterable[Sequence[int | None]]) -> frozenset[int]:
    """Returns the axes on which a group's operators on parameters have TERMS, where they have no
    variable: those that split any of its operators."""
    return frozenset(axis for split in splits for axis, v in enumerate(split) if v is not None)


def splits_of(
    variables: Sequence[int], assignment: NDArray[np.int8], *, on_parameters: bool = False
) -> NDArray[np.int8]:
    """Returns `split_of` for many assignments (K, axes): positions in `variables`, or `WHOLE`, or
    of an operator on parameters alone `TERMS` where the axis splits others of its group."""
    own = np.full(assignment.shape, WHOLE, dtype=np.int8)
    if on_parameters:
        own[assignment >= 0] = TERMS
    for position, group in enumerate(variables):
        own[assignment == group] = position
    return own


def input_layouts(accesses: Mapping[int, Access], splits: NDArray[np.int8]) -> LayoutRows:
    """Returns the layouts of an input; a share that reads all of it adds a term of its gradient."""
    forward = np.full(splits.shape, REPLICATE, dtype=np.int8)
    gradient = np.where(splits == WHOLE, REPLICATE, PARTIAL).astype(np.int8)
    for variable, access in accesses.items():
        chosen = splits == variable
        forward[chosen] = gradient[chosen] = access.dim
    return forward, gradient


def output_layouts(
    semantics: OperatorSemantics, accesses: Mapping[int, Access], splits: NDArray[np.int8]
) -> LayoutRows:
    """Returns the layouts of an output, and those in which backward wants its gradient."""
    forward = np.full(splits.shape, REPLICATE, dtype=np.int8)
    gradient = np.where(splits == TERMS, PARTIAL, REPLICATE).astype(np.int8)
    for position, variable in enumerate(semantics.variables):
        chosen = splits == position
        access = accesses.get(position)
        if access is not None:
            forward[chosen] = gradient[chosen] = access.dim
        elif variable.is_reduction:
            forward[chosen] = PARTIAL
    return forward, gradient


def _pair(rows: LayoutRows) -> LayoutPair:
    forward, gradient = rows
    return LayoutPair(tuple(forward[0].tolist()), tuple(gradient[0].tolist()))
