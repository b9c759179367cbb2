"""Shares, neighbours' rows and tables at the ports of a group's members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.graph.graph import Tensor
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import Floats, Layouts, local_extents


def shard_shapes(tensor: Tensor, layouts: Layouts, sizes: NDArray[np.int64] | Floats) -> Floats:
    """Returns the shape of a tensor's largest shard under each layout; sent rows lie in the first
    dimension."""
    extents = local_extents(tensor.extents, layouts, sizes)
    if tensor.spread is None:
        return extents
    extents[:, 0] = np.ceil(extents[:, 0] * extents[:, -1])
    return extents[:, :-1]


def halos(member: Member, port: int) -> list[tuple[int, int, int]]:
    """Returns the variables whose shares of an input include neighbours' rows: variable, dimension,
    rows."""
    return [
        (member.variables[v], access.dim, access.halo_before + access.halo_after)
        for v, access in member.semantics.inputs[port].items()
        if access.halo_before + access.halo_after
    ]


def taps(member: Member, port: int) -> list[int]:
    """Returns the summed variables of the windows through which an input is read."""
    if not halos(member, port):
        return []
    sem = member.semantics
    return [
        member.variables[v]
        for v, variable in enumerate(sem.variables)
        if variable.is_reduction and v not in sem.inputs[port]
    ]


def looked_up(member: Member, name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether a tensor is a lookup table, of which only the selected rows are read."""
    return (
        member.operator.kind.startswith("aten.embedding")
        and len(shape) == 2
        and (name == member.operator.inputs[0])
    )
