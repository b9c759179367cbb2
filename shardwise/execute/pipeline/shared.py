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


@dataclass(frozen=True)
class Shared:
    """A parameter with its siblings: this rank and those at its place in the other stages.

    `alike`: all stages have it in the same shares.
    """

    name: str
    siblings: tuple[int, ...]
    alike: bool

    @property
    def group(self) -> Any:
        """The process group of the siblings."""
        return group_of(self.siblings)


def siblings_of(stages: Sequence[int], mesh: StageMesh) -> tuple[int, ...]:
    """Returns the ranks at this one's place in some stages."""
    return tuple(stage * mesh.world_size + mesh.rank for stage in stages)


def shared_parameters(
    shared: Mapping[str, Sequence[int]], stage: int, store: ParameterStore, mesh: StageMesh
) -> list[Shared]:
    """Returns the parameters that this stage has in common with others; `shared` has the stages of
    each. The ranks of these stages call it together, and have their groups."""
    own = []
    for name, stages in shared.items():
        if stage in stages and store.placement(name).carries_gradient:
            siblings = siblings_of(stages, mesh)
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
