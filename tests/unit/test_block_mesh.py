"""Meshes of blocks with uneven shares: who has which rows, and what a change of shares sends."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from shardwise.cost.mixed.flows import flows_between
from shardwise.cost.mixed.proportions import Proportion, cut
from shardwise.execute.block_mesh import BlockMesh
from shardwise.execute.rank_mesh import RankMesh
from shardwise.execute.reshare import Reshare
from shardwise.sharding.layout import PARTIAL, REPLICATE

pytestmark = pytest.mark.torch

BLOCKS = 3
WEIGHTS = st.lists(st.integers(0, 9), min_size=BLOCKS, max_size=BLOCKS).filter(any)
NAMES, SIZES = ("blocks", "m0"), (BLOCKS, 2)


def meshes(weights: list[int]) -> list[BlockMesh]:
    """The mesh of a proportion as each rank sees it."""
    proportion = Proportion(tuple(weights), "")
    return [BlockMesh(RankMesh(NAMES, SIZES, rank), proportion) for rank in range(prod(SIZES))]


@given(WEIGHTS, st.integers(0, 60))
def test_blocks_have_the_shares_of_the_plan_and_cut_them_evenly_inside(
    weights: list[int], extent: int
) -> None:
    shares = cut(extent, weights)
    start = 0
    for block, length in enumerate(shares):
        ranks = meshes(weights)[2 * block : 2 * block + 2]
        if not weights[block]:
            assert not any(mesh.present for mesh in ranks)
            continue
        half = -(-length // 2)
        assert [mesh.share(extent, (0,)) for mesh in ranks] == [range(start, start + length)] * 2
        assert [mesh.share(extent, (0, 1)) for mesh in ranks] == [
            range(start, start + half),
            range(start + half, start + length),
        ]
        start += length
    assert start == extent


@given(WEIGHTS, st.integers(0, 60))
def test_all_ranks_agree_on_all_shares_and_on_the_largest(weights: list[int], extent: int) -> None:
    present = [mesh for mesh in meshes(weights) if mesh.present]
    lengths = [len(mesh.share(extent, (0, 1))) for mesh in present]
    for mesh in present:
        assert mesh.shares(extent, (0, 1)) == lengths
        assert mesh.largest_shape((extent, 4), (0, 0)) == (max(lengths), 4)
        assert mesh.even.shares(len(present), (0, 1)) == [1] * len(present)


@given(WEIGHTS)
def test_ranks_of_a_mesh_are_those_of_its_blocks(weights: list[int]) -> None:
    everyone = [2 * block + place for block in range(BLOCKS) for place in range(2)]
    wanted = [rank for rank in everyone if weights[rank // 2]]
    for rank, mesh in enumerate(meshes(weights)):
        if mesh.present:
            assert [mesh.world_rank(r) for r in mesh.members((0, 1))] == wanted
            inside = [mesh.world_rank(r) for r in mesh.members((1,))]
            assert inside == [rank - rank % 2, rank - rank % 2 + 1]


@given(WEIGHTS, WEIGHTS, st.sampled_from([0, REPLICATE, PARTIAL]), st.integers(1, 40))
def test_a_change_of_shares_sends_what_its_cost_counts(
    own: list[int], other: list[int], state: int, extent: int
) -> None:
    # The inner axis splits another dimension: like places of blocks are the peers.
    layout, shape = (state, 1), (extent, 2)
    before, after = meshes(own), meshes(other)
    proportions = Proportion(tuple(own), ""), Proportion(tuple(other), "")
    flows = flows_between(*proportions, extent if state == 0 else state)
    for rank, (here, there) in enumerate(zip(before, after, strict=True)):
        moved = Reshare(here, there, layout, shape)
        assert moved.concerns == bool(own[rank // 2] or other[rank // 2])
        if moved.concerns:
            blocks = [b for b in range(BLOCKS) if own[b] or other[b]]
            assert moved.members == tuple(2 * block + rank % 2 for block in blocks)
            assert moved.sends == bool(np.any(flows))
