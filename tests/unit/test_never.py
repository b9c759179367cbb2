"""docs/costs.md, "What must never happen": a test for each."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import ceil, inf, nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.answers import curve, frontier, plan
from harness.graph_builder import MUL, GraphBuilder
from shardwise import _core
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.configurations import group_work
from shardwise.cost.reschedule import Paths
from shardwise.cost.space import SearchMesh
from shardwise.errors import BadInput, SolverError
from shardwise.graph import Graph, read_graph
from shardwise.hardware import (
    Mesh,
    collective_time,
    hardware_document,
    list_builtin,
    load_hardware,
)
from shardwise.hardware.bandwidth import OPERATIONS, UnknownCollective
from shardwise.search.search import Subject, search

SHIPPED = ("gpt2", "vgg16")


def small(kind: str = "aten.relu.default", batch: int = 7) -> Graph:
    """One operator on `batch` rows of 6."""
    builder = GraphBuilder("small")
    builder.input("x", batch, 6)
    builder.parameter("w", 6)
    builder.both("scale", MUL, "x", "w", "h", "")
    builder.operator("last", kind, {"self": "h"}, "y", (batch, 6), "")
    return builder.graph()


# A cost of 0.0 or infinity standing for "unknown".


def test_an_unknown_collective_has_no_cost() -> None:
    hardware = load_hardware("dgx-h100")
    with pytest.raises(UnknownCollective, match="gossip"):
        collective_time(hardware, "gossip", 1e6, Mesh.build(hardware, 8).group_shape((0,)))


@pytest.mark.parametrize("name", list_builtin())
def test_every_collective_takes_time(name: str) -> None:
    whole = load_hardware(name)
    alone = [whole.of_group(group.name) for group in whole.groups] or [whole]
    for hardware in alone:
        mesh = Mesh.build(hardware, min(16, hardware.per_node * hardware.max_nodes))
        axes = range(len(mesh.axes))
        for operation, several in product(OPERATIONS, ((0,), axes[-1:], axes[:2], axes[-2:], axes)):
            shape = mesh.group_shape(tuple(several))
            assert 0 < collective_time(hardware, operation, 1e6, shape).time_s < inf


def test_an_undescribed_operator_takes_time_and_is_named() -> None:
    document = frontier(small("custom.mystery.default"), load_hardware("l4"), 2)
    assert [op["kind"] for op in document["undescribed_operators"]] == ["custom.mystery.default"]
    result = search(
        Subject.of(small("custom.mystery.default")),
        load_hardware("l4"),
        2,
        Options(overlap=False, epsilon=0.0),
    )
    (index,) = (i for i, p in enumerate(result.problem.patterns) if p.group.name in ("last",))
    assert (result.problem.costs[index].compute_s > 0).all()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_cost_is_finite_and_work_takes_time(name: str) -> None:
    result = search(
        Subject.of(read_graph(shipped_graph(name))),
        load_hardware("dgx-a100-80gb"),
        8,
        Options(overlap=False, recompute="auto"),
        near_limit=True,
    )
    for pattern, cost in zip(result.problem.patterns, result.problem.costs, strict=True):
        for values in (cost.memory_bytes, cost.compute_s, cost.communication_s):
            assert np.isfinite(values).all()
            assert (values >= 0).all()
        if any(member.semantics.category != "view" for member in pattern.members):
            assert (cost.compute_s > 0).all()
    for edge in result.problem.edges:
        assert np.isfinite(edge.table.time_s).all()


def test_layouts_without_a_path_are_an_error() -> None:
    """With no way to end a partial sum there is no price, and no infinite one either."""
    hardware = load_hardware("l4")
    mesh = SearchMesh.build(Mesh.build(hardware, 2), 200)
    paths = Paths(hardware, mesh, (3,), 4, "reduce_scatter")
    partial, split = np.array([[-2]], dtype=np.int8), np.array([[0]], dtype=np.int8)
    source, target = paths.register(partial)[0], paths.register(split)[0]
    assert np.isfinite(paths.distance()[source, target])  # all_reduce, then a slice
    stuck = Paths(hardware, mesh, (3,), 4, "all_reduce")
    source = stuck.register(partial)[0]
    whole = stuck.register(np.array([[-1]], dtype=np.int8))[0]
    with pytest.raises((BadInput, SolverError), match="partial"):
        stuck.path(int(source), int(whole))


# NaN in a comparison.


@pytest.mark.parametrize("value", [nan, inf, -1.0])
def test_the_solver_takes_no_such_cost(value: float) -> None:
    problem = _core.Problem()
    with pytest.raises(ValueError, match=r"cost|finite|negative"):
        problem.add_costs(np.array([value]), np.array([1.0]))
    with pytest.raises(ValueError, match=r"cost|finite|negative"):
        problem.add_costs(np.array([1.0]), np.array([value]))


FIGURES = (
    "devices.0.memory_bytes",
    "devices.0.memory_bandwidth_bytes_per_s",
    "devices.0.peak_flops_per_s.float32",
    "devices.0.compute_efficiency",
    "devices.0.kernel_latency_s",
    "levels.0.bandwidth_bytes_per_s",
    "levels.1.latency_s",
    "levels.1.efficiency",
)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("value", ["NaN", "1e999", "-1"])
def test_a_profile_has_no_such_figure(figure: str, value: str, tmp_path: Path) -> None:
    document = hardware_document(load_hardware("l4"))
    at: Any = document
    *path, last = figure.split(".")
    for key in path:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = "HERE"
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(document).replace('"HERE"', value))
    with pytest.raises(BadInput) as error:
        load_hardware(str(file))
    assert str(file) in str(error.value)


# A configuration whose shards are uneven priced as if even.


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_uneven_shards_cost_what_the_largest_costs(gpus: int) -> None:
    """Seven rows on n devices cost as much as n times the largest share, never a seventh less."""
    result = search(
        Subject.of(small(batch=7)), load_hardware("l4"), gpus, Options(overlap=False, epsilon=0.0)
    )
    context = result.problem.context
    rows = ceil(7 / gpus)
    even = search(
        Subject.of(small(batch=rows * gpus)),
        load_hardware("l4"),
        gpus,
        Options(overlap=False, epsilon=0.0),
    )
    for one, other in zip(result.problem.patterns, even.problem.patterns, strict=True):
        costs = []
        for problem, pattern in ((result.problem, one), (even.problem, other)):
            work = group_work(problem.context, pattern)
            batch = pattern.group.variables.index("batch")
            (row,) = np.flatnonzero((work.assignment == batch).all(axis=1))
            compute = work.compute()
            costs.append(
                (
                    work.kept_bytes(pattern.kept)[row],
                    compute.forward_s[row].sum(),
                    compute.backward_s[row].sum(),
                )
            )
        assert costs[0] == pytest.approx(costs[1])
    assert context.mesh.mesh.gpus == gpus


def test_a_split_with_an_empty_share_is_not_in_the_space() -> None:
    """Five rows on four devices would be 2, 2, 1 and none."""
    result = search(
        Subject.of(small(batch=5)), load_hardware("l4"), 4, Options(overlap=False, epsilon=0.0)
    )
    for pattern, cost in zip(result.problem.patterns, result.problem.costs, strict=True):
        batch = pattern.group.variables.index("batch")
        assert not (cost.assignment == batch).all(axis=1).any()


# A plan on fewer devices than asked without saying so.


def test_every_plan_is_on_as_many_devices_as_asked() -> None:
    hardware = load_hardware("dgx-a100-80gb")
    document = curve(small(batch=64), hardware, 20)
    assert [point["gpus"] for point in document["points"]] == list(range(1, 21))
    for gpus in (1, 5, 8, 12, 16, 17):
        chosen = plan(small(batch=64), hardware, gpus)
        assert chosen["gpus"] == gpus
        assert prod(axis["size"] for axis in chosen["mesh"]["axes"]) == gpus


# A point on the frontier that is over the device memory without being marked infeasible.


@pytest.mark.parametrize(
    "options",
    [Options(overlap=False), Options(zero=(0, 1), recompute="never", micro_batches=(1,))],
)
def test_points_over_the_memory_are_marked(options: Options) -> None:
    hardware = load_hardware("l4")
    graph = read_graph(shipped_graph("gpt2"))
    every = frontier(graph, hardware, 2, options)["points"]
    needs = sorted(point["replayed_peak_bytes"] or point["memory_bytes"] for point in every)
    limit = (needs[0] + needs[-1]) / 2
    tight = frontier(graph, hardware, 2, replace(options, memory_limit_bytes=limit))
    marks = [point["feasible"] for point in tight["points"]]
    assert True in marks
    assert False in marks
    for point in tight["points"]:
        needed = point["replayed_peak_bytes"] or point["memory_bytes"]
        assert point["feasible"] == (needed <= limit)
    roomy = replace(hardware, devices=(replace(hardware.devices[0], memory_bytes=1e15),))
    assert all(point["feasible"] for point in frontier(graph, roomy, 2, options)["points"])
