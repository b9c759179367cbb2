"""Labels: strategies that are known are named as practitioners name them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.answers import explain, frontier, plan
from harness.graph_builder import mlp
from harness.models.comparison_models import hardware, residual_block, solved, splits
from shardwise.advise import Options
from shardwise.advise.label import Labels
from shardwise.advise.roles import Role, group_roles, tokens
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import quiet
from shardwise.graph import Graph, Tensor, read_graph
from shardwise.hardware import load_hardware
from shardwise.hardware.mesh import INSIDE
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.megatron import megatron
from shardwise.peers.spaces import problem_with, splits_only
from shardwise.search.search import Search, Subject, search

SEARCH = Options(overlap=False, epsilon=0.5, zero=(0,), recompute="never")


@pytest.fixture(scope="module")
def llama() -> Search:
    graph = read_graph(shipped_graph("llama-8b"))
    return search(Subject.of(graph), load_hardware("dgx-h100"), 8, SEARCH)


@pytest.fixture(scope="module")
def gpt2() -> Search:
    graph = read_graph(shipped_graph("gpt2"))
    return search(Subject.of(graph), load_hardware("dgx-a100-80gb"), 4, SEARCH)


@pytest.fixture(scope="module")
def vgg16() -> Search:
    """On two nodes of eight."""
    graph = read_graph(shipped_graph("vgg16"))
    return search(Subject.of(graph), load_hardware("dgx-v100-16gb"), 16, SEARCH)


def data_parallel_label(problem: SearchProblem) -> str:
    return Labels(problem).of(data_parallel_rows(problem).choices)


@pytest.mark.parametrize(
    ("zero", "label"), [(0, "DP 8"), (1, "DP 8 (ZeRO-1)"), (2, "DP 8 (ZeRO-2)"), (3, "FSDP 8")]
)
def test_data_parallelism_by_zero_stage(llama: Search, zero: int, label: str) -> None:
    assert data_parallel_label(problem_with(llama, (zero,), "never")) == label


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("gpt2", "FSDP 4, recompute in all 12 layers"),
        ("llama", "FSDP 8, recompute in all 32 layers"),
        ("vgg16", "FSDP 16, recompute"),
    ],
)
def test_fsdp_that_runs_forward_again(
    model: str, label: str, request: pytest.FixtureRequest
) -> None:
    of = request.getfixturevalue(model)
    assert data_parallel_label(problem_with(of, (3,), "always")) == label


@pytest.mark.parametrize(
    ("zero", "label"), [(3, "HSDP 16 (shards of 8)"), (2, "DP 16 (ZeRO-2 over 8)")]
)
def test_shards_inside_a_node_only(vgg16: Search, zero: int, label: str) -> None:
    problem = problem_with(vgg16, (zero,), "never")
    axes = problem.context.mesh.axes
    inside = sum(1 << a for a, axis in enumerate(axes) if axis.level == INSIDE)
    rows = data_parallel_rows(problem).choices
    hybrid = [
        int(np.flatnonzero((c.assignment == c.assignment[k]).all(axis=1) & _over(c, inside))[0])
        for c, k in zip(problem.costs, rows, strict=True)
    ]
    assert Labels(problem).of(hybrid) == label


def _over(cost: object, mask: int) -> np.ndarray:
    """The configurations that shard over exactly these axes, or have nothing to shard."""
    zero_axes: np.ndarray = cost.zero_axes  # type: ignore[attr-defined]
    return (zero_axes == mask) | ~(zero_axes == mask).any()


def megatron_labels(of: Search) -> dict[str, str]:
    problem = splits_only(of)
    labels = Labels(problem)
    return {p.label: labels.of(p.choices) for p in megatron(problem, of.options, quiet).points}


def test_megatron_on_llama(llama: Search) -> None:
    assert megatron_labels(llama) == {
        "dp8·tp1": "DP 8",
        "dp4·tp2": "TP 2 × DP 4",
        "dp4·tp2·sp": "TP 2 × DP 4, sequence parallel",
        "dp2·tp4": "TP 4 × DP 2",
        "dp2·tp4·sp": "TP 4 × DP 2, sequence parallel",
        "dp1·tp8": "TP 8",
        "dp1·tp8·sp": "TP 8, sequence parallel",
    }


def test_megatron_on_gpt2(gpt2: Search) -> None:
    found = megatron_labels(gpt2)
    assert found["dp4·tp1"] == "DP 4"
    assert found["dp2·tp2"].startswith("TP 2 × DP 2")
    assert found["dp1·tp4"] == "TP 4"


def test_megatron_on_vgg(vgg16: Search) -> None:
    found = megatron_labels(vgg16)
    assert found["dp16·tp1"] == "DP 16"
    assert found["dp8·tp2"] == "TP 2 × DP 8"


def rows_with(problem: SearchProblem, choose: dict[Role, int]) -> list[int]:
    """Per group the configuration that splits these roles as far, of those that it has."""
    rows = []
    for cost, roles in zip(problem.costs, group_roles(problem.coarsened), strict=True):
        sizes = np.array([axis.size for axis in problem.context.mesh.axes])
        best = max(
            range(len(cost.assignment)),
            key=lambda k: sum(
                _shares(cost.assignment[k], roles.roles, role, sizes) == wanted
                for role, wanted in choose.items()
            ),
        )
        rows.append(best)
    return rows


def _shares(row: np.ndarray, roles: tuple[Role, ...], role: Role, sizes: np.ndarray) -> int:
    return int(np.prod([n for v, n in zip(row, sizes, strict=True) if v >= 0 and roles[v] is role]))


def test_pixels_are_spatial_and_tokens_are_context(vgg16: Search, llama: Search) -> None:
    def split(of: Search, positions: int, batch: int) -> str:
        problem = splits_only(of)
        wanted = {Role.POSITION: positions, Role.BATCH: batch, Role.MODEL: 1, Role.EXPERT: 1}
        return Labels(problem).of(rows_with(problem, wanted))

    assert split(vgg16, 2, 8) == "spatial 2 × DP 8"
    assert split(llama, 2, 4) == "CP 2 × DP 4"


def test_what_no_axis_splits_is_replicated(llama: Search) -> None:
    problem = splits_only(llama)
    nothing = [int(np.flatnonzero((c.assignment < 0).all(axis=1))[0]) for c in problem.costs]
    assert Labels(problem).of(nothing) == "replicated 8"


def test_one_gpu() -> None:
    alone = solved(residual_block(), hardware(1), 1)
    assert Labels(alone.problem).of(alone.solution.choices[0]) == "one GPU"


def test_two_ways_say_how_much_each_covers(llama: Search) -> None:
    """Tensor parallel layers 0 to k, data parallel ones after: shares of the compute time."""
    problem = splits_only(llama)
    points = {p.label: p for p in megatron(problem, llama.options, quiet).points}
    roles = group_roles(problem.coarsened)

    def mixed(layers: int) -> tuple[str, float]:
        names = {f"model.layers.{i}" for i in range(layers)}
        tensor, batch = points["dp2·tp4"].choices, points["dp8·tp1"].choices
        rows = [int(tensor[g] if of.layer in names else batch[g]) for g, of in enumerate(roles)]
        time = [float(c.compute_s[k]) for c, k in zip(problem.costs, rows, strict=True)]
        share = sum(t for t, of in zip(time, roles, strict=True) if of.layer in names) / sum(time)
        return Labels(problem).of(rows), share

    text, share = mixed(24)
    assert 0.5 < share < 0.9
    assert text == f"TP 4 × DP 2 in most layers ({share:.0%} of compute)"
    text, share = mixed(2)
    assert text == "DP 8"
    assert share < 0.1


def test_recomputation_by_layers(llama: Search) -> None:
    problem = problem_with(llama, (3,), "auto")
    roles = group_roles(problem.coarsened)
    plain = data_parallel_rows(problem).choices

    def rows(layers: int, part: str) -> list[int]:
        names = {f"model.layers.{i}" for i in range(layers)}
        chosen = []
        for group, of, cost, k in zip(
            problem.coarsened.groups, roles, problem.costs, plain, strict=True
        ):
            again = of.layer in names and part in group.anchor.operator.scope
            same = (cost.assignment == cost.assignment[k]).all(axis=1)
            found = np.flatnonzero(same & (cost.recompute == again) & (cost.zero == cost.zero[k]))
            chosen.append(int(found[0] if len(found) else k))
        return chosen

    labels = Labels(problem)
    assert labels.of(rows(12, "")) == "FSDP 8, recompute in 12 of 32 layers"
    assert labels.of(rows(32, ".mlp")) == "FSDP 8, selective recompute in all 32 layers"
    assert labels.of(rows(0, "")) == "FSDP 8"


def test_micro_batches_are_counted() -> None:
    document = plan(
        residual_block(),
        hardware(4),
        4,
        options=Options(overlap=False, zero=(0,), micro_batches=(8,)),
    )
    assert document["predicted"]["label"].endswith(", 8 micro-batches")


def test_every_point_has_the_label_of_its_plan() -> None:
    options = Options(overlap=False, epsilon=0.1, recompute="auto", micro_batches=(1, 2))
    graph, machine = residual_block(), hardware(2)
    points = frontier(graph, machine, 4, options)["points"]
    assert points
    for point in points:
        chosen = plan(graph, machine, 4, point=point["plan_id"], options=options)
        for key in ("label", "model_flops_utilisation", "tokens_per_s", "bound_by"):
            assert point[key] == chosen["predicted"][key]


def test_an_explanation_begins_with_the_label() -> None:
    document = plan(residual_block(), hardware(4), 4, options=splits(0.0))
    text = explain(document)["text"]
    assert text[0] == document["predicted"]["label"]
    assert text[1].startswith("Model flops utilisation ")
    assert text[1].endswith(f"bound by {document['predicted']['bound_by']}.")
    assert text[2] == document["predicted"]["to_go_faster"]


def test_a_plan_of_an_earlier_version_is_explained_without_it() -> None:
    document = plan(mlp(), replace(load_hardware("l4"), host=None), 2)
    new = ("label", "model_flops_utilisation", "tokens_per_s", "bound_by", "to_go_faster")
    old = {key: v for key, v in document["predicted"].items() if key not in new}
    text = explain({**document, "predicted": old})["text"]
    assert text == explain(document)["text"][3:]


# What variables stand for


def test_roles_of_a_transformer(gpt2: Search) -> None:
    coarsened = gpt2.problem.coarsened
    roles = group_roles(coarsened)

    def of(name: str) -> dict[str, Role]:
        g = next(g for g in coarsened.groups if g.name == name)
        return dict(zip(g.variables, roles[g.index].roles, strict=True))

    assert of("transformer.h.0.attn.scaled_dot_product_attention") == {
        "batch": Role.BATCH,
        "head": Role.MODEL,
        "query": Role.POSITION,
    }
    assert of("transformer.h.3.attn.c_attn.addmm") == {
        "batch": Role.BATCH,
        "out": Role.MODEL,
        "in": Role.MODEL,
    }
    layers = {r.layer for r in roles} - {None}
    assert layers == {f"transformer.h.{i}" for i in range(12)}


def test_parameters_are_counted_once(gpt2: Search) -> None:
    graph = gpt2.subject.graph
    assert sum(r.parameters for r in group_roles(gpt2.problem.coarsened)) == graph.parameter_count


def inputs(*tensors: tuple[tuple[int, ...], str, int | None]) -> Graph:
    named = {
        f"t{i}": Tensor(f"t{i}", shape, dtype, "input", dim)
        for i, (shape, dtype, dim) in enumerate(tensors)
    }
    return Graph("inputs", named, ())


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (inputs(((4, 128), "int64", 0), ((4, 128), "int64", 0)), 512),
        (inputs(((4, 128), "int64", 0), ((4, 32), "int64", 0)), 512),
        (inputs(((4, 3, 8, 8), "float32", 0), ((4, 16), "int64", 0)), None),
        (inputs(((4,), "int64", 0)), None),
        (inputs(((4, 128), "int64", None)), None),
        (inputs(((4, 128), "bool", 0)), None),
    ],
)
def test_tokens_of_a_batch(graph: Graph, expected: int | None) -> None:
    assert tokens(graph) == expected


def test_tokens_do_not_depend_on_micro_batches(llama: Search) -> None:
    graph = llama.subject.graph
    assert tokens(graph) == 64 * 4096
    split = replace(SEARCH, micro_batches=(4,))
    document = plan(graph, load_hardware("dgx-h100"), 64, options=split)
    predicted = document["predicted"]
    assert predicted["tokens_per_s"] == pytest.approx(4096 * predicted["samples_per_s"])
