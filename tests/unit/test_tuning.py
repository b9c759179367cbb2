"""What of a model is trained: frozen parameters, and adapters as an option makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.graph_builder import LINEAR, MUL, GraphBuilder, layers, mlp
from harness.strategies import problem_of, random_strategies
from shardwise.answers import curve, frontier, plan
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.answers.utilisation import model_flops
from shardwise.capture import shipped_graph
from shardwise.cost.configurations import group_work
from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.options import Options
from shardwise.cost.terms import GroupTerms
from shardwise.errors import BadInput
from shardwise.graph import Graph, content_id, graph_document, graph_from_document, graph_id
from shardwise.graph import read_graph as read
from shardwise.graph.tuning import parse_tuning, tuned
from shardwise.graph.validate import validate_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare
from shardwise.replay.replay import Replayer
from shardwise.search.search import Subject

H100 = load_hardware("dgx-h100")
SMALL = Options(max_configurations=40)


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return read(shipped_graph("gpt2"))


def frozen(graph: Graph, is_frozen: Callable[[str], bool]) -> Graph:
    """Returns the graph with some of its parameters frozen."""
    tensors = {
        name: replace(t, frozen=t.role == "parameter" and is_frozen(name))
        for name, t in graph.tensors.items()
    }
    return Graph(graph.name, tensors, graph.operators)


def test_only_what_is_frozen_is_written() -> None:
    plain, half = layers(3, 8, 16), frozen(layers(3, 8, 16), "w0".__eq__)
    assert all("frozen" not in t and "stored" not in t for t in graph_document(plain)["tensors"])
    assert graph_from_document(graph_document(half)).tensors == half.tensors
    assert graph_id(half) != graph_id(plain)


@pytest.mark.parametrize(
    ("name", "member", "value", "field"),
    [
        ("x", "frozen", True, "tensors[0].frozen"),
        ("w0", "stored", "nf4", "tensors[1].stored"),
        ("w1", "stored", "int3", "tensors[4].stored"),
    ],
)
def test_what_cannot_be_frozen_or_stored_is_refused(
    name: str, member: str, value: object, field: str
) -> None:
    document = graph_document(frozen(layers(3, 8, 16), "w1".__eq__))
    next(t for t in document["tensors"] if t["name"] == name)[member] = value
    with pytest.raises(BadInput) as refused:
        graph_from_document(document)
    assert refused.value.field == field


def test_backward_computes_what_somebody_needs() -> None:
    """Of two products only one where its weight or its data has no gradient."""
    flops = {}
    for name, one in (("all", ""), ("first", "w0"), ("second", "w1"), ("third", "w2")):
        graph = frozen(layers(3, 8, 16), one.__eq__)
        subject = Subject.of(graph)
        flops[name] = sum(model_flops(subject.coarsened, subject.patterns, graph).values())
    product = 2 * 8 * 16 * 16
    # The data of the first product are the input: it has no gradient.
    assert flops["all"] == (3 + 2 + 3 * 2 - 3) * product
    # Nothing before the second one's weight trains: it has no gradient of its data either.
    assert flops["first"] == flops["all"] - 2 * product
    assert flops["second"] == flops["third"] == flops["all"] - product


def test_backward_keeps_what_it_needs() -> None:
    patterns = Subject.of(frozen(layers(4, 8, 16), {"w0", "w2"}.__contains__)).patterns
    kept = {
        member.operator.name: [*patterns.saved(member)] if patterns.has_backward(member) else None
        for group in patterns.coarsened.groups
        for member in group.members
        if member.operator.kind == LINEAR
    }
    assert kept == {"fc0": None, "fc1": ["a0"], "fc2": ["w2"], "fc3": ["a2", "w3"]}


def test_a_backward_is_priced_with_the_products_that_are_needed() -> None:
    """Of the second and third of three layers, forward and backward of each."""
    product = 2 * 8 * 16 * 16
    for frozen_names, wanted in (((), [2, 2]), (("w1",), [1, 2]), (("w0", "w1"), [0, 1])):
        graph = frozen(layers(3, 8, 16), frozen_names.__contains__)
        problem = problem_of(graph, H100, 1, Options(), 1)
        found = []
        for name in ("w1", "w2"):
            pattern = next(p for p in problem.patterns if name in p.parameters)
            work = group_work(problem.context, pattern).work_of(0)
            found.append(sum(one.flops[0] for one in work if one.direction == "backward"))
        assert found == [count * product for count in wanted]


def test_backward_reads_a_frozen_weight_and_not_a_frozen_bias(gpt2: Graph) -> None:
    layer = "transformer.h.3.mlp.c_fc"
    for whole, reads in (("weight", True), ("bias", False)):
        name = f"{layer}.{whole}"
        for graph, expected in ((gpt2, True), (frozen(gpt2, name.__eq__), reads)):
            patterns = Subject.of(graph).patterns
            member = next(
                m
                for group in patterns.coarsened.groups
                for m in group.members
                if name in m.operator.inputs
            )
            assert patterns.backward_reads(member, name) == expected


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_frozen_weight_is_all_that_is_stored_of_it(stage: int) -> None:
    """Eight devices with a share of the samples each: weight, gradient and two moments."""
    graph = frozen(layers(4, 8, 1024), {"w0", "w2"}.__contains__)
    problem = problem_of(graph, H100, 8, Options(zero=(stage,), recompute="never"), 1)
    item, eighth = 1024 * 1024 * 4, 1024 * 1024 * 4 / 8
    trained = {0: 4 * item, 1: 2 * item + 2 * eighth, 2: item + 3 * eighth, 3: 4 * eighth}[stage]
    still = eighth if stage == 3 else item
    stored = {"w0": still, "w1": trained, "w2": still, "w3": trained}
    seen = {}
    for pattern, cost in zip(problem.patterns, problem.costs, strict=True):
        rows = (cost.assignment == 0).all(axis=1)
        for name in pattern.parameters:
            seen[name] = cost.parameter_bytes[rows].min()
    assert seen == stored


@pytest.mark.parametrize(("name", "gathers"), [("w0", 1), ("w2", 2)])
def test_a_frozen_weight_is_gathered_where_it_is_read_and_never_summed(
    name: str, gathers: int
) -> None:
    """The first is gathered for forward alone: nothing before it trains."""
    graph = frozen(layers(4, 8, 1024), name.__eq__)
    problem = problem_of(graph, H100, 8, Options(zero=(3,)), 1)
    pattern = next(p for p in problem.patterns if name in p.parameters)
    work = group_work(problem.context, pattern)
    everywhere = np.full(work.count, 7)
    terms = GroupTerms(work).parameters(3, COLLECTIVE, everywhere)
    rows = (work.assignment == 0).all(axis=1)
    assert terms.gather_s[rows].min() > 0
    assert np.array_equal(terms.sync_s(5), 5 * gathers * terms.gather_s)
    assert not any(
        values.any()
        for values in (terms.reduce_s, terms.update_s, terms.state_bytes, terms.gradient_bytes)
    )


def test_an_adapter_has_the_operators_and_names_of_peft() -> None:
    made = tuned(mlp(8, 32, 128), "lora:4")
    assert [(op.name, op.scope, *op.inputs) for op in made.operators] == [
        ("one", "one.base_layer", "x", "w1"),
        ("one.lora_A.default.linear", "one.lora_A.default", "x", "one.lora_A.default.weight"),
        (
            "one.lora_B.default.linear",
            "one.lora_B.default",
            "one.lora_A.default.linear",
            "one.lora_B.default.weight",
        ),
        ("one.mul", "one", "one.lora_B.default.linear"),
        ("one.add", "one", "h", "one.mul"),
        ("act", "", "one.add"),
        ("two", "two", "a", "w2"),
    ]
    shapes = {name: t.shape for name, t in made.tensors.items() if t.trains}
    assert shapes == {
        "one.lora_A.default.weight": (4, 32),
        "one.lora_B.default.weight": (128, 4),
    }
    assert validate_graph(made).operators == made.operators


def test_a_layer_reads_what_the_adapter_before_it_has_added() -> None:
    made = tuned(layers(3, 8, 16), "lora:2")
    of = {op.name: op.inputs[0] for op in made.operators}
    assert of["act0"] == "fc0.add"
    assert of["fc1"] == of["fc1.lora_A.default.linear"] == "a0"
    validate_graph(made)


def test_a_model_that_is_tuned_keeps_its_id_and_is_tuned_once(gpt2: Graph) -> None:
    once = tuned(gpt2, "lora:8")
    assert content_id(once) == graph_id(gpt2)
    assert graph_id(once) != graph_id(gpt2)
    assert tuned(once, "lora:8:all-linear") is once
    assert tuned(gpt2, "full") is gpt2


@pytest.mark.parametrize(
    ("targets", "layers_of_a_block"),
    [
        ("all-linear", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]),
        ("attention", ["attn.c_attn", "attn.c_proj"]),
        ("c_attn", ["attn.c_attn"]),
        ("mlp.*,c_attn", ["attn.c_attn", "mlp.c_fc", "mlp.c_proj"]),
    ],
)
def test_targets_name_layers(gpt2: Graph, targets: str, layers_of_a_block: list[str]) -> None:
    made = tuned(gpt2, f"lora:8:{targets}")
    end = ".lora_A.default.weight"
    found = [name.removesuffix(end) for name in made.tensors if name.endswith(end)]
    assert found == [
        f"transformer.h.{block}.{layer}" for block in range(12) for layer in layers_of_a_block
    ]


def test_qlora_stores_the_weights_of_linear_layers(gpt2: Graph) -> None:
    made = tuned(gpt2, "qlora:8:c_attn")
    stored = {name for name, tensor in made.tensors.items() if tensor.stored}
    assert len(stored) == 4 * 12
    assert all(name.endswith(".weight") and ".h." in name for name in stored)
    weight = made.tensors["transformer.h.0.mlp.c_fc.weight"]
    assert weight.stored_item_bytes * 8 == pytest.approx(4.127, abs=1e-3)


@pytest.mark.parametrize(
    "text",
    ["lora", "lora:", "lora:0", "lora:-1", "lora:1.5", "lora:99999999999", "qlora:x", "adapter:8",
     "full:8", "lora:8:", "lora:8:a,,b", ""],
)  # fmt: skip
def test_what_is_no_tuning_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        Options(tune=text)
    assert refused.value.field == "tune"


def test_targets_that_name_nothing_are_refused_with_some_that_exist(gpt2: Graph) -> None:
    with pytest.raises(BadInput, match="q_proj names no linear layer") as refused:
        plan(gpt2, H100, 1, options=Options(tune="lora:8:q_proj"))
    assert "c_attn" in str(refused.value.expected)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(BadInput, match="no linear layer"):
        tuned(layers(1, 8, 16), "lora:8")


def test_every_answer_says_what_is_trained(gpt2: Graph) -> None:
    """0.94 % = 8 (768 + 2304 + 768 + 768 + 768 + 3072 + 3072 + 768) · 12 of all."""
    text = "LoRA of rank 8 on all linear layers: 0.94 % of parameters train; "
    options = replace(SMALL, tune="lora:8", micro_batches=(1,), zero=(0,))
    answers = (
        plan(gpt2, H100, 2, options=options),
        frontier(gpt2, H100, 2, options=options),
        curve(gpt2, H100, 2, options=options),
        pipeline_or_plan(gpt2, H100, 2, stages=(2,), options=replace(options, micro_batches=(8,))),
    )
    for answer in answers:
        assert str(answer.program).startswith(text)
        assert answer.graph == graph_id(gpt2)
        assert answer.tune == "lora:8:all-linear"
    assert str(compare(gpt2, H100, 2, options=options).program).startswith(text)


def test_adapters_take_less_memory_and_time_than_all_parameters(gpt2: Graph) -> None:
    """Of one strategy; with weights in 4 bits less memory still, and time to make them."""
    steps, peaks = [], []
    for tune in ("full", "lora:8", "qlora:8"):
        options = replace(SMALL, tune=tune, micro_batches=(8,), recompute="never", optimizer="adam")
        found = plan(gpt2, H100, 1, options=options).predicted
        steps.append(found.replayed_time_s)
        peaks.append(found.peak_bytes)
    assert peaks[0] > peaks[1] > peaks[2]
    assert steps[1] < steps[0]
    assert steps[1] < steps[2]
    linear = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)
    saved = linear * (2 - 4.127 / 8)
    # A product holds its own weight in 16 bits while it runs.
    assert peaks[1] - peaks[2] == pytest.approx(saved, rel=0.06)


def test_weights_that_are_stored_otherwise_are_made_before_each_use(gpt2: Graph) -> None:
    """Reading 4 bits and writing 16 in forward, and again in backward; of one strategy."""
    found = {}
    for tune in ("lora:8", "qlora:8"):
        options = Options(recompute="never", micro_batches=(1,), framework="eager")
        graph = tuned(gpt2, tune)
        problem = problem_of(graph, H100, 1, options, 1)
        strategies = random_strategies(problem, 1, np.random.default_rng(0))
        found[tune] = float(Replayer(problem, options.step).replay(*strategies).time_s[0])
    linear = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)
    passes = 2 * linear * (2 + 4.127 / 8) / H100.devices[0].memory_bandwidth_bytes_per_s
    latency = 2 * 48 * H100.devices[0].kernel_latency_s
    assert found["qlora:8"] - found["lora:8"] == pytest.approx(passes + latency, rel=0.05)


def test_a_text_of_a_tuning_reads_the_same_again() -> None:
    for text in ("full", "lora:8:all-linear", "qlora:16:q_proj,v_proj"):
        assert str(parse_tuning(text)) == text


def test_layers_that_read_several_tensors_get_no_adapter() -> None:
    builder = GraphBuilder("gated")
    builder.input("x", 8, 16)
    builder.input("gate", 8, 16)
    builder.parameter("w0", 16, 16)
    builder.both("mix", MUL, "x", "gate", "m", "layer")
    builder.linear("product", "m", "w0", "h", "layer")
    builder.parameter("w1", 16, 16)
    builder.linear("last", "h", "w1", "y")
    with pytest.raises(BadInput, match="reads and makes one tensor"):
        tuned(builder.graph(), "lora:2")
