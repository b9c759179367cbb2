"""Proportions, links between kinds, and changes of shares."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.execute.mixed import BUNDLES, hardware
from harness.kinds import FAST, SLOW, everything, profile
from shardwise.cost.mixed.cluster import Cluster, PlaceMesh, mesh_of_blocks
from shardwise.cost.mixed.flows import flows_between
from shardwise.cost.mixed.proportions import Proportion, cut, offsets
from shardwise.cost.mixed.reschedule import Reschedulers
from shardwise.cost.space import SearchMesh
from shardwise.hardware import Blocks, Devices, GroupShape, JointLinks, collective_times
from shardwise.sharding.layout import PARTIAL, REPLICATE, shard_of

WEIGHTS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


@given(st.integers(0, 500), WEIGHTS)
def test_shares_add_up_and_are_the_nearest_whole_ones(extent: int, weights: list[int]) -> None:
    shares, total = cut(extent, weights), sum(weights)
    assert sum(shares) == extent
    for share, weight in zip(shares, weights, strict=True):
        assert extent * weight // total <= share <= -(-extent * weight // total)
        assert weight or not share
    # No other whole shares between floor and ceiling are nearer to the exact ones.
    exact = [extent * weight / total for weight in weights]
    between = product(*({int(e), -int(-e // 1)} for e in exact))
    nearest = min(
        sum((s - e) ** 2 for s, e in zip(other, exact, strict=True))
        for other in between
        if sum(other) == extent
    )
    own = sum((s - e) ** 2 for s, e in zip(shares, exact, strict=True))
    assert own == pytest.approx(nearest, abs=1e-9)


def test_equal_remainders_go_to_the_first() -> None:
    assert cut(10, (3, 1)) == (8, 2)
    assert cut(3, (1, 1)) == (2, 1)
    assert cut(7, (0, 1, 0)) == (0, 7, 0)
    with pytest.raises(ValueError, match="weights"):
        cut(7, (0, 0))


@given(st.integers(1, 10**9), st.integers(1, 4096))
def test_whole_parts_are_rounded_as_before(extent: int, parts: int) -> None:
    assert shard_of(extent, np.array([parts]))[0] == -(-extent // parts)


@given(st.integers(1, 200), st.data())
def test_changes_of_shares_move_what_is_missing_and_nothing_else(
    extent: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 5))
    some = st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any)
    own, other = (Proportion(tuple(data.draw(some)), "") for _ in range(2))
    flows = flows_between(own, other, extent) * extent
    places = [offsets(cut(extent, one.weights)) for one in (own, other)]
    rows = [[set(range(ends[i], ends[i + 1])) for i in range(count)] for ends in places]
    for i, j in product(range(count), range(count)):
        moved = len(rows[0][i] & rows[1][j]) if i != j else 0
        assert flows[i, j] == pytest.approx(moved)
    for j in range(count):
        assert flows[:, j].sum() == pytest.approx(len(rows[1][j] - rows[0][j]))


def test_replicas_come_from_those_that_have_one_and_terms_go_the_other_way() -> None:
    alone, all_of = Proportion((0, 1, 0), ""), Proportion((1, 1, 1), "")
    expected = np.zeros((3, 3))
    expected[1, [0, 2]] = 1.0
    assert (flows_between(alone, all_of, REPLICATE) == expected).all()
    assert not flows_between(all_of, alone, REPLICATE).any()
    assert (flows_between(all_of, alone, PARTIAL) == expected.T).all()
    assert not flows_between(alone, all_of, PARTIAL).any()


def links_of(network: float = 2e9) -> JointLinks:
    hardware = profile(
        [("a", "fast", 1, 4), ("b", "slow", 2, 2)],
        {"fast": FAST, "slow": SLOW},
        network=network,
    )
    return JointLinks(Blocks.of(hardware, everything(hardware)))


SIZES = np.array([1e3, 1e6, 1e9])


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_blocks_of_one_node_are_a_node_of_their_kind(operation: str) -> None:
    links = links_of()
    inside = links.times(operation, SIZES, (0, 1), 2)
    shape = GroupShape(4, 1, 4, 1, consecutive=True)
    assert (inside == collective_times(links.view(0), operation, SIZES, shape)).all()


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_nodes_of_one_kind_are_as_without_groups(operation: str) -> None:
    links = links_of()
    across = links.times(operation, SIZES, (2, 3), 2)
    shape = GroupShape(4, 2, 2, 1, consecutive=True)
    assert across == pytest.approx(collective_times(links.view(2), operation, SIZES, shape))


def test_a_slower_card_slows_all_and_more_ranks_take_no_less() -> None:
    fast, slow = links_of(4e9), links_of(1e9)
    for support in ((0, 2), (0, 1, 2, 3)):
        quick, late = (one.times("all_reduce", SIZES, support, 2) for one in (fast, slow))
        assert (quick < late).all()
    few = fast.times("all_reduce", SIZES, (2, 3), 2)
    assert (few <= fast.times("all_reduce", SIZES, (0, 2, 3), 2)).all()


def test_a_servers_card_is_busier_than_any_workers() -> None:
    links, everybody = links_of(), (0, 1, 2, 3)
    at_server = links.to_server_s(SIZES, 2, 2, everybody, 2)
    worker = links.to_server_s(SIZES, 2, 0, everybody, 2)
    # Two nodes send to the server's, each its sum once.
    assert at_server[-1] - worker[-1] == pytest.approx(1e9 / 2e9, rel=0.1)
    assert (at_server > worker).all()
    # What one node sends and receives is no more than its gradients, whoever serves.
    for server in everybody:
        for block in everybody:
            one_way = links.to_server_s(SIZES, server, block, everybody, 2)
            assert (one_way[1:] >= SIZES[1:] / 2e9 * 0.99).all()
    assert not links.to_server_s(SIZES, 2, 0, (2, 3), 2).any()


def reschedulers(packing: bool) -> tuple[Cluster, Reschedulers]:
    """Returns the paths of four blocks of one device, evenly and by 2 : 1 : 0 : 1."""
    whole = replace(hardware(), packing=packing)
    blocks = Blocks.of(whole, Devices.of(whole, BUNDLES[1]))
    search = SearchMesh.build(mesh_of_blocks(blocks), 10)
    proportions = (Proportion((1, 1, 1, 1), "even"), Proportion((2, 1, 0, 1), "uneven"))
    cluster = Cluster(blocks, search, JointLinks(blocks), proportions, 24)
    numbers = (*range(len(cluster.places)), None)
    meshes = [
        PlaceMesh(search.mesh, search.axes, cluster=cluster, place=n, sums=(None,)) for n in numbers
    ]
    return cluster, Reschedulers(cluster, meshes)


SHAPE, ITEM = (24, 10), 4
EVEN_ROWS, UNEVEN_ROWS = np.array([[0, 0]], dtype=np.int8), np.array([[0, 1]], dtype=np.int8)
GATHERED = np.array([[REPLICATE, 1]], dtype=np.int8)


def test_a_change_of_shares_costs_the_copies_of_what_is_sent_and_of_what_comes_out() -> None:
    cluster, packed = reschedulers(True)
    _, plain = reschedulers(False)
    # Rows sent, and rows afterwards: of 6 each, to 12, 6, none and 6.
    for number, (sent, after) in enumerate([(0, 12), (6, 6), (6, 0), (0, 6)]):
        of_place = [paths.view(number, SHAPE, ITEM) for paths in (packed, plain)]
        with_copies, without = (view.between(EVEN_ROWS, UNEVEN_ROWS)[0] for view in of_place)
        copied = np.array([2.0 * (sent + after) * 10 * ITEM])
        expected = cluster.places[number].hardware.copy_times(copied)[0]
        assert with_copies - without == pytest.approx(expected, rel=1e-9)
        assert expected > 0.0


def test_what_travels_is_held_besides_both_parts() -> None:
    _, paths = reschedulers(False)
    for number, (changed, gathered) in enumerate([(60, 480), (60, 480), (60, 0), (0, 480)]):
        view = paths.view(number, SHAPE, ITEM)
        source, even = view.register(UNEVEN_ROWS), view.register(EVEN_ROWS)
        assert view.staged_bytes(even, source)[0] == changed * ITEM
        # Three shares and one's own travel as large as the largest, 12 rows.
        assert view.staged_bytes(source, view.register(GATHERED))[0] == gathered * ITEM
