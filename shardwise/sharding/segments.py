"""Segments of recomputation: the blocks of a model, each run again as a whole in backward.

Chen et al. 2016 ("Training deep nets with sublinear memory cost") keep only what enters a segment
and run it again before its backward. A segment is an item of a list of modules
(`model.layers.7`): of nested lists the innermost whose items have at least `SMALL` operators.
Groups outside any such item are segments of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardwise.sharding.coarsen import Coarsened

SMALL = 8
"""A list's item with fewer operators than this is a part of a block, not a block."""


def segments(coarsened: Coarsened) -> tuple[int, ...]:
    """Returns the segment of each group, numbered from 0 in order of first use."""
    sizes = Counter(
        item
        for group in coarsened.groups
        for member in group.members
        for item in items(member.operator.scope)
    )
    numbers: dict[str, int] = {}
    segment_of_group = []
    for group in coarsened.groups:
        blocks = [i for i in items(group.anchor.operator.scope) if sizes[i] >= SMALL]
        label = blocks[-1] if blocks else f"group {group.index}"
        segment_of_group.append(numbers.setdefault(label, len(numbers)))
    return tuple(segment_of_group)


def items(scope: str) -> Iterator[str]:
    """Yields the prefixes of a scope that are items of lists, outermost first."""
    names = scope.split(".")
    for end, name in enumerate(names, start=1):
        if name.isdigit():
            yield ".".join(names[:end])
