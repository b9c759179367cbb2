"""Legal splits of a group's variables, by every member's constraints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwise.graph.graph import Graph, Spread
from shardwise.graph.semantics import QUERY, RING, Access
from shardwise.sharding.coarsen import Group
from shardwise.sharding.experts import EXPERT_VARIABLE
from shardwise.sharding.layout import shard_fits
from shardwise.sharding.routing import ROUTED


class Legality:
    """The splits of a group's variables that every member supports."""

    def __init__(self, graph: Graph, group: Group) -> None:
        demands: dict[int, list[tuple[int, Access | None]]] = {}
        self._clashing: set[int] = set()
        for member in group.members:
            if len(set(member.variables)) < len(member.variables):
                seen = list(member.variables)
                self._clashing |= {v for v in seen if seen.count(v) > 1}
            tensors = (*member.operator.inputs, *member.operator.outputs)
            accesses = (*member.semantics.inputs, *member.semantics.outputs)
            for v, variable in enumerate(member.semantics.variables):
                demand = demands.setdefault(member.variables[v], [])
                demand.append((variable.extent, None))
                for name, by_variable in zip(tensors, accesses, strict=True):
                    access = by_variable.get(v)
                    if access is not None:
                        demand.append((graph.tensors[name].extents[access.dim], access))
        self._demands = {
            variable: list(dict.fromkeys(pairs)) for variable, pairs in demands.items()
        }

    def even(self, variable: int, parts: int) -> bool:
        """Returns whether a variable may be split into equal shares."""
        if variable in self._clashing:
            return False
        return all(_fits(extent, access, parts) for extent, access in self._demands[variable])

    def _is_spread(self, variable: int) -> bool:
        return any(isinstance(extent, Spread) for extent, _ in self._demands[variable])

    def uneven(self, variable: int, weights: Sequence[int], parts: int, *, exact: bool) -> bool:
        """Returns whether a variable may be cut by weights, and each share into `parts` equal ones.

        `exact`: only without a remainder. Shares of weight 0 have no demands.
        """
        if variable in self._clashing or self._is_spread(variable):
            return False
        total = sum(weights)
        for extent, access in self._demands[variable]:
            granules = access.granularity if access is not None else 0
            for weight in {weight for weight in weights if weight}:
                if (granules * weight) % (total * parts) or (exact and extent * weight % total):
                    return False
                if not _fits(extent * weight // total, _without_granules(access), parts):
                    return False
        return True


def keeping_rows(
    variables: Sequence[str], legal: Callable[[int, int], bool]
) -> Callable[[int, int], bool]:
    """Returns the legal splits if rows are never sent to experts and there is no ring of keys."""
    return lambda variable, parts: (
        variables[variable] not in (ROUTED, RING) and legal(variable, parts)
    )


def splits_twice(variables: Sequence[str], assignment: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Returns which assignments (n, axes) cut experts both ways, or rows of attention: those of
    some axes would have to be cut by the others in the same order."""
    twice = np.zeros(len(assignment), dtype=bool)
    for names in ((ROUTED, EXPERT_VARIABLE), (RING, QUERY)):
        ways = [v for v, name in enumerate(variables) if name in names]
        if len(ways) > 1:
            cut = [(assignment == way).any(axis=1) for way in ways]
            twice |= cut[0] & cut[1]
    return twice


def _without_granules(access: Access | None) -> Access | None:
    return None if access is None else replace(access, granularity=0)


def _fits(extent: int, access: Access | None, parts: int) -> bool:
    """Returns whether a dimension of this extent may be read in equal shares."""
    if not shard_fits(extent, parts):
        return False
    if access is None:
        return True
    if access.granularity and access.granularity % parts:
        return False
    return max(access.halo_before, access.halo_after) <= extent // parts
