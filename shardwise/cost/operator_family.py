"""The family of an operator's calls: what its time depends on besides shapes.

Left out of the attributes are those that shapes give (a size, a count of groups), those that say
where and not what (devices), and the values of scalars: whether one is 0 can matter to a kernel
(dropout, smoothing), which value it is does not, except of an exponent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from shardwise.graph.graph import Operator
from shardwise.hardware.operator_tables import Direction, OperatorFamily, canonical
from shardwise.sharding.coarsen import Group, Member
from shardwise.sharding.pattern import Patterns
from shardwise.sharding.strides import stride_classes

ARGUMENTS = "tensor_arguments"

GIVEN_BY_SHAPES = frozenset(
    {"size", "sizes", "shape", "normalized_shape", "output_size", "groups", "N", "C", "HxW"}
)
"""Attributes that follow from the shapes of a call's inputs and outputs."""

ELSEWHERE = frozenset({"device", "layout", "pin_memory", "generator", "cudnn_enable", ARGUMENTS})
"""Attributes that say nothing about the work."""

EXACT = frozenset({"exponent", "ord", "p"})
"""Scalars whose value decides which kernel runs."""


def attributes_that_matter(operator: Operator) -> dict[str, Any]:
    """Returns the attributes that a family shares."""
    return {
        name: _plain(name, value)
        for name, value in operator.attributes.items()
        if name not in GIVEN_BY_SHAPES and name not in ELSEWHERE and value is not None
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, float) and name not in EXACT:
        return value != 0.0
    return list(value) if isinstance(value, tuple) else value


@cache
def update_family(optimizer: str, dtype: str) -> OperatorFamily:
    """Returns the family of one parameter's update; its one shape is the count of its elements."""
    return OperatorFamily(
        f"optimizer.{optimizer}", "update", "{}", ("parameter",), (dtype,), ("",), (False,), (1,), 0
    )


class Families:
    """The families of the members of one graph's groups, each computed once."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._known: dict[tuple[str, Direction], OperatorFamily] = {}

    def of(self, member: Member, direction: Direction) -> OperatorFamily:
        """Returns the family of a member's calls in one direction."""
        op = member.operator
        key = (op.name, direction)
        if key not in self._known:
            tensors = self._patterns.graph.tensors
            backward = direction == "backward"
            self._known[key] = OperatorFamily(
                op.kind,
                direction,
                canonical(attributes_that_matter(op)),
                tuple(op.attributes.get(ARGUMENTS, [""] * len(op.inputs))),
                tuple(tensors[name].dtype for name in op.inputs),
                tuple(self._strides[name] for name in op.inputs),
                tuple(backward and self._patterns.carries_gradient(n) for n in op.inputs),
                tuple(len(tensors[name].shape) for name in (*op.inputs, *op.outputs)),
                len(op.outputs),
            )
        return self._known[key]

    def operands(self, group: Group) -> tuple[str, ...]:
        """Returns how everything that a group reads lies in memory."""
        return tuple(self._strides[name] for m in group.members for name in m.operator.inputs)

    @cached_property
    def _strides(self) -> Mapping[str, str]:
        members = [m for g in self._patterns.coarsened.groups for m in g.members]
        pointwise = frozenset(
            m.operator.name for m in members if m.semantics.category == "elementwise"
        )
        return stride_classes(self._patterns.graph, pointwise)
