"""Bundles of devices of several groups, and the blocks that they are laid out in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import gcd
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.hardware import Block, Blocks, DeviceGroup, Devices, Hardware, load_hardware

EIGHT = load_hardware("heterog-8")
TWELVE = load_hardware("heterog-12")


def hardware(*sizes: tuple[int, int]) -> Hardware:
    """Returns groups `g0`, `g1`, … with these numbers of nodes, and of devices in a node."""
    kinds = [device.kind for device in EIGHT.devices]
    groups = [
        DeviceGroup(f"g{i}", kinds[i % 3], nodes, per_node)
        for i, (nodes, per_node) in enumerate(sizes)
    ]
    return replace(EIGHT, groups=tuple(groups))


def test_a_bundle_is_read_and_written_in_the_order_of_the_profile() -> None:
    bundle = Devices.parse(" p100=2, v100 = 2,1080ti=4", EIGHT)
    assert bundle.counts == (("v100", 2), ("1080ti", 4), ("p100", 2))
    assert (str(bundle), bundle.gpus) == ("v100=2,1080ti=4,p100=2", 8)
    assert Devices.parse(str(bundle), EIGHT) == bundle
    assert str(Devices.parse("1080ti=3", EIGHT)) == "1080ti=3"


def test_groups_of_which_none_is_taken_are_left_out() -> None:
    assert Devices.of(EIGHT, {"p100": 1, "v100": 0}).counts == (("p100", 1),)


LIST = "v100 (2 V100-PCIe-16GB), 1080ti (4 GTX1080Ti-11GB), p100 (2 P100-PCIe-12GB)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8", f"such as --gpus v100=2,1080ti=4; groups: {LIST}"),
        (" 8 ", "8 devices of an unspecified group"),
        ("k80=1", "unknown group 'k80' (expected devices by group"),
        ("k80=1", f"such as --gpus v100=2,1080ti=4; groups: {LIST}"),
        ("v100", "got 'v100'"),
        ("", "got ''"),
        ("v100=1,", "got ''"),
        ("v100=1,4", "got '4'"),
        ("=1", "unknown group ''"),
        ("v100=3", "3 devices of v100 (expected 1 to 2 of v100)"),
        ("v100=0", "'0' devices of v100 (expected a whole number of at least 1)"),
        ("v100=-1", "'-1' devices of v100"),
        ("v100=1.5", "'1.5' devices of v100"),
        ("v100=", "'' devices of v100"),
        ("v100=²", "'²' devices of v100"),
        ("v100=٢", "'٢' devices of v100"),
        (f"v100={'9' * 500}", "devices of v100"),
        (f"v100={'9' * 5000}", "a text of 5005 characters"),
        (f"{'x' * 900}=1", f"unknown group '{'x' * 40}'"),
        ("v100=1,p100=1,v100=1", "'v100' is named twice"),
    ],
)  # fmt: skip
def test_a_refused_bundle_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Devices.parse(text, EIGHT, "question.gpus")
    assert caught.value.field == "question.gpus"
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["8", "v100=2"])
def test_a_profile_without_groups_has_no_bundles(text: str) -> None:
    with pytest.raises(BadInput, match="l4 has no groups") as caught:
        Devices.parse(text, load_hardware("l4"))
    assert caught.value.field == "gpus"


@pytest.mark.parametrize("counts", [{}, {"v100": 0}, {"v100": -1}, {"v100": 3}, {"x": 0}])
def test_counts_are_checked(counts: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        Devices.of(EIGHT, counts)
    with pytest.raises(BadInput):
        Blocks.of(EIGHT, Devices(tuple(counts.items())))


def test_the_clusters_of_heterog() -> None:
    """4 × 2 and 6 × 2."""
    eight = Blocks.of(EIGHT, Devices.parse("v100=2,1080ti=4,p100=2", EIGHT))
    assert (eight.size, eight.gpus, eight.nodes) == (2, 8, 4)
    assert eight.blocks == (
        Block("v100", 0), Block("1080ti", 1), Block("1080ti", 2), Block("p100", 3)
    )  # fmt: skip
    assert [group.kind for group in eight.groups][1:3] == ["GTX1080Ti-11GB"] * 2
    twelve = Blocks.of(TWELVE, Devices.parse("v100=4,1080ti=4,p100=4", TWELVE))
    assert (twelve.size, len(twelve.blocks), twelve.nodes) == (2, 6, 5)
    assert [block.node for block in twelve.blocks] == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "size", "nodes"),
    [
        ("v100=4", 4, [0]),
        ("v100=3", 3, [0]),
        ("v100=2,1080ti=2", 2, [0, 1]),
        ("v100=3,1080ti=2", 1, [0, 0, 0, 1, 1]),
        ("1080ti=3", 1, [0, 0, 1]),
        ("v100=4,p100=3", 1, [0, 0, 0, 0, 1, 1, 2]),
        ("p100=1", 1, [0]),
    ],
)
def test_a_node_that_is_partly_used(text: str, size: int, nodes: list[int]) -> None:
    blocks = Blocks.of(TWELVE, Devices.parse(text, TWELVE))
    assert (blocks.size, [block.node for block in blocks.blocks]) == (size, nodes)


@st.composite
def bundles(draw: st.DrawFn) -> tuple[Hardware, Devices]:
    """Groups of up to 5 nodes of up to 12 devices, and some of their devices."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=1, max_size=4))
    profile = hardware(*sizes)
    counts = {group.name: draw(st.integers(0, group.gpus)) for group in profile.groups}
    if not any(counts.values()):
        counts["g0"] = 1
    return profile, Devices.of(profile, counts)


def devices_one_by_one(profile: Hardware, bundle: Devices) -> list[tuple[str, int]]:
    """Returns group and node of every device, each put on the first node that has room."""
    taken = dict(bundle.counts)
    placed: list[tuple[str, int]] = []
    node = -1
    for group in profile.groups:
        room = 0
        for _ in range(taken.get(group.name, 0)):
            if room == 0:
                node, room = node + 1, group.per_node
            placed.append((group.name, node))
            room -= 1
    return placed


@given(bundles())
def test_blocks_are_what_placing_devices_one_by_one_gives(case: Any) -> None:
    profile, bundle = case
    blocks = Blocks.of(profile, bundle)
    placed = devices_one_by_one(profile, bundle)
    assert blocks.gpus == bundle.gpus == len(placed)
    by_rank = [blocks.blocks[rank // blocks.size] for rank in range(blocks.gpus)]
    assert [(block.group, block.node) for block in by_rank] == placed
    assert [group.name for group in blocks.groups] == [block.group for block in blocks.blocks]
    assert blocks.nodes == len(set(placed))


@given(bundles())
def test_no_larger_block_would_do(case: Any) -> None:
    """A block is in one node; the devices of every node that is used are whole blocks."""
    profile, bundle = case
    blocks = Blocks.of(profile, bundle)
    in_nodes = Counter(block.node for block in blocks.blocks)
    assert gcd(*in_nodes.values()) == 1
    for block in blocks.blocks:
        assert in_nodes[block.node] * blocks.size <= profile.group(block.group).per_node
