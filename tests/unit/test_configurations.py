"""A group's choices besides its split: ZeRO, recomputation, micro-batches, precision, pins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.answers import curve, explain, frontier, plan
from harness.graph_builder import ADD, GraphBuilder, mlp
from harness.models.shortened import shortened
from harness.strategies import problem_of
from shardwise.answers import Options
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.configurations import group_work
from shardwise.cost.crossings import ALTERNATIVES
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Mesh, collective_time, load_hardware
from shardwise.search.search import Search, Subject, search

LAYERS, MODULES, WIDTH, BATCH = 3, 4, 64, 32
L4 = load_hardware("l4")


def layered() -> Graph:
    """Layers of products and ReLUs: eight operators each, so that each is a segment."""
    builder = GraphBuilder("layered")
    last = builder.input("x0", BATCH, WIDTH)
    for layer in range(LAYERS):
        for module in range(MODULES):
            at = f"layers.{layer}.{module}"
            weight = builder.parameter(f"{at}.w", WIDTH, WIDTH)
            product = builder.linear(f"{at}.linear", last, weight, f"{at}.y", at)
            last = builder.relu(f"{at}.relu", product, f"{at}.a", at)
    return builder.graph()


def searched(gpus: int = 2, hardware: Hardware = L4, micro_batches: int = 1, **kw: Any) -> Search:
    options = Options(overlap=False, **{"epsilon": 0.0, "zero": (0,), **kw})
    return search(Subject.of(layered()), hardware, gpus, options, micro_batches=micro_batches)


def first(problem: SearchProblem, kind: str = "linear") -> tuple[GroupCosts, tuple[str, ...]]:
    """The costs of the first group of that kind after the first, and its variables."""
    index = next(
        i
        for i, p in enumerate(problem.patterns)
        if i > 0 and kind in p.group.members[0].operator.kind
    )
    return problem.costs[index], problem.patterns[index].group.variables


def by_batch(costs: GroupCosts, variables: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """The rows whose every axis splits the batch."""
    return np.flatnonzero((costs.assignment == variables.index("batch")).all(axis=1))


def test_backward_reads_what_it_needs() -> None:
    """Bytes of backward: the output's gradient, what is kept for it, the inputs' gradients.

    An addition keeps nothing; a ReLU keeps its output.
    """
    shape = (BATCH, WIDTH)
    builder = GraphBuilder("sum")
    builder.input("x", *shape)
    for name in ("a", "b"):
        weight = builder.parameter(f"w{name}", WIDTH, WIDTH)
        builder.linear(f"{name}.linear", "x", weight, name, "")
    builder.both("add", ADD, "a", "b", "s", "")
    builder.relu("relu", "s", "r", "")
    graph = builder.graph()
    problem = search(Subject.of(graph), L4, 1, Options(overlap=False)).problem
    device = L4.devices[0]
    size = BATCH * WIDTH * 4.0
    for kind, passes in (("add", 3), ("relu", 3)):
        pattern = problem.patterns[problem.coarsened.group_of[kind]]
        position = [m.operator.name for m in pattern.members].index(kind)
        backward_s = group_work(problem.context, pattern).compute().backward_s[0, position]
        moved = np.array([passes * size])
        assert backward_s == pytest.approx(
            float(device.roofline_times(0 * moved, moved, "float32")[0])
        )


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_by_hand(stage: int, batches: int) -> None:
    """Memory and time of each stage as in the table of `parameters.py`, on eight devices."""
    problem = searched(8, micro_batches=batches, zero=(stage,)).problem
    costs, variables = first(problem)
    (row,) = by_batch(costs, variables)
    shape = Mesh.build(L4, 8).group_shape((0, 1, 2))
    elements = WIDTH * WIDTH
    weight, gradient, state = 4 * elements, 4 * elements, 8 * elements
    size = float(weight)

    def time(operation: str) -> float:
        return collective_time(L4, operation, size, shape).time_s

    scatter, gather = time("reduce_scatter"), time("all_gather")
    memory, seconds = {
        0: (weight + gradient + state, time("all_reduce")),
        1: (weight + gradient + state / 8, scatter + gather),
        2: (weight + (gradient + state) / 8, batches * scatter + gather),
        3: ((weight + gradient + state) / 8, batches * (2 * gather + scatter)),
    }[stage]
    assert costs.zero[row] == stage
    assert costs.zero_axes[row] == (0b111 if stage else 0)
    assert costs.parameter_bytes[row] == memory
    assert costs.communication_s[row] == pytest.approx(seconds)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_table_of_positions_is_sharded_without_a_sum(stage: int) -> None:
    """No split of samples reaches it: all devices compute its gradient, of which each keeps a
    shard."""
    options = Options(overlap=False, epsilon=0.0, zero=(stage,))
    problem = search(Subject.of(shortened("gpt2", 1)), L4, 8, options, micro_batches=4).problem
    (index,) = (g.index for g in problem.coarsened.groups if "wpe" in g.name)
    assert problem.coarsened.unreached == set(problem.patterns[index].parameters)
    costs = problem.costs[index]
    (row,) = np.flatnonzero((costs.assignment < 0).all(axis=1))
    table = problem.context.graph.tensors[problem.patterns[index].parameters[0]]
    weight, gradient, state = (item * table.elements for item in (2, 2, 12))
    shape = Mesh.build(L4, 8).group_shape((0, 1, 2))
    gather = collective_time(L4, "all_gather", float(weight), shape).time_s
    memory, seconds = {
        0: (weight + gradient + state, 0.0),
        1: (weight + gradient + state / 8, gather),
        2: (weight + (gradient + state) / 8, gather),
        3: ((weight + gradient + state) / 8, 4 * 2 * gather),
    }[stage]
    assert costs.zero_axes[row] == (0b111 if stage else 0)
    assert costs.parameter_bytes[row] == memory
    assert costs.communication_s[row] == pytest.approx(seconds)


def test_the_update_is_of_the_own_shard() -> None:
    plain, _ = first(searched(8).problem)
    sharded, variables = first(searched(8, zero=(1,)).problem)
    row = by_batch(sharded, variables)[0]
    same = by_batch(plain, variables)[0]
    assert sharded.compute_s[row] < plain.compute_s[same]


def test_hybrid_sharding_stays_inside_a_node() -> None:
    hardware = load_hardware("dgx-a100-80gb")
    problem = searched(16, hardware, zero=(3,)).problem
    costs, variables = first(problem)
    rows = by_batch(costs, variables)
    inside = [axis.level == "inside a node" for axis in problem.context.mesh.axes]
    masks = {int(mask) for mask in costs.zero_axes[rows]}
    assert masks == {0b1111, sum(1 << a for a, within in enumerate(inside) if within)}
    whole, hybrid = sorted(rows, key=lambda k: -int(costs.zero_axes[k]))[:2]
    if costs.zero_axes[whole] != 0b1111:
        whole, hybrid = hybrid, whole
    assert costs.parameter_bytes[whole] < costs.parameter_bytes[hybrid]
    assert costs.communication_s[whole] > costs.communication_s[hybrid]


def test_what_is_dropped_is_beaten_in_its_own_layouts() -> None:
    """With every stage at hand each pair of layouts keeps its frontier of stages and no more."""
    everything, _ = first(searched(8, zero=(0, 1, 2, 3)).problem)
    for stage in range(4):
        alone, _ = first(searched(8, zero=(stage,)).problem)
        for k, row in enumerate(alone.assignment):
            alike = (everything.assignment == row).all(axis=1)
            assert (
                (everything.memory_bytes[alike] <= alone.memory_bytes[k])
                & (everything.time_s[alike] <= alone.time_s[k] * (1 + 1e-12))
            ).any()
    for row in np.unique(everything.assignment, axis=0):
        alike = np.flatnonzero((everything.assignment == row).all(axis=1) & everything.summed)
        order = alike[np.argsort(everything.memory_bytes[alike])]
        assert (np.diff(everything.time_s[order]) < 0).all()


def test_a_larger_space_is_never_worse() -> None:
    plain = searched(4)
    larger = searched(4, zero=(0, 1, 2, 3), recompute="auto")
    for memory, time in zip(plain.memory_bytes, plain.time_s, strict=True):
        fits = larger.memory_bytes <= memory
        assert larger.time_s[fits].min() <= time * (1 + 1e-12)
    assert larger.memory_bytes[0] < plain.memory_bytes[0]


def test_a_recomputed_layer_keeps_what_enters_it() -> None:
    """Each layer after the first keeps its input; the model's own input stays as it is."""
    always = searched(1, recompute="always")
    state = 16 * LAYERS * MODULES * WIDTH * WIDTH
    entering = (LAYERS - 1) * BATCH * WIDTH * 4
    assert always.memory_bytes.tolist() == [state + BATCH * WIDTH * 4 + entering]
    never = searched(1)
    kept = LAYERS * MODULES * BATCH * WIDTH * 4
    assert never.memory_bytes[-1] == state + BATCH * WIDTH * 4 + kept


def test_recomputation_costs_another_forward() -> None:
    never, always = searched(1), searched(1, recompute="always")
    forward = 0.0
    for pattern in never.problem.patterns:
        forward += float(group_work(never.problem.context, pattern).compute().forward_s.sum())
    assert always.time_s[0] - never.time_s[0] == pytest.approx(forward)


def test_a_tensor_between_two_groups_that_run_again_is_rebuilt_with_its_path() -> None:
    problem = searched(2, recompute="auto").problem
    edge = next(
        e
        for e in problem.edges
        if problem.context.segments[e.source] == problem.context.segments[e.target]
    )
    table = edge.table
    source, target = problem.costs[edge.source], problem.costs[edge.target]
    rebuilt = ALTERNATIVES.index("rebuilt")
    seen = set()
    for i in range(len(source.time_s)):
        for j in range(len(target.time_s)):
            r, c = table.rows[i], table.columns[j]
            kept = set(table.kept[r, c, : table.count[r, c]].tolist())
            both = bool(source.recompute[i] and target.recompute[j])
            assert (kept == {rebuilt}) == both
            if both:
                assert table.memory_bytes[r, c, 0] == 0
                i_plain = np.flatnonzero(
                    (source.assignment == source.assignment[i]).all(axis=1) & ~source.recompute
                )[0]
                plain = table.time_s[table.rows[i_plain], c, 0]
                seen.add(bool(table.time_s[r, c, 0] > plain))
    assert seen == {False, True}  # In equal layouts nothing is sent again, in others it is.


def test_between_segments_the_tensor_is_kept() -> None:
    problem = searched(2, recompute="always").problem
    for edge in problem.edges:
        segments = problem.context.segments
        if segments[edge.source] != segments[edge.target]:
            assert (edge.table.memory_bytes[..., 0] > 0).all()


def test_micro_batches_divide_activations_and_share_one_synchronisation() -> None:
    one, four = searched(2, zero=(0,)).problem, searched(2, micro_batches=4, zero=(0,)).problem
    a, variables = first(one)
    b, _ = first(four)
    i, j = by_batch(a, variables)[0], by_batch(b, variables)[0]
    assert b.communication_s[j] == pytest.approx(a.communication_s[i])
    assert b.parameter_bytes[j] == a.parameter_bytes[i]
    relu, names = first(one, "relu")
    small, _ = first(four, "relu")
    assert small.activation_bytes[by_batch(small, names)[0]] * 4 == pytest.approx(
        relu.activation_bytes[by_batch(relu, names)[0]]
    )
    # Kernels have a latency: four small ones are no faster than a large one.
    assert small.compute_s[by_batch(small, names)[0]] >= relu.compute_s[by_batch(relu, names)[0]]


@pytest.mark.parametrize("count", [5, 64])
def test_micro_batches_must_divide_the_batch(count: int) -> None:
    with pytest.raises(BadInput, match="does not divide the batch of 32"):
        searched(2, micro_batches=count)


def test_precision_halves_weights_and_keeps_master_copies() -> None:
    wide, variables = first(searched(2).problem)
    narrow, _ = first(searched(2, precision="bf16").problem)
    i, j = by_batch(wide, variables)[0], by_batch(narrow, variables)[0]
    assert wide.parameter_bytes[i] == WIDTH * WIDTH * 16  # 4 + 4 + 8
    assert narrow.parameter_bytes[j] == WIDTH * WIDTH * 16  # 2 + 2 + 12
    a, names = first(searched(2).problem, "relu")
    b, _ = first(searched(2, precision="bf16").problem, "relu")
    assert b.activation_bytes[by_batch(b, names)[0]] * 2 == pytest.approx(
        a.activation_bytes[by_batch(a, names)[0]]
    )
    rule = parse_pin("layers.*:precision=captured")
    kept, _ = first(searched(2, precision="bf16", pins=(rule,)).problem, "relu")
    assert kept.activation_bytes.tolist() == a.activation_bytes.tolist()


def pinned(*rules: str, gpus: int = 4, **kw: Any) -> SearchProblem:
    return searched(gpus, pins=tuple(parse_pin(rule) for rule in rules), **kw).problem


def names_of(problem: SearchProblem, index: int) -> set[str | None]:
    costs, variables = problem.costs[index], problem.patterns[index].group.variables
    return {None if v < 0 else variables[v] for v in costs.assignment.reshape(-1).tolist()}


def test_pins_on_splits() -> None:
    everything = pinned("split=batch")
    assert all(names_of(everything, i) <= {"batch", None} for i in range(len(everything.costs)))
    one = pinned("layers.1.*:split!=batch")
    for i, pattern in enumerate(one.patterns):
        inside = pattern.group.members[0].operator.scope.startswith("layers.1.")
        assert ("batch" in names_of(one, i)) != inside
    nothing = pinned("split=none")
    assert all(costs.assignment.max() == -1 for costs in nothing.costs)


def test_pins_on_axes() -> None:
    problem = pinned("m0=out", "m1=batch")
    for costs, pattern in zip(problem.costs, problem.patterns, strict=True):
        variables = pattern.group.variables
        if "out" in variables:
            # Not canonical: the outermost axis would go to the batch first.
            assert (costs.assignment[:, 0] == variables.index("out")).all()
            assert (costs.assignment[:, 1] == variables.index("batch")).all()
    level = pinned("inside=batch")
    assert all(
        (c.assignment == p.group.variables.index("batch")).all()
        for c, p in zip(level.costs, level.patterns, strict=True)
    )
    free = pinned("m0!=batch,none", "layers.0.*:m1=none")
    assert all(
        "batch" not in {p.group.variables[v] for v in c.assignment[:, 0] if v >= 0}
        for c, p in zip(free.costs, free.patterns, strict=True)
    )


def test_pins_on_zero_and_recomputation() -> None:
    problem = pinned(
        "layers.0.*:zero=3",
        "layers.1.*:zero!=2,3",
        "layers.2.*:recompute=yes",
        "layers.1.*:recompute=no",
        zero=(0, 1, 2, 3),
        recompute="auto",
    )
    for costs, pattern in zip(problem.costs, problem.patterns, strict=True):
        scope = pattern.group.members[0].operator.scope
        if scope.startswith("layers.0."):
            assert set(costs.zero[costs.zero_axes > 0].tolist()) <= {3}
        if scope.startswith("layers.1."):
            assert set(costs.zero.tolist()) <= {0, 1}
            assert not costs.recompute.any()
        if scope.startswith("layers.2."):
            assert costs.recompute.all()


def test_pins_on_the_copy_that_is_kept() -> None:
    problem = pinned("reuse=after")
    after, one = ALTERNATIVES.index("after"), ALTERNATIVES.index("one")
    kept = {
        int(k)
        for e in problem.edges
        for cell, n in zip(
            e.table.kept.reshape(-1, e.table.kept.shape[-1]), e.table.count.reshape(-1), strict=True
        )
        for k in cell[:n]
    }
    assert kept == {after, one}


def test_pins_on_partial_sums() -> None:
    """Without reduce_scatter a sum that is then split costs a whole all_reduce."""
    plain, ruled = pinned(), pinned("partial=all_reduce")
    slower = 0
    for a, b in zip(plain.edges, ruled.edges, strict=True):
        assert (b.table.time_s >= a.table.time_s - 1e-15).all()
        slower += int((b.table.time_s > a.table.time_s).any())
    assert slower


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("zero", "is not a rule"),
        ("zero=", "is not a rule"),
        (":zero=1", "is not a rule"),
        ("zero=4", "unknown zero 4"),
        ("recompute=maybe", "unknown recompute maybe"),
        ("precision=captured", "is for the whole graph"),
    ],
)
def test_bad_rules(rule: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_pin(rule)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["nobody.*:zero=1"], "matches no operator"),
        (["split=heads"], "no variable heads"),
        (["m9=batch"], "no mesh axis 'm9'"),
        (["zero=1", "zero=2"], "leaves no configuration"),
        (["recompute=no", "recompute=yes"], "leaves no configuration"),
        (["partial!=all_reduce,reduce_scatter"], "may not be resolved at all"),
    ],
)
def test_rules_that_leave_nothing(rules: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        pinned(*rules, zero=(0, 1, 2, 3), recompute="auto")


def test_forbidding_what_is_not_there_changes_nothing() -> None:
    for held, free in zip(pinned("split!=heads").costs, pinned().costs, strict=True):
        assert (held.assignment == free.assignment).all()


def test_a_batch_of_one_sample_may_be_forbidden() -> None:
    """One sample is no variable, so that no axis splits it; the rule that says so holds."""
    options = Options(pins=(parse_pin("inside!=batch"),))
    problem = problem_of(mlp(batch=1), load_hardware("dgx-h100"), 4, options)
    assert all("batch" not in group.variables for group in problem.coarsened.groups)
    with pytest.raises(BadInput, match="no variable batch"):
        problem_of(
            mlp(batch=1), load_hardware("dgx-h100"), 4, Options(pins=(parse_pin("inside=batch"),))
        )


def test_tofu_takes_no_rules() -> None:
    with pytest.raises(BadInput, match="does not support pins"):
        Options(overlap=False, method="tofu", pins=(parse_pin("zero=1"),))


def test_operators_add_up_to_the_plan() -> None:
    """The breakdown of every operator, every edge and what is fixed is the plan's total."""
    document = plan(
        shortened("gpt2", 4),
        load_hardware("dgx-a100-80gb"),
        8,
        objective="turning-point",
        options=Options(
            overlap=False, recompute="auto", pins=(parse_pin("*.mlp.*:recompute=yes"),)
        ),
    )
    predicted = document["predicted"]
    rows = [op for group in document["groups"] for op in group["operators"]]
    fields = ("parameter_bytes", "activation_bytes", "compute_s", "communication_s")
    for group in document["groups"]:
        for field in fields:
            parts = sum(op[field] for op in group["operators"])
            assert parts == pytest.approx(group[field], rel=1e-12, abs=1e-12)
    memory = sum(op["parameter_bytes"] + op["activation_bytes"] for op in rows)
    memory += sum(edge["memory_bytes"] for edge in document["edges"])
    time = sum(op["compute_s"] + op["communication_s"] for op in rows)
    time += sum(edge["time_s"] for edge in document["edges"])
    assert memory + predicted["fixed_memory_bytes"] == pytest.approx(predicted["memory_bytes"])
    assert time + predicted["fixed_time_s"] == pytest.approx(predicted["time_s"])
    assert any(group["recompute"] for group in document["groups"])
    assert any(group["zero"] for group in document["groups"])
    texts = [row["split"] for row in explain(document)["groups"]]
    assert any("ZeRO-" in text for text in texts)
    assert any("run again in backward" in text for text in texts)


def test_the_best_number_of_micro_batches_is_found() -> None:
    """Of several counts each point says its own; none is worse than a count alone."""
    graph, hardware = shortened("gpt2", 4), load_hardware("dgx-a100-80gb")
    several = frontier(graph, hardware, 8, Options(overlap=False, micro_batches=(1, 4)))
    assert {point["micro_batches"] for point in several["points"]} == {1, 4}
    for count in (1, 4):
        alone = frontier(graph, hardware, 8, Options(overlap=False, micro_batches=(count,)))
        for point in alone["points"]:
            fits = [p for p in several["points"] if p["memory_bytes"] <= point["memory_bytes"]]
            assert min(p["time_s"] for p in fits) <= point["time_s"] * (1 + 1e-9)
    tight = Options(
        overlap=False,
        micro_batches=(1, 4),
        memory_limit_bytes=several["points"][0]["replayed_peak_bytes"],
    )
    chosen = plan(graph, hardware, 8, options=tight)
    assert chosen["micro_batches"] == 4
    assert (
        plan(graph, hardware, 8, options=Options(overlap=False, micro_batches=(1, 4)))[
            "micro_batches"
        ]
        == 1
    )
    points = curve(graph, hardware, 2, tight)["points"]
    assert [point["feasible"] for point in points] == [False, False]
