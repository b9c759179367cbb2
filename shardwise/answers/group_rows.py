"""A group's configurations in terms of strategies, and those nearest to a strategy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.answers.roles import GroupRoles, Kind, Role
from shardwise.answers.uniform import PLAIN, Degrees, Sharding, Uniform
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.space import NONE, SearchAxis
from shardwise.hardware.levels import INSIDE
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class GroupRows:
    """A group's configurations, arrays of length K: the degrees of each role (K, 5), the ranks that
    shard its parameters, and whether keys and values travel around a ring."""

    cost: GroupCosts
    roles: GroupRoles
    kind: Kind
    degrees: NDArray[np.int64]
    ranks: NDArray[np.int64]
    inside: NDArray[np.bool_]
    rings: NDArray[np.bool_]

    @classmethod
    def of(
        cls, cost: GroupCosts, roles: GroupRoles, kind: Kind, axes: tuple[SearchAxis, ...]
    ) -> GroupRows:
        """Returns the configurations of a group on a mesh."""
        # The role of each variable; no variable, numbered -1, has the last entry.
        fields = np.array([*(_FIELDS[role] for role in roles.roles), _REPEATED])
        field = fields[np.where(cost.assignment == NONE, len(roles.roles), cost.assignment)]
        sizes = np.array([axis.size for axis in axes], dtype=np.int64)
        degrees = np.ones((len(cost.time_s), len(Degrees._fields)), dtype=np.int64)
        for number in range(degrees.shape[1]):
            degrees[:, number] = np.where(field == number, sizes, 1).prod(axis=1)
        marked = (cost.zero_axes[:, None] >> np.arange(len(axes)) & 1).astype(bool)
        between = np.array([axis.level != INSIDE for axis in axes], dtype=bool)
        return cls(
            cost,
            roles,
            kind,
            degrees,
            np.where(marked, sizes, 1).prod(axis=1),
            ~(marked & between).any(axis=1),
            np.zeros(len(degrees), dtype=bool)
            if roles.ring is None
            else (cost.assignment == roles.ring).any(axis=1),
        )

    def degrees_of(self, row: int) -> Degrees:
        """Returns the degrees of a configuration."""
        return Degrees(*self.degrees[row].tolist())

    def sharding_of(self, row: int) -> Sharding:
        """Returns how a configuration shards parameters."""
        stage = int(self.cost.zero[row])
        return Sharding(stage, int(self.ranks[row]), bool(self.inside[row])) if stage else PLAIN

    def nearest(self, wanted: Uniform, own: int | None = None) -> NDArray[np.int64]:
        """Returns the rows nearest to a strategy of the whole model.

        With its `own` row a light operator keeps its split if that is compatible with the products,
        and all recompute as they do; without one both are free, except for the samples.
        """
        away = np.abs(np.log2(self.degrees / np.array(self._target(wanted, own))))
        keys: list[Floats | NDArray[np.generic]] = [away[:, Degrees._fields.index("batch")]]
        if own is not None or self.kind is not Kind.LIGHT:
            keys.append(away.sum(axis=1))
        if self.kind is Kind.ATTENTION:
            divides = self.degrees[:, Degrees._fields.index("position")] > 1
            keys.append(divides & (self.rings != wanted.ring))
        if self.roles.parameters or self.cost.zero.any():
            keys.append(np.abs(self.cost.zero.astype(np.int64) - wanted.sharding.stage))
            keys.append(np.abs(np.log2(self.ranks / wanted.sharding.ranks)))
        if own is not None:
            keys.append(self.cost.recompute != self.cost.recompute[own])
            keys.append((self.cost.assignment != self.cost.assignment[own]).sum(axis=1))
        left = np.arange(len(self.cost.time_s))
        for key in keys:
            left = left[key[left] == key[left].min()]
        return left

    def _target(self, wanted: Uniform, own: int | None) -> Degrees:
        """Returns the degrees that a strategy has for this group."""
        products = wanted.products
        if self.kind is Kind.ATTENTION:
            return wanted.attention or products
        if self.kind is Kind.EXPERTS:
            return wanted.experts or products
        if self.kind is Kind.WEIGHTS:
            return products
        between = products._replace(expert=1)
        if wanted.sequence:
            between = between._replace(model=1, position=products.position * products.model)
        elif products.model > 1:
            between = between._replace(model=1, repeated=products.repeated * products.model)
        if own is None:
            return between
        now = self.degrees_of(own)
        if now.batch != products.batch:
            return between if self.roles.has(Role.BATCH) else now
        moves = self.roles.has(Role.POSITION) and now.model == 1 < products.model
        return between if moves else now


_REPEATED = Degrees._fields.index("repeated")
_FIELDS = {
    Role.MODEL: Degrees._fields.index("model"),
    Role.EXPERT: Degrees._fields.index("expert"),
    Role.POSITION: Degrees._fields.index("position"),
    Role.BATCH: Degrees._fields.index("batch"),
}
