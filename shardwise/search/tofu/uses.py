"""The uses of a tensor, and what a basic partition strategy needs of it (Tofu §4.2).

A basic strategy splits one variable u of a group among k worker groups. Each of its operators
then **fetches** a region of what it reads and **stores** what it makes:

    fetch   dim         the share along that dimension (and its halo)
            REPLICATE   all of it: u does not index the tensor
    store   dim         the share along that dimension
            PARTIAL     one term of the sum: u is a reduction (partition-n-reduce, Case-2)
            REPLICATE   all of it, made by every worker group alike

Backward reverses the roles: a reader of a tensor stores its gradient, its maker fetches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.graph.graph import DTYPE_BYTES, Tensor
from shardwise.graph.semantics import Access
from shardwise.sharding.coarsen import Group, Member
from shardwise.sharding.layout import PARTIAL, REPLICATE
from shardwise.sharding.pattern import Patterns

Parts = NDArray[np.int64]
"""How many shares each variable of a group has so far, shape (variables,)."""


@dataclass(frozen=True)
class Use:
    """One operator of a group makes or reads one tensor; all by the group's variables.

    `access` says which dimension a variable splits, `partial` which variables leave terms of a
    sum: of the tensor where it is made, of its gradient where it is read. `refetched` says that
    backward needs the tensor once more, `gradient` that a gradient passes here.
    """

    tensor: Tensor
    made: bool
    access: Mapping[int, Access]
    partial: frozenset[int]
    refetched: bool
    gradient: bool

    def fetched(self, variable: int) -> int:
        """Returns the share that is read when `variable` is split."""
        access = self.access.get(variable)
        return REPLICATE if access is None else access.dim

    def stored(self, variable: int) -> int:
        """Returns the share that is made when `variable` is split."""
        return PARTIAL if variable in self.partial else self.fetched(variable)

    def region_bytes(self, parts: Parts) -> float:
        """Returns what one worker group touches of the tensor so far."""
        elements = 1
        for dim, extent in enumerate(self.tensor.shape):
            elements *= -(-extent // self._parts_of(dim, parts))
        return float(elements * DTYPE_BYTES[self.tensor.dtype])

    def halo_bytes(self, variable: int, parts: Parts) -> float:
        """Returns what passes each cut of the split of `variable`, both directions together."""
        access = self.access.get(variable)
        if access is None or not access.halo_before + access.halo_after:
            return 0.0
        rows = -(-self.tensor.shape[access.dim] // self._parts_of(access.dim, parts))
        return self.region_bytes(parts) / rows * (access.halo_before + access.halo_after)

    def _parts_of(self, dim: int, parts: Parts) -> int:
        split = 1
        for variable, access in self.access.items():
            if access.dim == dim:
                split *= int(parts[variable])
        return split


def uses_of(group: Group, patterns: Patterns) -> dict[str, list[Use]]:
    """Returns the uses of every tensor that moves, in order of first use.

    Inputs, buffers and constants do not move: every device loads or makes what it reads, which is
    how the cost model prices them too.
    """
    uses: dict[str, list[Use]] = {}
    for member in group.members:
        for use in _member_uses(member, patterns):
            alike = uses.setdefault(use.tensor.name, [])
            if use not in alike:
                alike.append(use)
    return uses


def _member_uses(member: Member, patterns: Patterns) -> Iterable[Use]:
    op, sem = member.operator, member.semantics
    tensors, groups = patterns.graph.tensors, patterns.coarsened.group_of
    backward = any(patterns.carries_gradient(name) for name in op.outputs)
    touched = frozenset(member.variables)
    for position, name in enumerate(op.inputs):
        maker = patterns.graph.producer.get(name)
        if tensors[name].role != "parameter" and (maker is None or maker.name not in groups):
            continue
        access = _by_group_variable(member, sem.inputs[position])
        gradient = backward and patterns.carries_gradient(name)
        refetched = backward and sem.saves_inputs[position]
        yield Use(tensors[name], False, access, touched - access.keys(), refetched, gradient)
    sums = frozenset(
        member.variables[v] for v, variable in enumerate(sem.variables) if variable.is_reduction
    )
    for position, name in enumerate(op.outputs):
        access = _by_group_variable(member, sem.outputs[position])
        refetched = backward and sem.saves_outputs[position]
        gradient = patterns.carries_gradient(name)
        yield Use(tensors[name], True, access, sums - access.keys(), refetched, gradient)


def _by_group_variable(member: Member, accesses: Mapping[int, Access]) -> dict[int, Access]:
    return {member.variables[v]: access for v, access in accesses.items()}
