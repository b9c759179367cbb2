"""The mesh of one stage as one of its ranks sees it.

Ranks of different stages need different process groups, and torch.distributed creates one only with
all ranks (groups that are created by their members alone have names that depend on how many each
rank has had). So while a stage is built its mesh notes what it will need, as those of several kinds
of devices do, and then all ranks create the groups of all, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.execute.peers import Members, create, group_of
from shardwise.execute.rank_mesh import RankMesh


class StageMesh(RankMesh):
    """A mesh of the ranks from `first` on; `rank` counts from there."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], rank: int, first: int) -> None:
        super().__init__(names, sizes, rank)
        self.first = first
        self.needed: set[Members] = set()
        """The groups that this rank needs."""
        self._created = False

    def world_rank(self, rank: int) -> int:
        """Returns the rank in torch.distributed of a rank of this mesh."""
        return self.first + rank

    def need(self, axes: Sequence[int]) -> None:
        """Notes that this rank will ask for the process group of axes."""
        self.needed.add(self._world_members(axes))

    def create_groups(self) -> None:
        """Creates what any rank has noted; all ranks of all stages call it."""
        create(members for members in self.needed if len(members) < self.model_size)
        self._created = True

    def group(self, axes: Sequence[int]) -> Any:
        """Returns the process group of `members(axes)`; None, and a note, before they are created.

        Raises `ShardwiseError` for a group that was not noted.
        """
        if not self._created:
            self.need(axes)
            return None
        return group_of(self._world_members(axes))

    def _world_members(self, axes: Sequence[int]) -> Members:
        return tuple(self.world_rank(rank) for rank in self.members(axes))

    @property
    def program_group(self) -> Any:
        """The process group of the stage."""
        return self.group(range(len(self.sizes)))

    @property
    def model_group(self) -> Any:
        """The process group of all stages."""
        import torch.distributed as dist

        return dist.group.WORLD

    @property
    def model_size(self) -> int:
        """The number of ranks of all stages."""
        import torch.distributed as dist

        return int(dist.get_world_size())
