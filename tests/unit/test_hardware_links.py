"""What levels of links say of themselves: by hand, in files, in the search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import mlp
from shardwise.answers import Options
from shardwise.cost.pins import parse_pin
from shardwise.cost.space import SearchMesh
from shardwise.errors import BadInput
from shardwise.hardware import (
    OPERATIONS,
    CollectiveTable,
    Hardware,
    Level,
    Mesh,
    collective_time,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.hardware.imports import import_measurements
from shardwise.search.search import Subject, search

BASE = load_hardware("dgx-h100")


def hardware(*levels: Level, **more: Any) -> Hardware:
    """Returns devices with these levels of links."""
    devices = (replace(BASE.devices[0], count=levels[0].size),)
    return replace(BASE, devices=devices, levels=levels, **more)


NODE = Level("inside a node", 8, 400e9, 0.0, 1.0)
UNIT = Level("across a unit", 4, 400e9, 0.0, 1.0)
SPINE = Level("between units", 4, 1600e9, 0.0, 1.0, uplinks=True)


def whole(profile: Hardware, operation: str, gpus: int, axes: Sequence[int] | None = None) -> float:
    mesh = Mesh.build(profile, gpus)
    axes = range(len(mesh.axes)) if axes is None else axes
    return collective_time(profile, operation, 2.0**30, mesh.group_shape(tuple(axes))).time_s


def test_ranks_fill_level_by_level() -> None:
    mesh = Mesh.build(hardware(NODE, replace(UNIT, latency_s=1e-6), SPINE), 96)
    assert (mesh.nodes, mesh.per_node, mesh.units) == (12, 8, ((8, 8), (32, 96)))
    assert [(axis.size, axis.level) for axis in mesh.axes] == [
        (3, "between units"),
        (2, "across a unit"),
        (2, "across a unit"),
        (2, "inside a node"),
        (2, "inside a node"),
        (2, "inside a node"),
    ]
    shape = mesh.group_shape((0, 3))
    assert (shape.nodes, shape.ranks_per_node, shape.siblings_per_node) == (3, 2, 4)
    assert [(x.parts, x.ranks, x.siblings) for x in shape.levels] == [
        (2, 2, 1),
        (1, 2, 4),
        (3, 6, 16),
    ]
    # What is uplinks of another level is filled, so that six nodes are four and two.
    uneven = Mesh.build(hardware(NODE, replace(UNIT, latency_s=1e-6), SPINE), 48)
    assert (uneven.nodes, uneven.units) == (6, ((8, 8), (32, 48)))
    # Links of another kind begin evenly: two domains of three nodes.
    domains = hardware(NODE, replace(UNIT, uplinks=True), replace(SPINE, uplinks=False))
    assert Mesh.build(domains, 48).units == ((8, 24), (24, 24))


@given(st.integers(1, 300))
def test_a_rack_counts_its_nodes(gpus: int) -> None:
    profile = load_hardware("gb200-nvl72")
    mesh = Mesh.build(profile, gpus)
    racks = mesh.units[0][1]
    parts = [min(racks, gpus - start) for start in range(0, gpus, racks)]
    assert sum(parts) == gpus
    assert mesh.nodes == sum(-(-part // 4) for part in parts)
    assert len(parts) == -(-gpus // 72)


def test_an_oversubscribed_spine_slows_what_crosses_it() -> None:
    narrow = hardware(NODE, UNIT, replace(SPINE, oversubscription=4.0))
    wide = hardware(NODE, UNIT, SPINE)
    for operation in OPERATIONS:
        assert whole(narrow, operation, 32) == whole(wide, operation, 32), operation
    # The outermost axis alone: 32 groups share a unit's 1.6 TB/s, or a fourth of it.
    assert whole(wide, "all_gather", 64, [0]) == pytest.approx(2**30 / 2 * 32 / 1600e9)
    assert whole(narrow, "all_gather", 64, [0]) == pytest.approx(2**30 / 2 * 32 / 400e9)
    # A ring through everything crosses the spine once a unit, and is bound by nodes' cards.
    assert whole(narrow, "all_gather", 64) == whole(wide, "all_gather", 64)
    assert whole(narrow, "all_to_all", 64) > 2 * whole(wide, "all_to_all", 64)


def test_rails_spare_the_same_positions() -> None:
    spine = replace(SPINE, oversubscription=4.0, latency_s=1e-9)
    plain, railed = (hardware(NODE, UNIT, replace(spine, rails=r)) for r in (False, True))
    ring = [whole(profile, "all_gather", 64, [0]) for profile in (plain, railed)]
    assert ring[0] == pytest.approx(4 * ring[1], rel=1e-4)
    # Of all_to_all's pairs across the spine seven in eight are at other positions.
    n, size = 64, 2**30
    near = size * (7 / n / 400e9 + 24 / n * 8 / 400e9)
    far = size * 32 / n * (1 / 8 * 8 / 400e9 + 7 / 8 * 32 * 4 / 1600e9)
    assert whole(railed, "all_to_all", 64) == pytest.approx(near + far, rel=1e-4)
    # A rail is a device's own: half of the devices have half of the bandwidth.
    alone = hardware(NODE, replace(SPINE, bandwidth_bytes_per_s=400e9, uplinks=False, rails=True))
    shared = replace(alone, levels=(NODE, replace(alone.levels[1], rails=False)))
    assert whole(alone, "all_gather", 12, [0]) == pytest.approx(2**30 / 2 * 8 / 400e9)
    assert whole(shared, "all_gather", 12, [0]) == pytest.approx(2**30 / 2 * 6 / 400e9)


def test_fully_connected_devices_have_few_links_to_few_peers() -> None:
    """MI300X: 448 GB/s to the seven others, 64 GB/s to one."""
    profile = load_hardware("mi300x-8")
    profile = replace(
        profile,
        levels=(replace(profile.levels[0], latency_s=0.0, efficiency=1.0), profile.levels[1]),
    )
    assert whole(profile, "all_gather", 8) == pytest.approx(2**30 * 7 / 8 / 448e9)
    assert whole(profile, "all_gather", 8, [0]) == pytest.approx(2**30 / 2 / 64e9)
    assert whole(profile, "all_to_all", 8, [0, 1]) == pytest.approx(2**30 * 3 / 4 / (3 * 64e9))


def test_an_nvlink_domain_is_one_node_to_the_library() -> None:
    """Trees over two nodes: two racks are two, 18 compute trays of one rack are not."""
    profile = load_hardware("gb200-nvl72")
    older = replace(profile, two_node_trees=False)
    assert whole(profile, "all_reduce", 8) == whole(older, "all_reduce", 8)
    slow = replace(profile.levels[2], bandwidth_bytes_per_s=50e9)
    profile, older = (replace(x, levels=(*x.levels[:2], slow)) for x in (profile, older))
    assert whole(profile, "all_reduce", 144) < 0.6 * whole(older, "all_reduce", 144)
    # Also where trays are told apart.
    tray = replace(profile.levels[0], latency_s=0.0)
    profile, older = (replace(x, levels=(tray, *x.levels[1:])) for x in (profile, older))
    assert whole(profile, "all_reduce", 144) < 0.6 * whole(older, "all_reduce", 144)


# Measured tables.


def table(operation: str, counts: tuple[int, ...], per_byte: float) -> CollectiveTable:
    sizes = (2.0**10, 2.0**30)
    return CollectiveTable(
        operation,
        prod(counts[1:]),
        counts[0],
        counts[0] > 1,
        sizes,
        tuple(per_byte * size for size in sizes),
        ranks_by_level=counts,
    )


def test_tables_say_how_many_of_each_level() -> None:
    bare = hardware(NODE, replace(UNIT, latency_s=1e-6), SPINE)
    near, far = table("all_reduce", (8, 4), 1e-9), table("all_reduce", (8, 2, 2), 7e-9)
    far = replace(far, consecutive=False)
    measured = replace(bare, collectives=(near, far))
    shape = Mesh.build(bare, 32).group_shape(tuple(range(5)))
    assert collective_time(measured, "all_reduce", 2.0**30, shape).time_s == pytest.approx(
        2**30 * 1e-9
    )
    four = Mesh.build(bare, 64)
    across = four.group_shape((0, 2, *range(3, 6)))
    assert (across.nodes, across.counts) == (4, (8, 2, 2))
    found = collective_time(measured, "all_reduce", 2.0**30, across)
    assert (found.time_s, found.provenance) == (pytest.approx(2**30 * 7e-9), "measured")
    again = hardware_from_document(json.loads(json.dumps(hardware_document(measured))))
    assert again.collectives == measured.collectives
    # Levels that are alike are one: four trays of four are sixteen ranks of a rack.
    rack = load_hardware("gb200-nvl72")
    racked = replace(rack, collectives=(table("all_reduce", (4, 4), 3e-9),))
    shape = Mesh.build(rack, 16).group_shape(tuple(range(4)))
    assert collective_time(racked, "all_reduce", 2.0**30, shape).provenance == "measured"


def test_tables_are_composed_level_by_level() -> None:
    bare = hardware(NODE, replace(UNIT, latency_s=1e-6), SPINE)
    parts = [
        table(operation, counts, per_byte)
        for operation in ("reduce_scatter", "all_reduce", "all_gather")
        for counts, per_byte in (((8,), 1e-9), ((1, 4), 2e-9), ((1, 1, 2), 4e-9))
    ]
    measured = replace(bare, collectives=tuple(parts))
    shape = Mesh.build(bare, 64).group_shape(tuple(range(6)))
    found = collective_time(measured, "all_reduce", 2.0**30, shape)
    assert found.provenance == "derived"
    inside = 1 + 2 / 8  # reduce_scatter, or all_gather, of a unit
    assert found.time_s == pytest.approx(2**30 * 1e-9 * (2 * inside + 4 / 32))


# Files.


def document(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = hardware_document(load_hardware("h100-superpod"))
    for path, value in changes.items():
        *parts, last = path.split("__")
        at: Any = made
        for part in parts:
            at = at[int(part) if part.isdigit() else part]
        at[int(last) if last.isdigit() else last] = value
    return made


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"levels": []}, "levels"),
        ({"levels": hardware_document(BASE)["levels"][:1]}, "levels"),
        ({"levels": hardware_document(BASE)["levels"] * 5}, "levels"),
        ({"levels__0__size": 4}, "levels[0].size"),
        ({"levels__1__size": 0}, "levels[1].size"),
        ({"levels__2__size": 10**6}, "levels"),
        ({"levels__1__oversubscription": 0.5}, "levels[1].oversubscription"),
        ({"levels__0__oversubscription": 2.0}, "levels[0].oversubscription"),
        ({"levels__0__uplinks": True}, "levels[0].uplinks"),
        ({"levels__0__rails": True}, "levels[0].rails"),
        ({"levels__1__fully_connected": True}, "levels[1].fully_connected"),
        ({"levels__1__name": " "}, "levels[1].name"),
        ({"levels__0__name": "node"}, "levels[0].name"),
        ({"levels__2__name": "spine"}, "levels[2].name"),
        ({"levels__1__name": "between units"}, "levels"),
        ({"levels__1__rails": "yes"}, "levels[1].rails"),
    ],
)
def test_what_a_level_may_not_say_is_named(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(BadInput) as caught:
        load_hardware(str(path))
    assert (caught.value.file, caught.value.field) == (str(path), field)
    assert caught.value.expected or "Expected" in str(caught.value)


@pytest.mark.parametrize("counts", [[4, 4], [8, 1], [8, 2, 1, 1], [8, 0]])
def test_a_table_of_other_levels_is_refused(counts: list[int]) -> None:
    made = document()
    made["collectives"] = [
        {
            "operation": "all_reduce", "nodes": 2, "ranks_per_node": 8, "consecutive": True,
            "sizes_bytes": [1.0, 2.0], "times_s": [1.0, 2.0], "ranks_by_level": counts,
        }
    ]  # fmt: skip
    with pytest.raises(BadInput, match="ranks_by_level"):
        hardware_from_document(made)
    made["collectives"][0]["ranks_by_level"] = [8, 2]
    assert hardware_from_document(made).collectives[0].counts == (8, 2)


def test_nodes_are_those_of_all_levels() -> None:
    assert load_hardware("gb200-nvl72").max_nodes == 18 * 128
    assert load_hardware("gb200-nvl72*36").max_nodes == 36
    with pytest.raises(BadInput, match="1 to 2304 nodes"):
        load_hardware("gb200-nvl72*2305")


def test_another_network_and_other_nodes_keep_their_proportions() -> None:
    pod = load_hardware("h100-superpod").with_network(100e9)
    assert [level.bandwidth_bytes_per_s for level in pod.levels] == [450e9, 100e9, 3200e9]
    rack = load_hardware("gb200-nvl72")
    assert rack.with_network(100e9).levels[2].bandwidth_bytes_per_s == 18 * 100e9
    pairs = rack.with_devices_per_node(2)
    assert [level.bandwidth_bytes_per_s for level in pairs.levels] == [900e9, 1800e9, 3600e9]
    assert len(pairs.distinct_levels) == 2


# The search.


def test_hybrid_sharding_stays_inside_each_level() -> None:
    profile = load_hardware("h100-superpod")
    profile = replace(
        profile, levels=(replace(profile.levels[0], size=2), replace(profile.levels[1], size=2),
                         profile.levels[2]), devices=(replace(profile.devices[0], count=2),),
    )  # fmt: skip
    problem = search(Subject.of(mlp()), profile, 8, Options(overlap=False, zero=(3,))).problem
    axes = problem.context.mesh.axes
    assert [axis.level for axis in axes] == ["between units", "across a unit", "inside a node"]
    pairs = zip(problem.patterns, problem.costs, strict=True)
    pattern, costs = next(pair for pair in pairs if pair[0].parameters)
    batch = pattern.group.variables.index("batch")
    rows = (costs.assignment == batch).all(axis=1)
    # All three axes, those inside a unit, those inside a node.
    assert {int(mask) for mask in costs.zero_axes[rows]} == {0b111, 0b110, 0b100}


def test_axes_merge_within_a_level_only() -> None:
    mesh = Mesh.build(load_hardware("h100-superpod"), 2048)
    merged = SearchMesh.build(mesh, 200)
    for axis in merged.axes:
        assert {mesh.axes[i].level for i in axis.base} == {axis.level}
    assert {axis.level for axis in merged.axes} == {
        "between units",
        "across a unit",
        "inside a node",
    }


@pytest.mark.parametrize("word", ["inside", "across", "between"])
def test_pins_name_levels(word: str) -> None:
    profile = load_hardware("h100-superpod")
    options = Options(overlap=False, pins=(parse_pin(f"{word}=batch"),), max_configurations=60)
    problem = search(Subject.of(mlp(batch=1024)), profile, 512, options).problem
    levels = [axis.level for axis in problem.context.mesh.axes]
    pinned = [level.startswith(word) for level in levels]
    assert any(pinned)
    assert not all(pinned)
    for pattern, costs in zip(problem.patterns, problem.costs, strict=True):
        batch = pattern.group.variables.index("batch")
        assert (costs.assignment[:, pinned] == batch).all()
        assert (costs.assignment[:, ~np.array(pinned)] != batch).any()


def test_groups_of_one_level_are_counted_once() -> None:
    mesh = Mesh.build(load_hardware("h100-superpod"), 512)
    for count in (1, 2):
        for axes in combinations(range(len(mesh.axes)), count):
            levels = mesh.group_shape(axes).levels
            assert levels[-1].ranks == prod(mesh.axes[i].size for i in axes)
            assert prod(level.parts for level in levels) == levels[-1].ranks


def test_imports_take_the_profile_of_fewest_levels(tmp_path: Path) -> None:
    """Two built-in profiles have this H100; nodes and ranks are all that nccl-tests says."""
    lines = ["# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"]
    lines += ["# Using devices"]
    lines += [
        f"#  Rank  {r} Group  0 Pid {9 + r} on one device  {r} [0000:0{r}:00] NVIDIA H100 80GB HBM3"
        for r in range(2)
    ]
    lines += [
        f" {size} {size // 4} float sum -1 20.0 {rate} {rate} 0 20.0 {rate} {rate} 0"
        for size, rate in ((1024, 0.05), (2048, 0.10))
    ]
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text("\n".join(lines) + "\n")
    imported = import_measurements([str(path)], "nccl-tests", name="mine")
    assert imported.levels == load_hardware("dgx-h100").levels


def test_uplinks_wider_than_what_is_below_bring_nothing() -> None:
    wide = replace(SPINE, bandwidth_bytes_per_s=16000e9, latency_s=1e-12)
    just = replace(SPINE, latency_s=1e-12)
    for operation in OPERATIONS:
        for axes in ([0], [0, 3], range(6)):
            assert whole(hardware(NODE, UNIT, wide), operation, 64, axes) == pytest.approx(
                whole(hardware(NODE, UNIT, just), operation, 64, axes), rel=1e-6
            )
    # Of a network of its own a node is not the bottleneck: it may be as wide as it says.
    own = replace(wide, uplinks=False)
    assert whole(hardware(NODE, UNIT, own), "all_gather", 64, [0]) < 0.2 * whole(
        hardware(NODE, UNIT, just), "all_gather", 64, [0]
    )


def test_wide_uplinks_spare_oversubscribed_positions_nothing() -> None:
    """What crosses a spine passes the oversubscribed leaves below it."""
    leaves = replace(UNIT, oversubscription=4.0, rails=True)
    spine = replace(SPINE, bandwidth_bytes_per_s=64000e9, rails=True, latency_s=1e-12)
    profile = hardware(NODE, leaves, spine)
    n, size = 64, 2**30
    pair = 8 / 400e9 * (1 / 8 + 7 / 8 * 4)
    expected = size * (7 / n / 400e9 + 56 / n * pair)
    assert whole(profile, "all_to_all", 64) == pytest.approx(expected, rel=1e-4)


def test_what_collectives_can_tell_apart_is_not_joined() -> None:
    alike = replace(UNIT, bandwidth_bytes_per_s=3200e9, uplinks=True)
    outer = replace(SPINE, uplinks=False)
    assert len(hardware(NODE, alike, outer).distinct_levels) == 2
    pairwise = replace(NODE, fully_connected=True)
    for inner, middle, last in (
        (pairwise, alike, outer),
        (NODE, replace(alike, bandwidth_bytes_per_s=3100e9), outer),
        (NODE, replace(alike, oversubscription=1.5), outer),
        (NODE, replace(alike, efficiency=0.9), outer),
        (NODE, replace(alike, latency_s=1e-9), outer),
        (NODE, replace(alike, uplinks=False), outer),
        (NODE, UNIT, replace(SPINE, rails=True)),
    ):
        assert len(hardware(inner, middle, last).distinct_levels) == 3
    assert len(hardware(NODE, alike, outer, two_node_trees=False).links) == 2


def test_axes_stay_within_units_where_their_factors_let_them() -> None:
    """Two racks of 50 GPUs, in trays of four that are told apart: 100 = 2 x 50, 50 = 25 x 2."""
    profile = load_hardware("gb200-nvl72")
    tray, rack, racks = profile.levels
    mesh = Mesh.build(replace(profile, levels=(replace(tray, latency_s=0.0), rack, racks)), 100)
    assert mesh.units == ((4, 50), (50, 50))
    assert [(axis.size, axis.level) for axis in mesh.axes] == [
        (2, "between racks"),
        (5, "inside a rack"),
        (5, "inside a rack"),
        (2, "inside a node"),
    ]
