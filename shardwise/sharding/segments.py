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
from shardwise.sharding.once import Once

SMALL = 8
"""A list's item with fewer operators than this is a part of a block, not a block."""


class Blocks:
    """The blocks of a model."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._sizes = Counter(item for op in operators for item in items(op.scope))
        self._of_scope = Once()

    @classmethod
    def of_coarsened(cls, coarsened: Coarsened) -> Blocks:
        """Returns the blocks of a model; what all devices compute in full is in none."""
        members = (member for group in coarsened.groups for member in group.members)
        return coarsened.of_names.once("blocks", lambda: cls(m.operator for m in members))

    def of(self, operator: Operator) -> str | None:
        """Returns the block of an operator, such as `model.layers.7`, or None outside any."""
        return self._of_scope.once(operator.scope, lambda: self._of(operator.scope))

    def _of(self, scope: str) -> str | None:
        blocks = [item for item in items(scope) if self._sizes[item] >= SMALL]
        return blocks[-1] if blocks else None

    def of_group(self, members: Sequence[Member]) -> str | None:
        """Returns the block of a group of operators: that of its heaviest, or of its last if all
        are light, as the residual addition that ends a layer and the next layer's norm are."""
        heaviest = max(members, key=lambda m: m.semantics.forward_flops)
        heavy = heaviest.semantics.category not in LIGHT
        return self.of((heaviest if heavy else members[-1]).operator)


def blocks_of_groups(coarsened: Coarsened) -> tuple[str | None, ...]:
    """Returns the block of each group, None for those outside any."""
    blocks = Blocks.of_coarsened(coarsened)
    return tuple(blocks.of_group(group.members) for group in coarsened.groups)


def segments(coarsened: Coarsened) -> tuple[int, ...]:
    """Returns the segment of each group, numbered from 0 in order of first use."""
    numbers: dict[str, int] = {}
    labels = (own or f"group {index}" for index, own in enumerate(blocks_of_groups(coarsened)))
    return tuple(numbers.setdefault(label, len(numbers)) for label in labels)


def items(scope: str) -> Iterator[str]:
    """Yields the prefixes of a scope that are items of lists, outermost first."""
    names = scope.split(".")
    for end, name in enumerate(names, start=1):
        if name.isdigit():
            yield ".".join(names[:end])
