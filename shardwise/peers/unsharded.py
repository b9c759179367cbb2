"""Which parameters a strategy with ZeRO leaves whole on more devices than its name says.

A group can be sharded along the axes that repeat its parameters while they split its work. Where
no split of samples reaches a group, a strategy of the whole model cannot shard it: what would be
priced is another strategy than the one that was named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.sharding.routing import ROUTED

WHOLE_SHARE = 0.02
"""The share of the trained parameters from which leaving them whole makes another strategy."""

WHOLE_BYTES = 2**24
"""The bytes of parameters, gradients and state that this takes on a device at the least."""

MOST_NAMES = 3


def unsharded_text(problem: SearchProblem, choices: NDArray[np.uint32], shards: int) -> str | None:
    """Returns which parameters are in fewer than `shards` shards, in words; None where they are
    few, and where `shards` is 1."""
    if shards == 1:
        return None
    sizes = problem.context.mesh.sizes
    owned = list(_owned(problem))
    whole: list[str] = []
    left, left_bytes = 0, 0.0
    for number, (cost, choice) in enumerate(zip(problem.costs, choices.tolist(), strict=True)):
        group = problem.coarsened.groups[number]
        marked = (int(cost.zero_axes[choice]) >> np.arange(len(sizes)) & 1).astype(bool)
        if ROUTED in group.variables:
            # Devices along which experts differ divide samples elsewhere.
            marked |= cost.assignment[choice] == group.variables.index(ROUTED)
        if owned[number] and np.where(marked, sizes, 1).prod() < shards:
            whole.append(group.name)
            left += owned[number]
            left_bytes += float(cost.parameter_bytes[choice])
    share = left / max(sum(owned), 1)
    if share < WHOLE_SHARE or left_bytes < WHOLE_BYTES:
        return None
    more = f" and {len(whole) - MOST_NAMES} more" if len(whole) > MOST_NAMES else ""
    return (
        f"{share:.0%} of the parameters cannot be in {shards} shards: no split of samples reaches "
        f"{', '.join(whole[:MOST_NAMES])}{more}"
    )


def _owned(problem: SearchProblem) -> Iterator[int]:
    """Yields for each group the elements of the trained parameters that it is the first to read."""
    tensors, seen = problem.context.graph.tensors, set[str]()
    for group in problem.coarsened.groups:
        read = {name for member in group.members for name in member.operator.inputs} - seen
        seen |= read
        yield sum(
            tensors[name].elements
            for name in read
            if tensors[name].role == "parameter" and problem.context.patterns.carries_gradient(name)
        )
