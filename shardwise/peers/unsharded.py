"""What a strategy with ZeRO leaves whole on more devices than its name says.

ZeRO shards what axes repeat while they split a group's work, or where no split of samples reaches
its parameters. Where a group's batch cannot be cut into so many shares, its parameters are in fewer
shards; and where no split of samples reaches much of the work, all devices repeat it. What would be
priced is then another strategy than the one that was named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.space import NONE
from shardwise.sharding.routing import ROUTED

WHOLE_SHARE = 0.02
"""Minimum share of the trained parameters whose replication counts as another strategy."""

WHOLE_BYTES = 2**24
"""Minimum bytes of such parameters, their gradients and state on one device."""

REPEATED_SHARE = 0.02
"""Minimum share of forward operations whose repetition counts as another strategy."""

MOST_NAMES = 3


def unsharded_text(problem: SearchProblem, choices: NDArray[np.uint32], shards: int) -> str | None:
    """Returns which parameters are in fewer than `shards` shards, or what work all devices repeat,
    in words; None where both are little, and where `shards` is 1."""
    if shards == 1:
        return None
    return _whole_text(problem, choices, shards) or _repeated_text(problem, choices)


def _repeated_text(problem: SearchProblem, choices: NDArray[np.uint32]) -> str | None:
    """Returns which operations all devices repeat."""
    groups = problem.coarsened.groups
    flops = [sum(member.semantics.forward_flops for member in group.members) for group in groups]
    repeated = [
        group.index
        for group, cost, choice in zip(groups, problem.costs, choices.tolist(), strict=True)
        if flops[group.index] and (cost.assignment[choice] == NONE).all()
    ]
    share = sum(flops[g] for g in repeated) / max(sum(flops), 1.0)
    if share < REPEATED_SHARE:
        return None
    heaviest = sorted(repeated, key=lambda g: -flops[g])
    return (
        f"every device would compute the same {share:.0%} of forward: no split of samples reaches "
        f"{_named([groups[g].name for g in heaviest])}"
    )


def _whole_text(problem: SearchProblem, choices: NDArray[np.uint32], shards: int) -> str | None:
    """Returns which parameters are in fewer than `shards` shards."""
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
    return (
        f"{share:.0%} of the parameters cannot be in {shards} shards: no split of samples reaches "
        f"{_named(whole)}"
    )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


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
