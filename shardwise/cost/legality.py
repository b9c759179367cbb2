"""Which splits of a group's variables are legal, by every member's demands."""

from __future__ import annotations

from collections.abc import Callable

from shardwise.graph.graph import Graph
from shardwise.graph.semantics import Access
from shardwise.sharding.coarsen import Group
from shardwise.sharding.layout import shard_fits


def legality(graph: Graph, group: Group) -> Callable[[int, int], bool]:
    """Returns a function of a group variable and a number of shares: is that split legal?"""
    demands: dict[int, list[tuple[int, Access | None]]] = {}
    clashing = set()
    for member in group.members:
        if len(set(member.variables)) < len(member.variables):
            seen = list(member.variables)
            clashing |= {v for v in seen if seen.count(v) > 1}
        tensors = (*member.operator.inputs, *member.operator.outputs)
        accesses = (*member.semantics.inputs, *member.semantics.outputs)
        for v, variable in enumerate(member.semantics.variables):
            demand = demands.setdefault(member.variables[v], [])
            demand.append((variable.extent, None))
            for name, by_variable in zip(tensors, accesses, strict=True):
                access = by_variable.get(v)
                if access is not None:
                    demand.append((graph.tensors[name].shape[access.dim], access))
    distinct = {variable: list(dict.fromkeys(pairs)) for variable, pairs in demands.items()}

    def legal(variable: int, parts: int) -> bool:
        if variable in clashing:
            return False
        for extent, access in distinct[variable]:
            if not shard_fits(extent, parts):
                return False
            if access is None:
                continue
            if access.granularity and access.granularity % parts:
                return False
            if max(access.halo_before, access.halo_after) > extent // parts:
                return False
        return True

    return legal
