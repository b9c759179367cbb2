"""Process groups of any ranks, where ranks run different operators.

torch.distributed creates a group only if all ranks take part, also those that are not in it. Ranks
that run different operators do not all know which groups the others need, so each notes what it
needs while it builds its program, and all of them then create the groups of all, in one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from shardwise.errors import ShardwiseError

Members = tuple[int, ...]
"""Ranks of torch.distributed, ascending."""

_GROUPS: WeakKeyDictionary[Any, dict[Members, Any]] = WeakKeyDictionary()
"""The groups that exist, by the group of all ranks and by members; the same on all ranks."""


def create(needed: Iterable[Members]) -> None:
    """Creates the groups that any rank needs, unless they exist; collective."""
    import torch.distributed as dist

    known = _GROUPS.setdefault(dist.group.WORLD, {})
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, sorted(set(needed)))
    for members in sorted({members for of_rank in of_all for members in of_rank}):
        if members not in known:
            known[members] = dist.new_group(list(members))


def group_of(members: Members) -> Any:
    """Returns the process group of these ranks, of which this one is one.

    Raises `ShardwiseError` where no rank had noted that it needs it.
    """
    import torch.distributed as dist

    if len(members) == dist.get_world_size():
        return dist.group.WORLD
    group = _GROUPS.get(dist.group.WORLD, {}).get(members)
    if group is None:
        raise ShardwiseError(f"no process group of the ranks {[*members]} was created")
    return group


def forget() -> None:
    """Drops all groups."""
    _GROUPS.clear()
