"""The law of comparisons: no peer is below our frontier, and the paper's strict differences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from harness.answers import compare
from harness.models.comparison_models import Coverage, gram, hardware, residual_block, solved
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput, Cancelled
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Hardware, load_hardware
from shardwise.peers.answer import Answer
from shardwise.peers.bundles import AxisClasses, Bundles, bundlings
from shardwise.peers.data_parallel import data_parallel_answer
from shardwise.peers.evaluate import evaluate
from shardwise.peers.flexflow import flexflow
from shardwise.peers.fsdp import fsdp
from shardwise.peers.megatron import megatron
from shardwise.peers.mesh_tensorflow import mesh_tensorflow
from shardwise.peers.optcnn import optcnn
from shardwise.peers.tofu import tofu
from shardwise.search.search import Search

SPLITS = Options(overlap=False, zero=(0,), recompute="never")
EVERYTHING = Options(overlap=False, epsilon=0.0, zero=(0, 1, 2, 3), recompute="auto")


def peers(result: Search) -> list[Answer]:
    """Every peer that only splits."""
    problem, options = result.problem, result.options
    return [
        data_parallel_answer(problem),
        optcnn(problem, options, quiet),
        flexflow(problem, quiet, proposals=5000),
        tofu(problem, options, quiet),
        mesh_tensorflow(problem, options, quiet),
        megatron(problem, options, quiet),
    ]


@cache
def shipped(name: str) -> Graph:
    return read_graph(shipped_graph(name))


def read(graph: Graph | str) -> Graph:
    """Cases name shipped graphs, so that those alone are read that run."""
    return shipped(graph) if isinstance(graph, str) else graph


CASES = [
    pytest.param(residual_block(), hardware(2), 4, id="block-2x2"),
    pytest.param(residual_block(), hardware(4), 8, id="block-2x4"),
    pytest.param(residual_block(batch=6), hardware(3), 6, id="block-2x3-few-samples"),
    pytest.param(gram(), hardware(4), 4, id="gram-4"),
    pytest.param("vgg16", load_hardware("pcie-v100-8"), 4, id="vgg16-pcie-4"),
    pytest.param("vgg16", hardware(2), 4, id="vgg16-2x2", marks=pytest.mark.full),
    pytest.param("gpt2", load_hardware("dgx-h100"), 2, id="gpt2-2"),
]


@pytest.mark.parametrize(("graph", "machine", "gpus"), CASES)
def test_no_peer_is_below_our_exact_frontier(
    graph: Graph | str, machine: Hardware, gpus: int
) -> None:
    result = solved(read(graph), machine, gpus)
    assert result.solution.exact
    ours = Coverage.by(result)
    for answer in peers(result):
        assert answer.points, answer.method
        assert ours.of_all(answer.points), answer.method
        for point in answer.points:
            again = evaluate(result.problem, point.choices, smallest=answer.method == "tofu")
            assert point.breakdown.memory_bytes == pytest.approx(point.memory_bytes, rel=1e-12)
            assert point.breakdown.time_s == pytest.approx(point.time_s, rel=1e-12)
            if answer.method != "mesh-tensorflow":  # whose frontier chooses copies itself
                assert again.memory_bytes == pytest.approx(point.memory_bytes, rel=1e-12)
                assert again.time_s == pytest.approx(point.time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("graph", "machine", "gpus"), [c for c in CASES if c.id != "vgg16-2x2" and c.id != "gpt2-2"]
)
def test_fsdp_is_not_below_our_frontier_with_zero(
    graph: Graph | str, machine: Hardware, gpus: int
) -> None:
    splits = solved(read(graph), machine, gpus, replace(SPLITS, epsilon=0.05))
    ours = Coverage.by(solved(read(graph), machine, gpus, EVERYTHING))
    assert ours.epsilon == 0.0
    points = fsdp(splits, "auto", quiet).points
    assert len(points) == 2
    assert ours.of_all(points)
    # The wider space holds what only splits do, too.
    assert ours.of_all([point for answer in peers(splits) for point in answer.points])


def test_the_law_would_notice() -> None:
    """A peer priced a millionth too low is below our frontier somewhere."""
    result = solved(residual_block(), hardware(2), 4)
    ours = Coverage.by(result)
    cheaper = evaluate(result.problem, result.solution.choices[-1])
    assert ours.of(cheaper)
    assert not ours.of(replace(cheaper, time_s=cheaper.time_s * (1 - 1e-6)))


# Mesh-TensorFlow against enumeration

NAMES: dict[str, dict[str, str]] = {
    "scale": {"batch": "batch", "d1": "model"},
    "up": {"batch": "batch", "out": "hidden", "in": "model"},
    "relu": {"batch": "batch", "d1": "hidden"},
    "down": {"batch": "batch", "out": "model", "in": "hidden"},
    "add": {"batch": "batch", "d1": "model"},
    "head": {"batch": "batch", "out": "wide", "in": "model"},
}
"""The block's dimensions as a user of Mesh-TensorFlow would have to name them."""


def _layouts(meshes: list[tuple[tuple[int, ...], ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Every assignment of one mesh dimension or none to every name, on every mesh.

    A mesh dimension is a set of mesh axes; two names of one operator never take the same.
    """
    names = sorted({name for of in NAMES.values() for name in of.values()})
    legal = []
    for mesh in meshes:
        for picked in product(((), *mesh), repeat=len(names)):
            layout = dict(zip(names, picked, strict=True))
            taken = [[layout[n] for n in of.values() if layout[n]] for of in NAMES.values()]
            if all(len(set(axes)) == len(axes) for axes in taken):
                legal.append(layout)
    return legal


def _enumerated(result: Search, layouts: list[dict[str, tuple[int, ...]]]) -> np.ndarray:
    """Memory and time of every layout with every choice of copies, shape (strategies, 2)."""
    costs = []
    for layout in layouts:
        rows = []
        for group, cost in zip(result.problem.coarsened.groups, result.problem.costs, strict=True):
            wanted = np.full(cost.assignment.shape[1], -1)
            for v, variable in enumerate(group.variables):
                wanted[list(layout[NAMES[group.name][variable]])] = v
            row = np.flatnonzero((cost.assignment == wanted).all(axis=1))
            rows += row.tolist()
        if len(rows) < len(result.problem.costs):
            continue  # an operator cannot be cut into that many shares
        base = np.array(
            [
                sum(c.memory_bytes[k] for c, k in zip(result.problem.costs, rows, strict=True)),
                sum(c.time_s[k] for c, k in zip(result.problem.costs, rows, strict=True)),
            ]
        )
        cells = []
        for edge in result.problem.edges:
            cell = (edge.table.rows[rows[edge.source]], edge.table.columns[rows[edge.target]])
            count = edge.table.count[cell]
            cells.append(
                [
                    np.array([edge.table.memory_bytes[cell][a], edge.table.time_s[cell][a]])
                    for a in range(count)
                ]
            )
        costs += [base + sum(copies) for copies in product(*cells)]
    return np.array(costs)


def _frontier(costs: np.ndarray) -> list[tuple[float, float]]:
    best: list[tuple[float, float]] = []
    for memory, time in sorted(map(tuple, costs.tolist())):
        if not best or time < best[-1][1] * (1 - 1e-12):
            best.append((memory, time))
    return best


@pytest.mark.parametrize("batch", [64, 512])
@pytest.mark.parametrize(
    ("machine", "gpus", "meshes"),
    [
        (hardware(2), 2, [((0,),)]),
        (hardware(2), 4, [((0,), (1,)), ((0, 1),)]),
        (
            hardware(6),
            12,
            [
                ((0,), (1,), (2,)),
                ((0, 1), (2,)),
                ((0, 2), (1,)),
                ((1, 2), (0,)),
                ((0, 1, 2),),
            ],
        ),
    ],
    ids=["2", "2x2", "2x6"],
)
def test_mesh_tensorflow_against_enumeration(
    machine: Hardware, gpus: int, meshes: list[tuple[tuple[int, ...], ...]], batch: int
) -> None:
    """On meshes without two axes alike, where names lie along the same axes in every group."""
    result = solved(residual_block(batch=batch), machine, gpus)
    answer = mesh_tensorflow(result.problem, result.options, quiet)
    expected = _frontier(_enumerated(result, _layouts(meshes)))
    assert answer.epsilon == 0.0
    got = [(p.memory_bytes, p.time_s) for p in answer.points]
    assert len(got) == len(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_meshes_are_all_ways_to_bundle_axes() -> None:
    assert list(bundlings(())) == [()]
    assert len(list(bundlings((4,)))) == 5  # partitions of 4
    assert len(list(bundlings((1, 3)))) == 7
    for mesh in bundlings((2, 2)):
        assert tuple(map(sum, zip(*mesh, strict=True))) == (2, 2)
        assert all(a >= b for a, b in pairwise(mesh))


def test_a_variable_has_a_whole_mesh_dimension_or_none() -> None:
    """Two nodes of two: on the mesh 4 nothing lies along one axis, on 2×2 nothing along both."""
    result = solved(residual_block(), hardware(2), 4)
    bundles = Bundles(result.problem, AxisClasses.of(result.problem.context.mesh.axes))
    assignment = result.problem.costs[1].assignment
    together = (assignment[:, 0] == assignment[:, 1]) & (assignment[:, 0] >= 0)
    split = (assignment >= 0).any(axis=1)
    assert (bundles.on(1, ((1, 1),)) == (together | ~split)).all()
    assert (bundles.on(1, ((1, 0), (0, 1))) == ~together).all()


# What the paper says of others (TensorOpt §5.1)


@pytest.fixture(scope="module")
def vgg16_on_16() -> Search:
    return solved(
        shipped("vgg16"), load_hardware("dgx-v100-16gb"), 16, replace(SPLITS, epsilon=0.05)
    )


def test_ours_is_strictly_better_than_mesh_tensorflow_on_vgg16(vgg16_on_16: Search) -> None:
    """§4.2: convolutions by samples and large layers by channels, which one mesh cannot do."""
    result = vgg16_on_16
    theirs = mesh_tensorflow(result.problem, result.options, quiet).points
    assert float(result.time_s[-1]) * 1.2 < min(point.time_s for point in theirs)
    # "Mesh-TensorFlow cannot work in the small-memory region."
    assert float(result.memory_bytes[0]) * 1.5 < theirs[0].memory_bytes
    # For WideResNet its fastest is data parallelism; for VGG16 that is within one per cent of it.
    (batch,) = data_parallel_answer(result.problem).points
    assert theirs[-1].time_s <= batch.time_s * (1 + 1e-9)
    assert theirs[-1].time_s == pytest.approx(batch.time_s, rel=0.01)


def test_tofu_takes_little_memory_and_data_parallelism_much(vgg16_on_16: Search) -> None:
    result = vgg16_on_16
    (small,) = tofu(result.problem, result.options, quiet).points
    (batch,) = data_parallel_answer(result.problem).points
    (fast,) = optcnn(result.problem, result.options, quiet).points
    assert small.memory_bytes < fast.memory_bytes < batch.memory_bytes
    assert fast.time_s < small.time_s < batch.time_s


# The document


def test_the_document_has_every_system_on_one_model() -> None:
    document = compare(residual_block(), hardware(2), 4, EVERYTHING)
    assert document["schema"] == "shardwise.compare/1"
    methods = {method["method"]: method for method in document["methods"]}
    assert list(methods) == [
        "data-parallel",
        "optcnn",
        "flexflow",
        "tofu",
        "mesh-tensorflow",
        "megatron",
        "shardwise-splits",
        "fsdp",
        "shardwise",
    ]
    for method in methods.values():
        assert method["points"]
        assert method["found_by"]
        for point in method["points"]:
            parts = point["breakdown"]
            memory = sum(value for key, value in parts.items() if key.endswith("_bytes"))
            time = sum(value for key, value in parts.items() if key.endswith("_s"))
            assert memory == pytest.approx(point["memory_bytes"], abs=1)
            assert time == pytest.approx(point["time_s"])
            assert point["compute_s"] + point["communication_s"] == pytest.approx(time)
            assert point["replayed_peak_bytes"] > 0 and "slower_by" not in point
            assert point["replayed_time_s"] > point["exposed_communication_s"] >= 0
            # Exact frontiers: in no more memory ours is no slower.
            assert point["our_time_s"] <= point["time_s"] * (1 + 1e-9)
        best = method["points"][method["best"]]
        assert best["feasible"]
        assert best["time_s"] == min(p["time_s"] for p in method["points"] if p["feasible"])
    ratio = document["data_parallel_over_mini_time"]
    mini = methods["shardwise-splits"]["points"][-1]["time_s"]
    assert ratio["splits"] == pytest.approx(methods["data-parallel"]["points"][0]["time_s"] / mini)
    assert ratio["all"] >= ratio["splits"]


def test_splits_alone_leave_zero_out() -> None:
    document = compare(residual_block(), hardware(2), 2, SPLITS, proposals=10)
    assert {m["space"] for m in document["methods"]} == {"splits"}
    assert document["methods"][-1]["method"] == "shardwise-splits"


def test_a_peer_out_of_time_says_so() -> None:
    """Our own answer is there; who got none has its reason."""
    document = compare(
        shipped("vgg16"),
        load_hardware("dgx-v100-16gb"),
        4,
        replace(SPLITS, epsilon=0.5, search_memory_bytes=16 * 2**20),
        proposals=10,
    )
    for method in document["methods"]:
        assert bool(method["points"]) != bool(method["reason"])


def test_what_a_comparison_cannot_have_is_refused() -> None:
    graph, machine = residual_block(), hardware(2)
    for options, field in (
        (Options(overlap=False, method="tofu"), "method"),
        (Options(overlap=False, pins=(parse_pin("split=batch"),)), "pin"),
        (Options(overlap=False, micro_batches=(1, 2)), "micro-batches"),
    ):
        with pytest.raises(BadInput) as refused:
            compare(graph, machine, 2, options)
        assert refused.value.field == field
    with pytest.raises(BadInput, match="proposals"):
        compare(graph, machine, 2, proposals=0)


@pytest.mark.parametrize(
    "stage", ["OptCNN", "FlexFlow", "Tofu", "Mesh-TensorFlow: mesh 2", "Megatron"]
)
def test_it_can_be_cancelled_everywhere(stage: str) -> None:
    with pytest.raises(Cancelled):
        compare(
            residual_block(),
            hardware(2),
            4,
            SPLITS,
            progress=lambda name, fraction: not name.startswith(stage),
        )


def test_micro_batches_are_theirs_too() -> None:
    """Two halves of a batch: fewer activations for data parallelism as for us."""
    whole = compare(residual_block(), hardware(2), 2, SPLITS, proposals=10)
    halves = compare(
        residual_block(),
        hardware(2),
        2,
        replace(SPLITS, micro_batches=(2,)),
        proposals=10,
    )
    assert halves["micro_batches"] == 2
    one, two = (d["methods"][0]["points"][0]["breakdown"] for d in (whole, halves))
    assert two["activation_bytes"] + two["edge_bytes"] == pytest.approx(
        (one["activation_bytes"] + one["edge_bytes"]) / 2
    )
    assert two["parameter_bytes"] == one["parameter_bytes"]
