"""Model flops utilisation, what bounds a step, and its communication by level of links."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from harness.answers import frontier, plan
from harness.graph_builder import mlp
from harness.models.comparison_models import hardware, residual_block, solved, splits
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.answers.levels import Levels
from shardwise.answers.summary import Summaries
from shardwise.answers.utilisation import ideal_s, model_flops
from shardwise.capture import shipped_graph
from shardwise.cost.pins import parse_pin
from shardwise.documents.frontier import exposed_s
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Device, Devices, Hardware, load_hardware
from shardwise.hardware.mesh import BETWEEN, INSIDE
from shardwise.peers import compare
from shardwise.peers.evaluate import evaluate
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Search, Subject, search, search_all

MLP_FORWARD = 2 * 8 * 32 * 128 * 2
"""Multiply and add are two; two products of a batch of 8, 32 to 128 to 32."""
MLP_STEP = MLP_FORWARD * 5 / 2
"""The second has two products in backward, the first one: its data have no gradient."""


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    return read_graph(shipped_graph("vgg16"))


# Utilisation


def test_an_mlp_by_hand() -> None:
    machine = replace(load_hardware("l4"), host=None)
    predicted = plan(mlp(), machine, 2)["predicted"]
    peak = machine.devices[0].peak_flops_per_s["float32"]
    assert predicted["model_flops_utilisation"] == pytest.approx(
        MLP_STEP / (2 * peak * predicted["time_s"])
    )
    assert predicted["tokens_per_s"] is None
    assert predicted["samples_per_s"] == pytest.approx(8 / predicted["time_s"])


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_neither_recomputation_nor_micro_batches_are_model_flops(batches: int) -> None:
    options = Options(overlap=False, recompute="always", micro_batches=(batches,))
    machine = load_hardware("l4")
    predicted = plan(mlp(), machine, 1, options=options)["predicted"]
    peak = machine.devices[0].peak_flops_per_s["float32"]
    done = predicted["model_flops_utilisation"] * peak * predicted["time_s"]
    assert done == pytest.approx(MLP_STEP)


def test_the_peak_is_that_of_the_precision() -> None:
    machine = load_hardware("dgx-h100")
    [found] = search_all(Subject.of(mlp()), machine, 1, Options(overlap=False, precision="bf16"))
    context = found.problem.context
    flops = model_flops(found.subject.coarsened, found.subject.patterns, context.graph)
    assert flops == {"bfloat16": MLP_STEP}
    device = machine.devices[0]
    assert ideal_s(flops, device) == MLP_STEP / device.peak_flops_per_s["bfloat16"]


def test_utilisation_goes_by_the_time_that_ranks() -> None:
    machine = load_hardware("dgx-v100-16gb")
    for overlap, name in ((False, "time_s"), (True, "replayed_time_s")):
        predicted = plan(residual_block(), machine, 4, options=Options(overlap=overlap))[
            "predicted"
        ]
        flops = 3 * 2 * 64 * 512 * (2048 + 2048 + 1536)
        peak = machine.devices[0].peak_flops_per_s["float32"]
        assert predicted["model_flops_utilisation"] == pytest.approx(
            flops / (4 * peak * predicted[name])
        )


def test_llama_has_the_flops_of_the_literature() -> None:
    """6 flops per parameter and token, and 12 · layers · hidden · length for attention (PaLM)."""
    subject = Subject.of(read_graph(shipped_graph("llama-8b")))
    flops = model_flops(subject.coarsened, subject.patterns, subject.graph)
    tokens = 64 * 4096
    table = 128_256 * 4096
    parameters = subject.graph.parameter_count - table
    assert list(flops) == ["bfloat16"]
    assert flops["bfloat16"] == pytest.approx(
        tokens * (6 * parameters + 12 * 32 * 4096 * 4096), rel=1e-3
    )


def test_a_dtype_without_a_peak_runs_as_float32() -> None:
    device = Device("x", 1, 1e9, {"float32": 2.0}, 1.0, 1.0, 1.0, 0.0)
    assert ideal_s({"float32": 6.0, "float64": 4.0}, device) == 5.0


# What bounds the step


def bound(graph: Graph, machine: str, gpus: int, **options: object) -> dict[str, object]:
    document = plan(graph, load_hardware(machine), gpus, options=Options(overlap=False, **options))  # type: ignore[arg-type]
    predicted: dict[str, object] = document["predicted"]
    return predicted


def test_one_gpu_is_bound_by_compute(vgg16: Graph) -> None:
    predicted = bound(vgg16, "dgx-a100-80gb", 1)
    assert predicted["bound_by"] == "compute"
    assert predicted["to_go_faster"] == (
        "Nearly all of the step is compute: only faster computation shortens it."
    )


@pytest.mark.parametrize(("nodes", "per_node", "level"), [(2, 1, BETWEEN), (1, 2, INSIDE)])
def test_slow_links_bound_data_parallelism(
    vgg16: Graph, nodes: int, per_node: int, level: str
) -> None:
    machine = load_hardware("dgx-v100-16gb").with_devices_per_node(per_node)
    slow = [replace(of, bandwidth_bytes_per_s=2e7) for of in machine.levels]
    machine = replace(machine, levels=tuple(slow))
    options = Options(
        overlap=False, zero=(0,), pins=(parse_pin("split=batch"),), memory_limit_bytes=1e12
    )
    predicted = plan(vgg16, machine, nodes * per_node, options=options)["predicted"]
    exposed = predicted["exposed_communication_s"] / predicted["replayed_time_s"]
    assert exposed > 0.5
    assert predicted["bound_by"] == f"links {level}"
    assert predicted["to_go_faster"].startswith(f"{exposed:.0%} of the step is exposed")
    assert f"(most communication time is {level})" in predicted["to_go_faster"]


def over_a_slow_network() -> tuple[Graph, Hardware]:
    """A block that is faster the more devices repeat its parameters."""
    return residual_block(2048, 2048, 8192), hardware(2).with_network(1e9)


def test_more_memory_gains_what_is_said() -> None:
    graph, machine = over_a_slow_network()
    limit = 300e6
    tight = Options(overlap=False, memory_limit_bytes=limit)
    searches = search_all(Subject.of(graph), machine, 4, tight)
    chosen = fastest(searches)
    assert chosen is not None
    summary = Summaries(searches).of(chosen)
    assert summary.bound_by == "memory limit"
    said = re.fullmatch(
        r".*; with (\d+) MiB more memory per GPU, (.*) is (\d+)% faster\.", summary.to_go_faster
    )
    assert said is not None
    more = limit + (int(said[1]) + 1) * 2**20
    assert chosen.peak_bytes <= limit < more
    points = frontier(graph, machine, 4, Options(overlap=False, memory_limit_bytes=more))["points"]
    gains = {
        point["label"]: 1 - point["time_s"] / chosen.time_s for point in points if point["feasible"]
    }
    assert gains[said[2]] == pytest.approx(int(said[3]) / 100, abs=0.01)


def test_memory_bounds_the_fastest_that_fits_alone() -> None:
    graph, machine = over_a_slow_network()
    points = frontier(graph, machine, 4, Options(overlap=False, memory_limit_bytes=300e6))["points"]
    bounded = [p["plan_id"] for p in points if p["bound_by"] == "memory limit"]
    fitting = [p for p in points if p["feasible"]]
    least = min(p["time_s"] for p in fitting)
    # Points within half a percent of the fastest that fits are as good as it.
    assert set(bounded) == {p["plan_id"] for p in fitting if p["time_s"] * 0.995 < least}
    assert len(bounded) < len(fitting)


@pytest.mark.parametrize(
    ("options", "time"),
    [(Options(overlap=False), "time_s"), (Options(micro_batches=(1, 4)), "replayed_time_s")],
)
def test_a_slower_objective_names_the_faster_one(options: Options, time: str) -> None:
    graph, machine = over_a_slow_network()
    small = plan(graph, machine, 4, objective="mini-memory", options=options)["predicted"]
    fastest = replace(options, simplest="never")
    best = plan(graph, machine, 4, options=fastest)["predicted"]
    gain = 1 - best[time] / small[time]
    assert f"; {best['label']} fits too and is {gain:.0%} faster." in small["to_go_faster"]
    assert small["bound_by"] == "links between nodes"


# Levels

OUTERMOST = 1


@pytest.fixture(scope="module")
def on_two_nodes() -> Search:
    options = replace(splits(0.05), zero=(0, 1, 3), recompute="auto")
    return solved(residual_block(), hardware(2), 4, options)


def split(of: Search, point: int, problem_levels: Levels) -> tuple[dict[str, float], float]:
    whole = float(of.time_s[point]) - of.compute_s(point)
    choices, edges = of.solution.choices[point], of.solution.edge_choices[point]
    return problem_levels.seconds(choices, edges, whole), whole


def test_levels_add_up(on_two_nodes: Search) -> None:
    of = Levels(on_two_nodes.problem)
    for point in range(len(on_two_nodes.time_s)):
        seconds, whole = split(on_two_nodes, point, of)
        assert set(seconds) == {INSIDE, BETWEEN}
        assert min(seconds.values()) >= -1e-12
        assert sum(seconds.values()) == pytest.approx(whole)


def test_every_term_of_the_cost_is_seen(on_two_nodes: Search) -> None:
    """Within the outermost level the same sum is the whole communication."""
    of = Levels(on_two_nodes.problem)
    for point in range(len(on_two_nodes.time_s)):
        choices = on_two_nodes.solution.choices[point]
        edges = on_two_nodes.solution.edge_choices[point]
        whole = float(on_two_nodes.time_s[point]) - on_two_nodes.compute_s(point)
        assert of._within_s(choices, edges, OUTERMOST) == pytest.approx(whole, abs=1e-12)


def test_random_strategies_of_a_transformer_add_up() -> None:
    """Statistics, moves and loading, and all of them again where forward runs again."""
    graph = read_graph(shipped_graph("gpt2"))
    machine = load_hardware("dgx-a100-80gb").with_devices_per_node(2)
    options = Options(overlap=False, epsilon=1.0, zero=(0, 3), recompute="auto", time_limit_s=60)
    problem = search(Subject.of(graph), machine, 4, options).problem
    of = Levels(problem)
    random = np.random.default_rng(0)
    points = [
        evaluate(problem, [int(random.integers(len(cost.time_s))) for cost in problem.costs])
        for _ in range(3)
    ]
    for point in points:
        seconds = of.seconds(point.choices, point.edge_choices, point.communication_s)
        assert sum(seconds.values()) == pytest.approx(point.communication_s)
        assert min(seconds.values()) > 0.01 * point.communication_s
    for point in points:
        seen = of._within_s(point.choices, point.edge_choices, OUTERMOST)
        assert seen == pytest.approx(point.communication_s, rel=1e-9)


def test_the_network_carries_what_the_network_slows_down() -> None:
    """A network of half the speed adds as much time as it carried, less its latency."""
    subject = Subject.of(residual_block())
    machine = hardware(2)
    pins = (parse_pin("between=batch"), parse_pin("inside=batch"))
    options = replace(splits(0.0), pins=pins)
    network = machine.levels[-1].bandwidth_bytes_per_s
    slower = machine.with_network(network / 2)
    fast, slow = (search(subject, m, 4, options) for m in (machine, slower))
    seconds, _ = split(fast, 0, Levels(fast.problem))
    added = float(slow.time_s[0] - fast.time_s[0])
    assert 0 < added <= seconds[BETWEEN] * (1 + 1e-9)
    assert added > 0.2 * seconds[BETWEEN]


@pytest.mark.parametrize(("per_node", "level"), [(4, INSIDE), (1, BETWEEN)])
def test_one_level_carries_everything(per_node: int, level: str) -> None:
    found = solved(residual_block(), hardware(per_node), 4)
    seconds, whole = split(found, -1, Levels(found.problem))
    assert seconds == {level: pytest.approx(whole)}


def test_a_search_near_the_limit_is_summarised_too(vgg16: Graph) -> None:
    searches = search_fitting(
        Subject.of(vgg16),
        load_hardware("dgx-v100-16gb"),
        Devices.alike(4),
        Options(overlap=False, memory_limit_bytes=5.35e9),
    )
    chosen = fastest(searches)
    assert isinstance(chosen, Chosen)
    assert Summaries(searches).of(chosen).label


def test_exposed_communication_is_one_figure_in_every_answer() -> None:
    """The host's launches are no part of it, also where the step waits for them most."""
    machine, options = load_hardware("dgx-v100-16gb"), Options(micro_batches=(1,), zero=(0,))
    graph = residual_block()
    planned = plan(graph, machine, 4, options=options)
    points = advice.frontier(graph, machine, 4, options).points
    [point] = [p for p in points if p.plan_id == planned["id"]]
    compared = compare(graph, machine, 4, options, proposals=10)
    [ours] = [m for m in compared.methods if m.method == "shardwise"]
    best = min((p for p in ours.points if p.feasible), key=lambda p: p.replayed_time_s or inf)
    predicted = planned["predicted"]
    assert predicted["host_s"] > 10 * predicted["exposed_communication_s"]
    assert exposed_s(point) == predicted["exposed_communication_s"]
    assert best.exposed_communication_s == predicted["exposed_communication_s"]
