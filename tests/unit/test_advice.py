"""Advice on captured graphs: what the papers found, laws, and documents that add up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.answers import curve, explain, frontier, plan, quote
from harness.graph_builder import mlp
from harness.models.shortened import shortened
from shardwise.answers import Infeasible, Options, side_by_side
from shardwise.answers.plan import plan_only
from shardwise.capture import shipped_graph
from shardwise.cost.options import quiet
from shardwise.errors import BadInput, Cancelled, SolverError
from shardwise.graph import DTYPE_BYTES, Graph, read_graph
from shardwise.hardware import Devices, Mesh, load_hardware, read_offers
from shardwise.search.search import Search, Subject, search
from shardwise.sharding.layout import local_elements

SUMS = Options(overlap=False)


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    return read_graph(shipped_graph("vgg16"))


@pytest.fixture(scope="module")
def llama() -> Graph:
    return read_graph(shipped_graph("llama-8b"))


@pytest.fixture(scope="module")
def few_layers() -> Graph:
    """For what does not depend on the number of layers."""
    return shortened("llama-8b", 4)


@pytest.fixture(scope="module")
def vgg_search(vgg16: Graph) -> Search:
    return search(Subject.of(vgg16), load_hardware("dgx-v100-16gb"), 4, SUMS)


@pytest.mark.parametrize(("gpus", "options"), [(16, SUMS), (8, Options(micro_batches=(1,)))])
def test_vgg16_splits_its_large_layers_and_its_batch(
    vgg16: Graph, gpus: int, options: Options
) -> None:
    """OptCNN's and one-weird-trick's finding, on TensorOpt's cluster."""
    document = plan(vgg16, load_hardware("dgx-v100-16gb"), gpus, options=options)
    split = {g["operators"][0]["name"]: g["split"] for g in document["groups"]}
    heavy = [name for name in split if name.endswith("conv2d")][:8]
    for name in heavy:
        assert set(split[name].values()) == {"batch"}, name
    first = set(split["classifier.0.linear"].values())
    assert first <= {"in", "out", None}
    assert first & {"in", "out"}


def test_one_device_costs_the_whole_model() -> None:
    """On one device: 16 bytes per float32 parameter with Adam, activations kept, no network."""
    graph = mlp()
    result = search(Subject.of(graph), load_hardware("l4"), 1, SUMS)
    parameters = 2 * 32 * 128 * 16
    # x is kept by the first product; relu's output serves relu and the second product.
    activations = (8 * 32 + 8 * 128) * 4
    assert result.memory_bytes.tolist() == [parameters + activations]
    assert result.compute_s(0) == pytest.approx(float(result.time_s[0]))
    assert result.solution.exact


def test_data_parallelism_is_priced_by_hand() -> None:
    """Two devices, batch split everywhere: half the activations, one all_reduce per weight."""
    from shardwise.hardware import collective_time

    graph = mlp()
    hardware = load_hardware("l4")
    result = search(Subject.of(graph), hardware, 2, Options(overlap=False, zero=(0,)))
    problem = result.problem
    shape = Mesh.build(hardware, 2).group_shape((0,))
    for index, weight in ((0, "w1"), (2, "w2")):
        cost = problem.costs[index]
        names = problem.patterns[index].group.variables
        row = next(k for k, a in enumerate(cost.assignment) if a[0] >= 0 and names[a[0]] == "batch")
        size = graph.tensors[weight].size_bytes
        expected = collective_time(hardware, "all_reduce", size, shape).time_s
        assert cost.communication_s[row] == pytest.approx(expected)
        assert cost.parameter_bytes[row] == graph.tensors[weight].elements * 16
        split = next(k for k, a in enumerate(cost.assignment) if names[a[0]] == "out")
        # Without a gradient to sum; the first group's input arrives by batch and is gathered.
        loaded = 0.0
        if index == 0:
            size = graph.tensors["x"].size_bytes
            loaded = collective_time(hardware, "all_gather", size, shape).time_s
        assert cost.communication_s[split] == pytest.approx(loaded)
        assert cost.parameter_bytes[split] == graph.tensors[weight].elements * 8


def test_points_ascend_and_descend(vgg_search: Search) -> None:
    assert (np.diff(vgg_search.memory_bytes) > 0).all()
    assert (np.diff(vgg_search.time_s) < 0).all()


def test_more_memory_is_never_slower(vgg_search: Search) -> None:
    limits = np.linspace(vgg_search.memory_bytes[0], vgg_search.memory_bytes[-1] * 1.1, 30)
    times = [vgg_search.time_s[vgg_search.fastest_within(limit)] for limit in limits]
    assert all(a >= b for a, b in itertools.pairwise(times))
    assert vgg_search.fastest_within(float(vgg_search.memory_bytes[0]) * 0.9) is None


def test_shards_of_every_configuration_cover_their_tensor(vgg_search: Search) -> None:
    """All shares together hold at least the tensor, and no less on any device than a share."""
    problem = vgg_search.problem
    sizes = problem.context.mesh.sizes
    for pattern, cost in zip(problem.patterns, problem.costs, strict=True):
        for name, port in zip(pattern.exits, cost.exits, strict=True):
            shape = vgg_search.subject.graph.tensors[name].shape
            local = local_elements(shape, port.forward, sizes)
            for dim, extent in enumerate(shape):
                parts = np.where(port.forward == dim, sizes, 1).prod(axis=1)
                assert (parts <= extent).all()
                assert ((parts - 1) * np.ceil(extent / parts) < extent).all()
            spread = np.where(port.forward >= 0, sizes, 1).prod(axis=1)
            assert (local * spread >= np.prod(shape)).all()


def test_uneven_shards_are_priced_at_their_ceiling() -> None:
    result = search(Subject.of(mlp(batch=8)), load_hardware("dgx-h100"), 3, SUMS)
    cost = result.problem.costs[0]
    names = result.problem.patterns[0].group.variables
    row = next(k for k, a in enumerate(cost.assignment) if a[0] >= 0 and names[a[0]] == "batch")
    # Three shares of eight rows: the largest has three.
    assert cost.activation_bytes[row] == 3 * 32 * 4


@pytest.mark.parametrize("options", [SUMS, Options(micro_batches=(2,))])
def test_a_plan_adds_up(vgg16: Graph, options: Options) -> None:
    machine = load_hardware("dgx-v100-16gb")
    document = plan(vgg16, machine, 8, objective="turning-point", options=options)
    explanation = explain(document)
    totals, predicted = explanation["totals"], document["predicted"]
    assert totals["memory_bytes"] == pytest.approx(predicted["memory_bytes"], rel=1e-9)
    assert totals["time_s"] == pytest.approx(predicted["time_s"], rel=1e-9)
    assert totals["compute_s"] == pytest.approx(predicted["compute_s"], rel=1e-9)
    for edge in document["edges"]:
        # What is executed is what was priced: a rebuilt copy pays its path once more.
        steps = sum(s["time_s"] for s in [*edge["forward"], *edge["backward"]])
        steps *= len(edge["tensors"]) * document["micro_batches"]
        if edge["kept"] in ("one", "both") or not edge["forward"]:
            assert edge["time_s"] == pytest.approx(steps)
        else:
            assert edge["time_s"] >= steps * (1 - 1e-9)


def test_the_next_best_split_costs_what_it_says(vgg_search: Search) -> None:
    from shardwise.search.next_best import next_best

    problem = vgg_search.problem
    point = len(vgg_search.time_s) - 1
    chosen = vgg_search.solution.choices[point]

    def total(choices: np.ndarray) -> float:
        time = problem.fixed_time_s
        time += sum(float(c.time_s[k]) for c, k in zip(problem.costs, choices, strict=True))
        for edge in problem.edges:
            table = edge.table
            cell = (table.rows[choices[edge.source]], table.columns[choices[edge.target]])
            time += float(table.time_s[cell][: table.count[cell]].min())
        return time

    assert total(chosen) == pytest.approx(float(vgg_search.time_s[point]))
    for group, other in enumerate(next_best(vgg_search, point)):
        if other is None:
            continue
        changed = chosen.copy()
        changed[group] = other.choice
        assert other.choice != chosen[group]
        # The fastest point: nothing else is faster.
        assert other.time_s >= -1e-12
        assert total(changed) - total(chosen) == pytest.approx(other.time_s, abs=1e-9)


def test_a_method_that_gives_up_says_so(few_layers: Graph) -> None:
    options = Options(overlap=False, method="brute-force")
    with pytest.raises(SolverError, match="brute force"):
        frontier(few_layers, load_hardware("dgx-h100"), 2, options)


def test_every_operator_is_in_the_plan(few_layers: Graph) -> None:
    document = plan(few_layers, load_hardware("dgx-h100"), 64, options=SUMS)
    planned = {op["name"] for g in document["groups"] for op in g["operators"]}
    replicated = {op["name"] for op in document["replicated_operators"]}
    assert planned | replicated == {op.name for op in few_layers.operators}
    assert document["certificate"]["status"] in ("exact", "within_epsilon")
    assert document["predicted"]["gap"] <= 0.01 + 1e-9


@pytest.mark.parametrize(
    ("options", "time", "memory"),
    [
        (SUMS, "time_s", "memory_bytes"),
        (Options(micro_batches=(1, 2), simplest="never"), "replayed_time_s", "peak_bytes"),
    ],
)
def test_objectives_order_as_they_should(
    vgg16: Graph, options: Options, time: str, memory: str
) -> None:
    hardware = load_hardware("dgx-v100-16gb")
    by = {
        objective: plan(vgg16, hardware, 4, objective=objective, options=options)["predicted"]
        for objective in ("mini-time", "turning-point", "mini-memory")
    }
    assert by["mini-time"][time] <= by["turning-point"][time]
    assert by["turning-point"][time] <= by["mini-memory"][time]
    assert by["mini-memory"][memory] <= by["turning-point"][memory]


def test_what_does_not_fit_says_why(few_layers: Graph) -> None:
    small: dict[str, Any] = {"memory_limit_bytes": 2.0**31}
    once = Options(recompute="never", micro_batches=(1,), **small)
    machine = load_hardware("dgx-h100")
    for options in (replace(SUMS, **small), once):
        with pytest.raises(Infeasible, match=r"needs .* GiB per GPU.* \(running forward again"):
            plan_only(few_layers, machine, options, Devices.alike(8), quiet)
    many = Options(micro_batches=(64,), **small)
    with pytest.raises(Infeasible, match=r"needs .* GiB per GPU.* limit is 2\.0 GiB$"):
        plan_only(few_layers, machine, many, Devices.alike(1), quiet)
    with pytest.raises(Infeasible, match="has 8 devices"):
        plan(few_layers, load_hardware("dgx-h100*1"), 9)


@pytest.mark.parametrize(
    ("options", "time"), [(SUMS, "time_s"), (Options(micro_batches=(1,)), "replayed_time_s")]
)
def test_a_curve_has_a_point_or_a_reason_for_every_count(
    vgg16: Graph, options: Options, time: str
) -> None:
    document = curve(vgg16, load_hardware("p2.8xlarge*1"), 9, options)
    points = document["points"]
    assert [p["gpus"] for p in points] == list(range(1, 10))
    for point in points:
        assert point["feasible"] == (point["time_s"] is not None)
        assert point["feasible"] == (point["replayed_time_s"] is not None)
        assert point["feasible"] or point["reason"]
    assert "has 8 devices" in points[-1]["reason"]
    best = [p["best_time_s"] for p in points if p["best_time_s"] is not None]
    assert all(a >= b for a, b in itertools.pairwise(best))
    eight, four = points[7], points[3]
    assert eight["feasible"]
    assert not four["feasible"] or eight[time] < four[time]


def test_llama_becomes_feasible_and_faster(llama: Graph) -> None:
    hardware = load_hardware("dgx-h100")
    subject = Subject.of(llama)
    from shardwise.answers.curve import curve_point

    eager = replace(SUMS, framework="eager")
    points = {n: curve_point(subject, hardware, n, eager)[0] for n in (24, 32, 48, 64)}
    assert [point.feasible for point in points.values()] == [False, True, True, True]
    times = [points[n].time_s or 0.0 for n in (32, 48, 64)]
    assert times == sorted(times, reverse=True)
    # It flattens: the second step buys less than the first.
    assert times[0] - times[1] > times[1] - times[2]


@pytest.mark.parametrize(
    ("options", "time"), [(SUMS, "time_s"), (Options(micro_batches=(1,)), "replayed_time_s")]
)
def test_a_quote_ranks_by_price(vgg16: Graph, options: Options, time: str) -> None:
    offers = [o for o in read_offers() if o.gpu_kind in ("V100", "L4") and not o.spot]
    limits: dict[str, Any] = {"max_instances": 1, "options": options}
    document = quote(vgg16, offers, steps=1000, deadline_s=1e6, **limits)
    prices = [row["usd_total"] for row in document["offers"]]
    assert prices
    assert prices == sorted(prices)
    for row in document["offers"]:
        expected = row["usd_per_hour"] * row[time] * 1000 / 3600
        assert row["usd_total"] == pytest.approx(expected)
        assert row["meets_deadline"]
        assert row["price_source"]
    cheap = quote(vgg16, offers, steps=1000, budget_usd=min(prices) / 2, **limits)
    assert cheap["offers"] == []
    assert "over the budget" in cheap["not_offered"][0]["reason"]


def test_an_offer_without_a_profile_is_named(vgg16: Graph) -> None:
    unknown = replace(read_offers()[0], gpu_kind="MI300X", hardware=None)
    document = quote(vgg16, [unknown], max_instances=1)
    assert "no hardware profile for MI300X" in document["not_offered"][0]["reason"]


def test_an_undescribed_operator_is_replicated_and_named() -> None:
    graph = mlp()
    strange = replace(graph.operators[1], kind="mylib.mystery.default")
    graph = replace(graph, operators=(graph.operators[0], strange, graph.operators[2]))
    document = frontier(graph, load_hardware("l4"), 4)
    assert document["undescribed_operators"] == [{"name": "act", "kind": "mylib.mystery.default"}]
    assert any("mylib.mystery" in warning for warning in document["warnings"])
    chosen = plan(graph, load_hardware("l4"), 4)
    group = next(g for g in chosen["groups"] if g["name"] == "act")
    assert set(group["split"].values()) == {None}


def test_the_optimizer_is_in_the_memory() -> None:
    hardware = load_hardware("l4")
    least: dict[str, Any] = {}
    for optimizer in ("sgd", "momentum", "adam"):
        document = frontier(mlp(), hardware, 1, Options(overlap=False, optimizer=optimizer))
        least[optimizer] = document["points"][0]["memory_bytes"]
    elements = 2 * 32 * 128
    assert least["momentum"] - least["sgd"] == 4 * elements
    assert least["adam"] - least["momentum"] == 4 * elements


@pytest.mark.parametrize(
    "options",
    [{"epsilon": -1}, {"optimizer": "lion"}, {"method": "magic"}, {"memory_limit_bytes": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Options(**options)


def test_a_cancelled_search_stops(llama: Graph) -> None:
    def stop(stage: str, fraction: float) -> bool:
        return False

    with pytest.raises(Cancelled):
        curve(llama, load_hardware("dgx-h100"), 4, progress=stop)


def test_several_processes_find_the_same_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine is searched on once, wherever: two offers of it have one search."""
    offers = [one for one in read_offers() if one.gpu_kind in ("V100", "L4")]
    machines = {one.profile().id for one in offers}
    assert 2 <= len(machines) < len(offers)
    given: dict[str, Any] = {"max_instances": 2, "options": Options(micro_batches=(1,))}
    expected = quote(mlp(), offers, **given)
    monkeypatch.setattr(side_by_side, "ALONE_S", 0.0)
    asked: list[str] = []

    def told(stage: str, fraction: float) -> bool:
        assert 0.0 <= fraction <= 1.0
        asked.append(stage)
        return True

    assert quote(mlp(), offers, processes=2, progress=told, **given) == expected
    assert expected["offers"] and asked
    with pytest.raises(Cancelled):
        quote(mlp(), offers, processes=2, progress=lambda *_: False, **given)


def test_a_quote_stops_within_an_offer(vgg16: Graph) -> None:
    offer = next(offer for offer in read_offers() if offer.hardware == "dgx-v100-16gb")
    told: list[tuple[str, float]] = []

    def stop(stage: str, fraction: float) -> bool:
        told.append((stage, fraction))
        return len(told) < 5

    with pytest.raises(Cancelled):
        quote(vgg16, [offer], max_instances=1, progress=stop)
    assert {stage for stage, _ in told} == {f"{offer.provider} {offer.instance_type}"}
    assert 5 <= len(told) < 20


def test_dtype_sizes_are_known() -> None:
    assert DTYPE_BYTES["bfloat16"] == 2
