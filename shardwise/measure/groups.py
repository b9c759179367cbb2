"""The process groups of a measurement: of every shape the one that this rank is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise.measure.rank import Rank
from shardwise.measure.shapes import Siblings, group_shapes


@dataclass(frozen=True)
class OwnGroup:
    """`group` of torch.distributed with `ranks`, which include this one."""

    siblings: Siblings
    group: Any
    ranks: tuple[int, ...]


def own_groups(rank: Rank, nodes_per_rack: int | None = None) -> list[OwnGroup]:
    """Makes all groups by shape, small ones first, the world last; all ranks in the same order."""
    own = []
    for siblings in group_shapes(rank.world.size, rank.world.ranks_per_node, nodes_per_rack):
        for ranks in siblings.groups:
            group = rank.torch.distributed.new_group(list(ranks), backend=rank.backend)
            if rank.world.rank in ranks:
                own.append(OwnGroup(siblings, group, ranks))
    return own
