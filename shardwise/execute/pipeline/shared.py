"""Parameters that several stages read, as a tied embedding: one sum of gradients a step.

Each stage has the parameter as its own strategy says, with gradients summed over its own ranks.
Where all stages have it in the same shares, ranks at the same place sum those. Otherwise each stage
makes the gradient whole, which is then summed and cut again. With equal values and equal sums an
optimizer that works element by element keeps the copies equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.parameters.store import ParameterStore
from shardwise.execute.peers import group_of
from shardwise.execute.pipeline.stage_mesh import StageMesh
from shardwise.pipeline.placement import Placement


@dataclass(frozen=True)
class Shared:
    """A parameter with its siblings: this rank and those at its place that have other stages.

    `alike`: all stages have it in the same shares.
    """

    name: str
    siblings: tuple[int, ...]
    alike: bool

    @property
    def group(self) -> Any:
        """The process group of the siblings."""
        return group_of(self.siblings)


def owners_of(
    shared: Mapping[str, Sequence[int]], placement: Placement
) -> dict[str, tuple[int, ...]]:
    """Returns the ranks of the schedule that have each parameter, that of its first stage first;
    those alone that several have. `shared` has the stages of each."""
    owners = {
        name: tuple(dict.fromkeys(placement.rank_of(stage) for stage in stages))
        for name, stages in shared.items()
    }
    return {name: ranks for name, ranks in owners.items() if len(ranks) > 1}


def siblings_of(owners: Sequence[int], mesh: StageMesh) -> tuple[int, ...]:
    """Returns the ranks at this one's place among those of some ranks of the schedule."""
    return tuple(owner * mesh.world_size + mesh.rank for owner in sorted(owners))


def shared_parameters(
    owners: Mapping[str, Sequence[int]], rank: int, store: ParameterStore, mesh: StageMesh
) -> list[Shared]:
    """Returns the parameters that this rank of the schedule has in common with others; `owners` as
    `owners_of` has them. They call it together, and have their groups."""
    own = []
    for name, ranks in owners.items():
        if rank in ranks and store.placement(name).carries_gradient:
            siblings = siblings_of(ranks, mesh)
            place = store.placement(name)
            mine = (place.spec.layout, place.stage, place.sharding, str(place.dtype))
            of_all: list[Any] = [None] * len(siblings)
            dist.all_gather_object(of_all, mine, group=group_of(siblings))
            own.append(Shared(name, siblings, all(other == mine for other in of_all)))
    return own


def sum_gradients(shared: Sequence[Shared], store: ParameterStore) -> None:
    """Adds up the gradients of the last step over the stages that have a parameter; collective."""
    parameters = store.parameters()
    for each in shared:
        parameter = parameters[each.name]
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        if each.alike:
            gradient = gradient.contiguous()
            dist.all_reduce(gradient, group=each.group)
            parameter.grad = gradient
            continue
        place = store.placement(each.name)
        whole = store.whole(each.name, gradient).contiguous()
        dist.all_reduce(whole, group=each.group)
        mine = place.cut(whole).reshape(-1)
        if place.stage:
            mine = mine[place.own.start : place.own.stop]
        parameter.grad = mine.reshape(parameter.shape).clone()
