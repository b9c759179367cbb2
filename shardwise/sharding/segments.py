"""Segments of recomputation: the blocks of a model, each run again as a whole in backward.

Chen et al. 2016 ("Training deep nets with sublinear memory cost") keep only what enters a segment
and run it again before its backward. A segment is an item of a list of modules
(`model.layers.7`): of nested lists the innermost whose items have at least `SMALL` operators.
Groups outside any such item are segments of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from shardwise.graph.graph import Operator
from shardwise.sharding.coarsen import LIGHT, Coarsened, Member

SMALL = 8
"""A list's item with fewer operators than this is a part of a block, not a block."""


class Blocks:
    """The blocks of a model."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._sizes = Counter(item for op in operators for item in items(op.scope))

    @classmethod
    def of_coarsened(cls, coarsened: Coarsened) -> Blocks:
        """Returns the blocks of a model; what all devices compute in full is in none."""
        return cls(member.operator for group in coarsened.groups for member in group.members)

    def of(self, operator: Operator) -> str | None:
        """Returns the block of an operator, such as `model.layers.7`, or None outside any."""
        blocks = [i for i in items(operator.scope) if self._sizes[i] >= SMALL]
        return blocks[-1] if blocks else None

    def of_group(self, members: Sequence[Member]) -> str | None:
        """Returns the block of a group of operators: that of its heaviest, or of its last if all
        are light, as the residual addition that ends a layer and the next layer's norm are."""
        heaviest = max(members, key=lambda m: m.semantics.forward_flops)
        heavy = heaviest.semantics.category not in LIGHT
        return self.of((heaviest if heavy else members[-1]).operator)


def segments(coarsened: Coarsened) -> tuple[int, ...]:
    """Returns the segment of each group, numbered from 0 in order of first use."""
    blocks = Blocks.of_coarsened(coarsened)
    numbers: dict[str, int] = {}
    segment_of_group = []
    for group in coarsened.groups:
        label = blocks.of_group(group.members) or f"group {group.index}"
        segment_of_group.append(numbers.setdefault(label, len(numbers)))
    return tuple(segment_of_group)


def items(scope: str) -> Iterator[str]:
    """Yields the prefixes of a scope that are items of lists, outermost first."""
    names = scope.split(".")
    for end, name in enumerate(names, start=1):
        if name.isdigit():
            yield ".".join(names[:end])
