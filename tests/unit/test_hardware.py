"""Profiles, meshes, costs of collectives."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.hardware import (
    OPERATIONS,
    CollectiveTable,
    Mesh,
    TooFewDevices,
    collective_time,
    collective_times,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
)
from shardwise.hardware.machines import machines

NAMES = {
    "b200-8",
    "gb200-nvl72",
    "h100-superpod",
    "mi300x-8",
    "tpu-v5p",
    "dgx-v100-16gb",
    "p2.8xlarge",
    "dgx1-v100-32gb",
    "dgx2-v100-32gb",
    "dgx-a100-40gb",
    "dgx-a100-80gb",
    "dgx-h100",
    "grand-teton-h100-96gb",
    "h200-8",
    "l4",
    "pcie-v100-8",
    "heterog-8",
    "heterog-12",
    "h100-8+a100-8",
    "l40s-4+a100-4",
}


def test_the_built_in_profiles() -> None:
    assert set(list_builtin()) == NAMES | set(machines())
    assert set(list_builtin(rented=False)) == NAMES | {
        row.name for row in machines().values() if not row.is_rented
    }
    for name in list_builtin():
        hardware = load_hardware(name)
        assert hardware.name == name
        assert "data sheet" in hardware.provenance
        published = ("section", "data sheet", "documentation", "specifications")
        assert any(word in s for s in hardware.sources.values() for word in published)


def test_a_document_round_trips() -> None:
    hardware = load_hardware("dgx-h100")
    again = hardware_from_document(json.loads(json.dumps(hardware_document(hardware))))
    assert again.id == hardware.id


@pytest.mark.parametrize("spec", ["nosuch", "dgx-h100*0", "dgx-h100*x", "dgx-h100*9999", "a*b*c"])
def test_bad_specs_are_refused(spec: str) -> None:
    with pytest.raises(BadInput):
        load_hardware(spec)


def test_a_fixed_number_of_nodes() -> None:
    assert load_hardware("dgx-h100*2").max_nodes == 2
    with pytest.raises(TooFewDevices, match="has 16 devices"):
        Mesh.build(load_hardware("dgx-h100*2"), 17)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": "shardwise.hardware/9"}, "schema"),
        ({"levels": []}, "levels"),
        ({"devices": []}, "devices"),
        ({"nodes": 0}, "nodes"),
        ({"name": 3}, "name"),
    ],
)
def test_a_refused_file_names_the_field(tmp_path: Path, change: dict, field: str) -> None:
    document = hardware_document(load_hardware("l4")) | change
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=field) as caught:
        load_hardware(str(path))
    assert str(path) in str(caught.value)


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    text = json.dumps(hardware_document(load_hardware("l4")))
    path.write_text(
        text.replace('"peak_flops_per_s": {', '"peak_flops_per_s": {"bfloat16": 1, ', 1)
    )
    with pytest.raises(BadInput, match="the key 'bfloat16' occurs twice") as caught:
        load_hardware(str(path))
    assert str(path) in str(caught.value)


def test_a_bad_figure_in_a_file_is_named(tmp_path: Path) -> None:
    document = hardware_document(load_hardware("l4"))
    document["devices"][0]["compute_efficiency"] = 1.5
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"devices\[0\].compute_efficiency"):
        load_hardware(str(path))


@given(st.integers(1, 200))
def test_a_mesh_holds_every_device_once(gpus: int) -> None:
    mesh = Mesh.build(load_hardware("dgx-h100"), gpus)
    assert int(np.prod([a.size for a in mesh.axes])) == gpus
    assert (mesh.nodes - 1) * 8 < gpus <= mesh.nodes * 8
    for i, axis in enumerate(mesh.axes):
        shape = mesh.group_shape((i,))
        assert shape.size == axis.size
        assert (shape.nodes == 1) == (axis.level == "inside a node")


def test_group_shapes_of_two_nodes() -> None:
    mesh = Mesh.build(load_hardware("dgx-v100-16gb"), 16)
    between = mesh.group_shape((0,))
    assert (between.nodes, between.ranks_per_node, between.siblings_per_node) == (2, 1, 8)
    inside = mesh.group_shape((1, 2, 3))
    assert (inside.nodes, inside.size, inside.consecutive) == (1, 8, True)
    whole = mesh.group_shape((0, 1, 2, 3))
    assert (whole.nodes, whole.ranks_per_node, whole.siblings_per_node) == (2, 8, 1)
    assert not mesh.group_shape((1,)).consecutive


def test_uneven_placement_fills_nodes() -> None:
    mesh = Mesh.build(load_hardware("dgx-h100"), 11)
    assert mesh.nodes == 2
    assert mesh.group_shape((0,)).ranks_per_node == 8


@pytest.mark.parametrize("operation", OPERATIONS)
@given(
    st.sampled_from([(0,), (1,), (3,), (0, 3), (1, 2, 3), (0, 1, 2, 3)]),
    st.floats(1, 1e11),
    st.floats(1, 4),
)
def test_times_are_finite_positive_and_grow(
    operation: str, axes: tuple[int, ...], size: float, factor: float
) -> None:
    hardware = load_hardware("dgx-v100-16gb")
    shape = Mesh.build(hardware, 16).group_shape(axes)
    small = collective_time(hardware, operation, size, shape)
    large = collective_time(hardware, operation, size * factor, shape)
    assert 0 < small.time_s <= large.time_s < float("inf")
    assert small.provenance == "modelled"


def test_a_group_of_one_is_free() -> None:
    hardware = load_hardware("l4")
    shape = Mesh.build(hardware, 1).group_shape(())
    assert collective_time(hardware, "all_reduce", 1e9, shape).time_s == 0


def test_siblings_contend_for_the_network_card() -> None:
    """As measured: pairs at 149.7 GB/s when consecutive, 8.13 GB/s strided across two nodes."""
    base = load_hardware("dgx-v100-16gb")
    inner = replace(base.levels[0], bandwidth_bytes_per_s=149.7e9, efficiency=1.0)
    outer = replace(base.levels[1], bandwidth_bytes_per_s=8 * 8.13e9, efficiency=1.0)
    hardware = replace(base, levels=(inner, outer))
    mesh = Mesh.build(hardware, 16)
    size = 2.0**30
    near = collective_time(hardware, "all_reduce", size, mesh.group_shape((3,))).time_s
    far = collective_time(hardware, "all_reduce", size, mesh.group_shape((0,))).time_s
    assert size / near == pytest.approx(149.7e9, rel=0.01)
    assert size / far == pytest.approx(8.13e9, rel=0.01)


def test_one_ring_through_two_nodes() -> None:
    """NVIDIA/nccl-tests issue 29: one EDR card a machine, bus bandwidth 12.2 GB/s on V100."""
    hardware = load_hardware("dgx-v100-16gb")
    shape = Mesh.build(hardware, 16).group_shape((0, 1, 2, 3))
    size = 2.0**33
    for operation, links in (("all_reduce", 2 * 15 / 16), ("all_gather", 15 / 16)):
        time = collective_time(hardware, operation, size, shape).time_s
        assert size / time * links == pytest.approx(12.2e9, rel=0.001), operation


def test_a_tree_over_two_nodes_halves_what_crosses() -> None:
    """NVIDIA/nccl issue 946; over three nodes and more it does not."""
    old = load_hardware("dgx-v100-16gb")
    new = replace(old, two_node_trees=True)
    for gpus, faster in ((16, 15 / 8), (24, 1.0), (8, 1.0)):
        mesh = Mesh.build(old, gpus)
        shape = mesh.group_shape(tuple(range(len(mesh.axes))))
        ring, tree = (collective_time(h, "all_reduce", 2.0**33, shape).time_s for h in (old, new))
        assert ring / tree == pytest.approx(faster, rel=0.001), gpus


def test_links_inside_decide_where_they_are_slower() -> None:
    base = load_hardware("dgx-v100-16gb")
    slow = replace(base.levels[0], bandwidth_bytes_per_s=1e9, efficiency=1.0)
    hardware = replace(base, levels=(slow, base.levels[1]))
    shape = Mesh.build(hardware, 16).group_shape((0, 1, 2, 3))
    time = collective_time(hardware, "reduce_scatter", 2.0**33, shape).time_s
    assert time == pytest.approx(2.0**33 * 15 / 16 / 1e9, rel=0.001)


def test_measured_tables_come_first() -> None:
    hardware = load_hardware("dgx-v100-16gb")
    table = CollectiveTable("all_reduce", 1, 2, True, (2.0**10, 2.0**20), (1e-5, 1e-3))
    measured = replace(hardware, collectives=(table,))
    shape = Mesh.build(hardware, 16).group_shape((3,))
    exact = collective_time(measured, "all_reduce", 2.0**20, shape)
    assert (exact.time_s, exact.provenance) == (pytest.approx(1e-3), "measured")
    between = collective_time(measured, "all_reduce", 2.0**15, shape)
    assert (between.time_s, between.provenance) == (pytest.approx(1e-4), "interpolated")
    beyond = collective_times(measured, "all_reduce", np.array([2.0**22]), shape)
    assert beyond[0] == pytest.approx(4e-3)
    other = collective_time(measured, "all_gather", 2.0**20, shape)
    assert other.provenance == "modelled"


def test_roofline() -> None:
    device = load_hardware("dgx-h100").devices[0]
    flops, moved = np.array([1e15, 0.0, 0.0]), np.array([0.0, 1e12, 0.0])
    times = device.roofline_times(flops, moved, "bfloat16")
    assert times[0] == pytest.approx(1e15 / (989.4e12 * device.compute_efficiency), rel=1e-3)
    assert times[1] == pytest.approx(1e12 / (3.35e12 * device.memory_efficiency), rel=1e-3)
    assert times[2] == device.kernel_latency_s
    assert device.peak("int64") == device.peak("float32")


def test_vector_units_have_their_own_efficiency() -> None:
    device = load_hardware("dgx-v100-16gb").devices[0]
    flops, nothing = np.array([1e15]), np.array([0.0])
    plain = device.roofline_times(flops, nothing, "float32")[0]
    assert plain == pytest.approx(1e15 / (15.7e12 * 0.89), rel=1e-3)
    # What has no peak of its own runs as float32, efficiency and all.
    assert device.roofline_times(flops, nothing, "int64")[0] == plain
    tensor = device.roofline_times(flops, nothing, "float16")[0]
    assert tensor == pytest.approx(1e15 / (125e12 * 0.6), rel=1e-3)


@pytest.mark.parametrize(
    ("entry", "value", "field"),
    [
        ("compute_efficiency_by_dtype", {"float32": 1.2}, "compute_efficiency_by_dtype.float32"),
        ("fast_convolution_saving", {"float32": 0.5}, "fast_convolution_saving.float32"),
    ],
)
def test_refinements_out_of_range_are_named(
    tmp_path: Path, entry: str, value: dict[str, float], field: str
) -> None:
    document = hardware_document(load_hardware("l4"))
    document["devices"][0][entry] = value
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=re.escape(f"devices[0].{field}")):
        load_hardware(str(path))
