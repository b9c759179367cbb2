"""Assignments of mesh axes to variables: canonical, legal, complete."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np

from shardwise.cost.space import NONE, SearchAxis, SearchMesh, assignments, canonical
from shardwise.hardware import Mesh, load_hardware


def _axes(*kinds: tuple[str, int]) -> tuple[SearchAxis, ...]:
    return tuple(SearchAxis(f"a{i}", s, level, (i,)) for i, (level, s) in enumerate(kinds))


def test_counts_are_multisets_per_level() -> None:
    axes = _axes(("net", 2), ("node", 2), ("node", 2), ("node", 2))
    rows = assignments(axes, 4, lambda variable, parts: True)
    assert len(rows) == 5 * comb(3 + 4, 4)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert (rows[0] == NONE).all()


def test_every_split_factorisation_is_reached() -> None:
    """Any named assignment has a canonical one with the same shares per variable and level."""
    axes = _axes(("net", 2), ("node", 2), ("node", 2), ("node", 3))
    rows = assignments(axes, 2, lambda variable, parts: True)

    def shares(row: tuple[int, ...]) -> tuple[object, ...]:
        counted: dict[tuple[int, str, int], int] = {}
        for axis, v in zip(axes, row, strict=True):
            key = (v, axis.level, axis.size)
            counted[key] = counted.get(key, 0) + 1
        return tuple(sorted(counted.items()))

    canonical = {shares(tuple(row)) for row in rows.tolist()}
    named = {shares(row) for row in product((NONE, 0, 1), repeat=len(axes))}
    assert canonical == named


def test_illegal_parts_are_left_out() -> None:
    axes = _axes(("node", 2), ("node", 2), ("node", 2))
    rows = assignments(axes, 1, lambda variable, parts: parts <= 4)
    assert sorted((row == 0).sum() for row in rows) == [0, 1, 2]


def test_outermost_axes_go_to_the_first_variable() -> None:
    axes = _axes(("node", 2), ("node", 2))
    rows = {tuple(row) for row in assignments(axes, 2, lambda v, p: True).tolist()}
    assert (0, 1) in rows
    assert (1, 0) not in rows
    assert (0, NONE) in rows
    assert (NONE, 0) not in rows


def test_axes_merge_until_the_count_is_bounded() -> None:
    mesh = Mesh.build(load_hardware("dgx-h100"), 64)
    search_mesh = SearchMesh.build(mesh, 200)
    assert int(np.prod([a.size for a in search_mesh.axes])) == 64
    assert sorted(i for a in search_mesh.axes for i in a.base) == list(range(len(mesh.axes)))
    rows = assignments(search_mesh.axes, 4, lambda v, p: True)
    assert len(rows) <= 200


def test_any_assignment_has_a_canonical_one_with_its_shares() -> None:
    axes = _axes(("net", 2), ("net", 2), ("node", 3), ("node", 2), ("node", 2))
    rows = {tuple(row) for row in assignments(axes, 2, lambda v, p: True).tolist()}
    for row in product((NONE, 0, 1), repeat=len(axes)):
        ordered = canonical(axes, np.array(row, dtype=np.int8))
        assert tuple(ordered.tolist()) in rows
        for run in ([0, 1], [2], [3, 4]):
            assert sorted(ordered[run].tolist()) == sorted(row[i] for i in run)
