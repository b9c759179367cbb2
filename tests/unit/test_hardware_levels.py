"""Levels of links: two as ever, any number alike, wider ones never slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import mlp
from shardwise.answers import Options
from shardwise.hardware import (
    OPERATIONS,
    Hardware,
    Level,
    Mesh,
    collective_times,
    hardware_document,
    load_hardware,
)
from shardwise.search.search import Subject, search

IDS = {
    "dgx-v100-16gb": "da0870639074b2830c5c491df68e70a0a47b18951a801f704b93a6cf04c2a09f",
    "l4": "9cbc2e599df28706ad60ed054783f85ea68777d9794cc8153807d5fa14258710",
}
"""Content ids of profiles as they were when two levels were all there could be, and no host."""

BASE = replace(load_hardware("dgx-h100"), collectives=())
SIZES = np.array([1.0, 3e4, 1e9])


def hardware(*levels: Level, **more: Any) -> Hardware:
    """Returns devices with these levels of links."""
    devices = (replace(BASE.devices[0], count=levels[0].size),)
    return replace(BASE, devices=devices, levels=levels, **more)


def figures(**fixed: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Returns strategies of bandwidth, latency and efficiency."""
    return st.fixed_dictionaries(
        {
            "bandwidth_bytes_per_s": st.floats(1e9, 1e12),
            "latency_s": st.floats(0, 1e-4),
            "efficiency": st.floats(0.1, 1.0),
            **{name: st.just(value) for name, value in fixed.items()},
        }
    )


@st.composite
def two_levels(draw: st.DrawFn) -> Hardware:
    inner = Level("inside a node", draw(st.integers(1, 12)), **draw(figures()))
    outer = Level("between nodes", draw(st.integers(1, 40)), **draw(figures()))
    return hardware(inner, outer, two_node_trees=draw(st.booleans()))


@st.composite
def several_levels(draw: st.DrawFn) -> Hardware:
    """Two to four levels that say all that a level can say."""
    count = draw(st.integers(2, 4))
    names = ["inside a node", *[f"across a unit {i}" for i in range(1, count - 1)], "between units"]
    levels = [
        Level(names[0], draw(st.integers(2, 8)), **draw(figures())),
    ]
    for name in names[1:]:
        levels.append(
            Level(
                name,
                draw(st.integers(2, 6)),
                **draw(figures()),
                uplinks=draw(st.booleans()),
                rails=draw(st.booleans()),
                oversubscription=draw(st.sampled_from([1.0, 1.0, 2.0, 3.5])),
            )
        )
    return hardware(*levels, two_node_trees=draw(st.booleans()))


def some_axes(data: st.DataObject, mesh: Mesh) -> tuple[int, ...]:
    axes = range(len(mesh.axes))
    return tuple(data.draw(st.sets(st.sampled_from(axes)))) if len(mesh.axes) else ()


# What there was for two levels.


def old_axes(gpus: int, capacity: int) -> tuple[list[int], int, int]:
    nodes = -(-gpus // capacity)
    even = gpus % nodes == 0
    per_node = gpus // nodes if even else capacity
    if even:
        return [*_factors(nodes), *_factors(per_node)], nodes, per_node
    inner: list[int] = []
    outer = sorted(_factors(gpus))
    for f in sorted(_factors(gpus)):
        if per_node % (prod(inner) * f) == 0:
            inner.append(f)
            outer.remove(f)
    return [*outer, *inner], nodes, per_node


def _factors(n: int) -> list[int]:
    factors, p = [], 2
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors


def old_shape(groups: Sequence[Sequence[int]], per_node: int) -> tuple[int, int, int, int]:
    most_nodes = most_ranks = 1
    siblings: dict[int, int] = {}
    for group in groups:
        on_node: dict[int, int] = {}
        for rank in group:
            on_node[rank // per_node] = on_node.get(rank // per_node, 0) + 1
        most_nodes = max(most_nodes, len(on_node))
        most_ranks = max(most_ranks, *on_node.values())
        if len(on_node) > 1:
            for node in on_node:
                siblings[node] = siblings.get(node, 0) + 1
    return len(groups[0]), most_nodes, most_ranks, max(siblings.values(), default=1)


def old_time(profile: Hardware, operation: str, shape: tuple[int, int, int, int]) -> Any:
    n, nodes, ranks, siblings = shape
    inner, outer = (
        (level.bandwidth_bytes_per_s * level.efficiency, level.latency_s)
        for level in profile.levels
    )
    r = min(ranks, n)
    inside = 1 / inner[0] if r > 1 else 0.0
    across = siblings / outer[0] if nodes > 1 else 0.0
    steps = (log2(r), log2(nodes))
    if operation == "all_reduce":
        per_byte = 2 * (n - 1) / n * max(inside, across)
        if nodes == 2 and profile.two_node_trees:
            per_byte = min(per_byte, max(2 * inside, across))
        steps = (2 * steps[0], 2 * steps[1])
    elif operation in ("all_gather", "reduce_scatter"):
        per_byte = (n - 1) / n * max(inside, across)
    elif operation == "broadcast":
        per_byte = max(inside, across)
    elif operation == "all_to_all":
        per_byte = (r - 1) / n * inside + (n - r) / n * r * across
    else:
        per_byte = inside if nodes == 1 else r * across
        steps = (1.0, 0.0) if nodes == 1 else (0.0, 1.0)
    return SIZES * per_byte + (steps[0] * inner[1] + steps[1] * outer[1])


@given(two_levels(), st.data())
def test_two_levels_cost_what_they_did_to_the_last_bit(profile: Hardware, data: Any) -> None:
    gpus = data.draw(st.integers(1, profile.per_node * profile.max_nodes))
    mesh = Mesh.build(profile, gpus)
    sizes, nodes, per_node = old_axes(gpus, profile.per_node)
    assert ([axis.size for axis in mesh.axes], mesh.nodes, mesh.per_node) == (
        sizes,
        nodes,
        per_node,
    )
    axes = some_axes(data, mesh)
    shape = mesh.group_shape(axes)
    before = old_shape(mesh.groups(axes), per_node)
    assert (shape.size, shape.nodes, shape.ranks_per_node, shape.siblings_per_node) == before
    if shape.size > 1:
        for operation in OPERATIONS:
            times = collective_times(profile, operation, SIZES, shape)
            assert times.tolist() == old_time(profile, operation, before).tolist(), operation
    for i, axis in enumerate(mesh.axes):
        inside = mesh.group_shape((i,)).nodes == 1
        assert axis.level == ("inside a node" if inside else "between nodes")


@pytest.mark.parametrize("name", IDS)
def test_old_files_have_their_ids_and_documents(name: str) -> None:
    shipped = load_hardware(name)
    sources = {key: text for key, text in shipped.sources.items() if key != "host"}
    profile = replace(shipped, host=None, sources=sources)
    assert profile.id == f"sha256:{IDS[name]}"
    plain = {"name", "size", "bandwidth_bytes_per_s", "latency_s", "efficiency"}
    assert all(set(level) == plain for level in hardware_document(profile)["levels"])


# One level split in two equal ones.


def split(profile: Hardware, number: int, first: int) -> Hardware:
    """Returns the profile with one level as two alike: units of `first`, and this many of them."""
    whole = profile.levels[number]
    inner = replace(whole, name=whole.name if number == 0 else "across a half", size=first)
    outer = replace(
        whole,
        name="inside a whole" if number == 0 else whole.name,
        size=whole.size // first,
        bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s * first,
        uplinks=True,
        oversubscription=1.0,
    )
    levels = (*profile.levels[:number], inner, outer, *profile.levels[number + 1 :])
    devices = (replace(profile.devices[0], count=levels[0].size),)
    return replace(profile, devices=devices, levels=levels)


@given(several_levels(), st.data())
def test_a_level_split_in_two_equal_ones_changes_nothing(profile: Hardware, data: Any) -> None:
    choices = [(i, n) for i, x in enumerate(profile.levels) for n in (2, 3, 4) if x.size % n == 0]
    if not choices:
        return
    number, first = data.draw(st.sampled_from(choices))
    other = split(profile, number, first)
    most = profile.per_node * profile.max_nodes
    assert other.per_node * other.max_nodes == most
    gpus = data.draw(st.integers(1, min(most, 200)))
    mesh, same = Mesh.build(profile, gpus), Mesh.build(other, gpus)
    assert [axis.size for axis in mesh.axes] == [axis.size for axis in same.axes]
    where = {a.level: b.level for a, b in zip(mesh.axes, same.axes, strict=True)}
    assert [where[axis.level] for axis in mesh.axes] == [axis.level for axis in same.axes]
    axes = some_axes(data, mesh)
    for operation in OPERATIONS:
        assert (
            collective_times(profile, operation, SIZES, mesh.group_shape(axes)).tolist()
            == collective_times(other, operation, SIZES, same.group_shape(axes)).tolist()
        )


@given(st.integers(0, 1), figures(), figures(), st.booleans(), st.data())
def test_nearly_equal_levels_cost_nearly_the_same(
    number: int, inner: dict[str, float], outer: dict[str, float], rails: bool, data: Any
) -> None:
    """The formula of more levels agrees with that of one: they are no case of their own."""
    profile = hardware(
        Level("inside a node", 8, **inner), Level("between nodes", 8, **outer, rails=rails)
    )
    halves = split(profile, number, data.draw(st.sampled_from([2, 4])))
    upper = replace(
        halves.levels[number + 1], efficiency=halves.levels[number + 1].efficiency * (1 - 1e-7)
    )
    levels = (*halves.levels[: number + 1], upper, *halves.levels[number + 2 :])
    nearly = replace(halves, levels=levels)
    assert len(nearly.distinct_levels) == 3
    gpus = 2 ** data.draw(st.integers(1, 6))
    mesh, same = Mesh.build(profile, gpus), Mesh.build(nearly, gpus)
    axes = some_axes(data, mesh)
    for operation in OPERATIONS:
        one = collective_times(profile, operation, SIZES, mesh.group_shape(axes))
        two = collective_times(nearly, operation, SIZES, same.group_shape(axes))
        assert two == pytest.approx(one, rel=1e-6, abs=1e-15), operation


def test_a_split_level_changes_no_answer() -> None:
    graph, options = mlp(), Options(overlap=False, zero=(0, 1, 2, 3))
    profile = replace(load_hardware("dgx-a100-80gb"), name="same")
    before = search(Subject.of(graph), profile, 16, options)
    for number, first in ((0, 4), (1, 8)):
        after = search(Subject.of(graph), split(profile, number, first), 16, options)
        assert after.time_s.tolist() == before.time_s.tolist()
        assert after.memory_bytes.tolist() == before.memory_bytes.tolist()
        assert [a.size for a in after.problem.context.mesh.axes] == [
            a.size for a in before.problem.context.mesh.axes
        ]


# Faster links.


def faster(level: Level, data: Any) -> Level:
    what = data.draw(st.sampled_from(["bandwidth", "latency", "efficiency", "oversubscription"]))
    if what == "bandwidth":
        wider = level.bandwidth_bytes_per_s * data.draw(st.floats(1, 100))
        return replace(level, bandwidth_bytes_per_s=wider)
    if what == "latency":
        return replace(level, latency_s=level.latency_s * data.draw(st.floats(0, 1)))
    if what == "efficiency":
        return replace(level, efficiency=data.draw(st.floats(level.efficiency, 1)))
    return replace(level, oversubscription=data.draw(st.floats(1, level.oversubscription)))


@given(several_levels(), st.data())
def test_a_faster_link_is_never_slower(profile: Hardware, data: Any) -> None:
    number = data.draw(st.integers(0, len(profile.levels) - 1))
    levels = list(profile.levels)
    levels[number] = faster(levels[number], data)
    better = replace(profile, levels=tuple(levels))
    gpus = data.draw(st.integers(1, min(profile.per_node * profile.max_nodes, 150)))
    mesh, other = Mesh.build(profile, gpus), Mesh.build(better, gpus)
    axes = some_axes(data, mesh)
    if mesh.units != other.units:
        # Levels have become alike, or are no longer: what is the same is the group of all ranks.
        axes = tuple(range(len(mesh.axes)))
    for operation in OPERATIONS:
        before = collective_times(profile, operation, SIZES, mesh.group_shape(axes))
        after = collective_times(better, operation, SIZES, other.group_shape(axes))
        assert (after <= before * (1 + 1e-9)).all(), operation
