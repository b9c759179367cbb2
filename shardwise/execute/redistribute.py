"""Paths between layouts that no plan prices: the cost model assumes these tensors in place.

They serve parameters, constants and inputs that two operators of a group read differently, and
results that are made whole for the user. The path is not the cheapest, but there always is one:
gather what is in the way, sum what is partial, then cut.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.execute.block_mesh import BLOCKS, is_alike
from shardwise.execute.collectives import Change
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.execute.reshare import RESHARE
from shardwise.sharding.layout import PARTIAL, REPLICATE


def redistribute_between(
    here: RankMesh, source: Layout, there: RankMesh, target: Layout
) -> list[Change]:
    """Returns steps from a layout with the shares of one mesh to another with those of another.

    Where the shares differ and the layouts too, the tensor is whole in between.
    """
    if is_alike(here, there, source):
        return _on(there, redistribute(source, target))
    if source == target:
        return [Change(RESHARE, (BLOCKS,), source, target, there, here)]
    whole = (REPLICATE,) * len(source)
    return [
        *_on(here, redistribute(source, whole)),
        Change(RESHARE, (BLOCKS,), whole, whole, there, here),
        *_on(there, redistribute(whole, target)),
    ]


def _on(mesh: RankMesh, path: list[Change]) -> list[Change]:
    return [replace(step, mesh=mesh) for step in path]


def redistribute(source: Layout, target: Layout) -> list[Change]:
    """Returns steps from one layout to another with the same shares; the same on every rank."""
    path: list[Change] = []
    current = source
    for dim in sorted({s for s in (*source, *target) if s >= 0}):
        changed = [
            a for a, pair in enumerate(zip(source, target, strict=True)) if _turns(pair, dim)
        ]
        if changed:
            # Only the innermost axes of a dimension can be added or removed.
            inner = [a for a, s in enumerate(current) if s == dim and a >= changed[0]]
            current = _step(path, "all_gather", current, inner, REPLICATE)
    ends = [a for a, s in enumerate(current) if s == PARTIAL and target[a] != PARTIAL]
    current = _step(path, "all_reduce", current, ends, REPLICATE)
    for dim in sorted({s for s in target if s >= 0}):
        cut = [a for a, s in enumerate(target) if s == dim and current[a] == REPLICATE]
        current = _step(path, "slice", current, cut, dim)
    masked = [a for a, s in enumerate(target) if s == PARTIAL and current[a] == REPLICATE]
    _step(path, "mask", current, masked, PARTIAL)
    return path


def _turns(pair: tuple[int, int], dim: int) -> bool:
    return pair[0] != pair[1] and dim in pair


def _step(
    path: list[Change], operation: str, before: Layout, axes: list[int], state: int
) -> Layout:
    if not axes:
        return before
    after = tuple(state if a in axes else s for a, s in enumerate(before))
    path.append(Change(operation, tuple(axes), before, after))
    return after
