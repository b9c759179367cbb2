"""Prices of products in 8 and 4 bits by hand: time, memory, what has a recipe, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET

from harness.graph_builder import GraphBuilder, mlp
from harness.strategies import problem_of
from shardwise.answers import Options, plan, quote
from shardwise.answers.explain import explain
from shardwise.cost.exchanges import communication
from shardwise.cost.group_work import GroupWork
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.cost.terms import GroupTerms
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, load_hardware, read_offers
from shardwise.replay.replay import Replayer
from shardwise.sharding.precision import PRECISIONS
from shardwise.sharding.recipes import RECIPES

TOKENS, IN, OUT = 4096, 512, 1024
FLOPS = 2 * TOKENS * IN * OUT
X, W, Y = TOKENS * IN, IN * OUT, TOKENS * OUT
WIDE, EIGHT, MEMORY, LATENCY = 1e13, 2e13, 1e11, 1e-6
FOUR = 4e13


def layers() -> Graph:
    """Two layers on one tensor, a third after them, and the last before a loss."""
    builder = GraphBuilder("layers")
    builder.input("x", TOKENS, IN)
    builder.parameter("w0", IN, IN)
    builder.both("twice", "aten.add.Tensor", "x", "x", "x2", "")
    builder.linear("zero", "x2", "w0", "h")
    for name, out in (("one", "a"), ("two", "b")):
        builder.parameter(f"w_{name}", OUT, IN)
        builder.linear(name, "h", f"w_{name}", out)
    builder.both("add", "aten.add.Tensor", "a", "b", "c", "")
    builder.parameter("w3", 16, OUT)
    builder.linear("last", "c", "w3", "scores")
    builder.input("labels", TOKENS)
    loss = {"self": "scores", "target": "labels"}
    builder.operator("loss", "aten.cross_entropy_loss.default", loss, "l", (), "")
    return builder.graph()


def machine(**peaks: float) -> Hardware:
    """One device of round figures, without measured kernels."""
    given = load_hardware("l4")
    device = replace(
        given.devices[0],
        peak_flops_per_s={"float32": WIDE, "bfloat16": WIDE, **peaks},
        memory_bandwidth_bytes_per_s=MEMORY,
        memory_bytes=1e12,
        compute_efficiency=1.0,
        compute_efficiency_by_dtype={},
        memory_efficiency=1.0,
        kernel_latency_s=LATENCY,
        products=(),
        attention=(),
    )
    return replace(given, devices=(device,), collectives=(), operators=())


HOPPER = machine(float8_e4m3fn=EIGHT)
BLACKWELL = machine(float8_e4m3fn=EIGHT, mxfp8=EIGHT, nvfp4=FOUR)


def terms_of(
    hardware: Hardware, precision: str, *pins: str, framework: str = "megatron-core"
) -> dict[str, tuple[float, float]]:
    """Returns seconds forward and backward of each operator on one device."""
    options = Options(
        precision=precision,
        pins=tuple(parse_pin(rule) for rule in pins),
        framework=framework,
        kernels="eager",
        recompute="never",
        micro_batches=(1,),
        zero=(0,),
    )
    problem = problem_of(layers(), hardware, 1, options)
    times: dict[str, tuple[float, float]] = {}
    for pattern, costs in zip(problem.patterns, problem.costs, strict=True):
        terms = GroupTerms(GroupWork(problem.context, pattern, costs.assignment, costs.proportion))
        for m, member in enumerate(pattern.members):
            both = terms.compute.forward_s[0, m], terms.compute.backward_s[0, m]
            times[member.operator.name] = (float(both[0]), float(both[1]))
    return times


def product(flops: float, peak: float, moved: float) -> float:
    return max(flops / peak, moved / MEMORY)


def rounding(elements: float, reads: int, written: float) -> float:
    """A pass: `reads` times two bytes, and what is written, by as many kernels as reads."""
    return elements * (2 * reads + written) / MEMORY + reads * LATENCY


@pytest.mark.parametrize(
    ("recipe", "hardware", "peak", "reads", "data", "gradient"),
    [
        # Data and gradients are written twice where units read along one dimension alone.
        ("fp8:tensorwise", HOPPER, EIGHT, 2, 2.0, 2.0),
        ("fp8:tensorwise", BLACKWELL, EIGHT, 2, 1.0, 1.0),
        ("fp8:delayed", HOPPER, EIGHT, 1, 2.0, 2.0),
        ("fp8:blockwise", HOPPER, EIGHT, 1, 2 * (1 + 4 / 128), 2 * (1 + 4 / 128)),
        ("fp8:mxfp8", BLACKWELL, EIGHT, 1, 2 * (1 + 1 / 32), 2 * (1 + 1 / 32)),
        ("nvfp4", BLACKWELL, FOUR, 2, 2 * (0.5 + 1 / 16), 2 * (0.5 + 1 / 16)),
    ],
)
def test_times_of_a_layer_whose_weights_are_rounded_once(
    recipe: str, hardware: Hardware, peak: float, reads: int, data: float, gradient: float
) -> None:
    times = terms_of(hardware, recipe)
    item = RECIPES[recipe].item_bytes
    y = product(FLOPS, peak, (X + W) * item + 2 * Y)
    dx = product(FLOPS, peak, (Y + W) * item + 2 * X)
    dw = product(FLOPS, peak, (X + Y) * item + 2 * W)
    forward = y + LATENCY + rounding(X, reads, data)
    assert times["one"][0] == pytest.approx(forward)
    # The second layer reads what the first has rounded.
    assert times["two"][0] == pytest.approx(y + LATENCY)
    backward = dx + dw + LATENCY + rounding(Y, reads, gradient)
    assert times["two"][1] == times["one"][1] == pytest.approx(backward)


@pytest.mark.parametrize("rounds_dw", [True, False])
def test_rowwise_rounds_weights_in_every_pass(rounds_dw: bool) -> None:
    times = terms_of(HOPPER, "fp8:rowwise" if rounds_dw else "fp8:rowwise_with_gw_hp")
    item, peak = (1, EIGHT) if rounds_dw else (2, WIDE)
    y = product(FLOPS, EIGHT, X + W + 2 * Y)
    dx = product(FLOPS, EIGHT, Y + W + 2 * X)
    dw = product(FLOPS, peak, (X + Y) * item + 2 * W)
    ways = 2 if rounds_dw else 1
    one = rounding(W, 1, 1)
    assert times["one"][0] == pytest.approx(y + LATENCY + rounding(X, ways, ways) + one)
    # With gradients of weights in 16 bits the weight has one scale for dx, and is read for it.
    again = one if rounds_dw else rounding(W, 2, 1)
    assert times["one"][1] == pytest.approx(dx + dw + LATENCY + rounding(Y, ways, ways) + again)


def test_what_stays_in_16_bits() -> None:
    plain, eight = terms_of(HOPPER, "bf16"), terms_of(HOPPER, "fp8")
    assert eight["last"] == plain["last"]
    assert eight["one"] != plain["one"]
    # 512 and 1024 are multiples of 32, and a rule takes a layer out, or gives it another recipe.
    ruled = terms_of(HOPPER, "fp8", "one:precision=bf16", "two:precision=fp8:rowwise")
    assert ruled["one"] == plain["one"]
    assert ruled["two"] == terms_of(HOPPER, "fp8:rowwise", "one:precision=bf16")["two"]
    assert ruled["zero"] == eight["zero"]
    alone = terms_of(HOPPER, "bf16", "two:precision=fp8:rowwise")
    assert alone == {**plain, "two": ruled["two"]}


def test_sizes_that_do_not_suit_a_recipe_stay_in_16_bits() -> None:
    builder = GraphBuilder("odd")
    builder.input("x", TOKENS, 48)
    for name, source, out, width in (("even", "x", "a", 48), ("odd", "a", "b", 40)):
        builder.parameter(f"w_{name}", width, 48)
        builder.linear(name, source, f"w_{name}", out)
    graph = builder.graph()
    found = {}
    for recipe in ("fp8", "fp8:mxfp8"):
        options = Options(precision=recipe, micro_batches=(1,))
        found[recipe] = problem_of(graph, BLACKWELL, 1, options).coarsened.recipes
    # 48 is a multiple of 16 and not of 32, 40 of neither.
    names = {key: {op: r.name for op, r in recipes.items()} for key, recipes in found.items()}
    assert names == {"fp8": {"even": "fp8:tensorwise"}, "fp8:mxfp8": {}}


def _memory(
    hardware: Hardware, precision: str, framework: str = "megatron-core"
) -> tuple[float, float, float]:
    """Bytes of parameters, of what backward needs (all groups and edges), and at the peak."""
    options = Options(
        framework=framework, precision=precision, kernels="eager", recompute="never",
        micro_batches=(1,), zero=(0,),
    )  # fmt: skip
    problem = problem_of(layers(), hardware, 1, options)
    kept = sum(float(cost.activation_bytes[0]) for cost in problem.costs)
    kept += sum(float(edge.table.memory_bytes[0, 0, 0]) for edge in problem.edges)
    parameters = sum(float(cost.parameter_bytes[0]) for cost in problem.costs)
    chosen = np.zeros((1, len(problem.costs)), int), np.zeros((1, len(problem.edges)), int)
    replayed = Replayer(problem, options.step).replay(*chosen)
    return parameters, kept, float(replayed.peak_bytes[0])


@pytest.mark.parametrize(
    ("recipe", "hardware", "item", "copies"),
    [
        ("fp8:tensorwise", HOPPER, 1.0, 2.0),
        ("fp8:tensorwise", BLACKWELL, 1.0, 1.0),
        ("fp8:blockwise", HOPPER, 1 + 4 / 128, 2 * (1 + 4 / 128)),
        ("fp8:mxfp8", BLACKWELL, 1 + 1 / 32, 2 * (1 + 1 / 32)),
        ("nvfp4", BLACKWELL, 0.5 + 1 / 16, 0.5 + 1 / 16),
    ],
)
def test_memory_of_rounded_data_and_weights(
    recipe: str, hardware: Hardware, item: float, copies: float
) -> None:
    plain, eight = _memory(hardware, "bf16"), _memory(hardware, recipe)
    rounded_weights = IN * IN + 2 * W
    assert eight[0] - plain[0] == pytest.approx(rounded_weights * copies)
    # What the first layer reads, and what both others do, is kept rounded, once.
    assert plain[1] - eight[1] == pytest.approx(2 * X * (2 - item))
    assert eight[2] < plain[2]


def test_rowwise_keeps_16_bits() -> None:
    assert _memory(HOPPER, "fp8:rowwise") == _memory(HOPPER, "bf16")


def test_torchao_rounds_weights_in_every_pass_and_keeps_16_bits() -> None:
    engine, torchao = (
        terms_of(HOPPER, "fp8", framework=framework) for framework in ("megatron-core", "eager")
    )
    # Two reads, one copy: one pass for y, one for dx.
    again = rounding(W, 2, 1)
    for passes in range(2):
        assert torchao["one"][passes] - engine["one"][passes] == pytest.approx(again)
    assert _memory(HOPPER, "fp8", "eager")[:2] == _memory(HOPPER, "bf16", "eager")[:2]


@pytest.mark.parametrize(
    ("hardware", "precision", "said"),
    [
        ("dgx-a100-80gb", "fp8", "A100-SXM4-80GB has no units for fp8:tensorwise"),
        ("dgx-v100-16gb", "nvfp4", "no units for nvfp4 (expected what it computes in: bf16, fp16)"),
        ("dgx-h100", "fp8:mxfp8", "has no units for fp8:mxfp8 (expected what it computes in: fp8:"),
        ("dgx-h100", "nvfp4", "fp8:delayed, bf16, fp16)"),
    ],
)
def test_a_gpu_without_units_is_refused_by_name(hardware: str, precision: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        problem_of(layers(), load_hardware(hardware), 1, Options(precision=precision))
    assert said in str(refused.value)
    with pytest.raises(BadInput, match="no units"):
        rule = parse_pin(f"one:precision={precision}")
        problem_of(layers(), load_hardware(hardware), 1, Options(pins=(rule,)))


def test_a_cpu_gets_no_faster_products() -> None:
    options = Options(precision="fp8", step=StepSettings("cpu"), micro_batches=(1,), zero=(0,))
    problem = problem_of(layers(), machine(), 1, options)
    plain = problem_of(layers(), machine(), 1, replace(options, precision="bf16"))
    seconds = [sum(float(cost.compute_s[0]) for cost in p.costs) for p in (problem, plain)]
    assert seconds[0] > seconds[1]


def test_rules_of_precision() -> None:
    assert set(RECIPES) < set(PRECISIONS)
    for rule, said in (
        ("*:precision=captured", "for the whole graph"),
        ("one:precision!=fp8", "does not say which"),
        ("one:precision=fp8,bf16", "does not say which"),
        ("one:precision=fp9", "unknown precision fp9"),
    ):
        with pytest.raises(BadInput, match=said):
            parse_pin(rule)
    assert parse_pin("*:precision=fp8:rowwise").values == {"fp8:rowwise"}


def test_ranks_that_split_a_layer_exchange_its_largest_number() -> None:
    """Along samples every rank has a scale of its own, along features all have one."""
    found = {}
    for recipe in ("fp8:tensorwise", "fp8:delayed", "fp8:blockwise"):
        options = Options(precision=recipe, kernels="eager", micro_batches=(1,), zero=(0,))
        problem = problem_of(layers(), replace(HOPPER, packing=False), 2, options)
        number = problem.coarsened.group_of["zero"]
        pattern, costs = problem.patterns[number], problem.costs[number]
        work = GroupWork(problem.context, pattern, costs.assignment, costs.proportion)
        member = next(m for m, x in enumerate(pattern.members) if x.operator.name == "zero")
        passes = communication(work)
        splits = work.assignment[:, 0]
        names = [group.variables for group in problem.coarsened.groups][number]
        found[recipe] = {
            names[v] if v >= 0 else "none": (f, b)
            for v, f, b in zip(
                splits.tolist(),
                passes.forward_s[:, member].tolist(),
                passes.backward_s[:, member].tolist(),
                strict=True,
            )
        }
    whole = found["fp8:tensorwise"]
    assert whole["batch"] == (0.0, 0.0)
    assert whole["in"][0] > 0 == whole["in"][1]
    assert whole["out"][1] > 0 == whole["out"][0]
    for other in ("fp8:delayed", "fp8:blockwise"):
        assert not any(any(both) for both in found[other].values())


def test_a_quote_leaves_out_gpus_without_units() -> None:
    answer = quote(layers(), read_offers(), options=Options(precision="fp8"), max_instances=1)
    assert answer.offers and not {row.gpu_kind for row in answer.offers} & {"A100", "V100"}
    left = {row.instance_type: row.reason for row in answer.not_offered}
    assert left["p4de.24xlarge"] == "A100-SXM4-80GB has no units for fp8:tensorwise"


def test_answers_say_what_is_modelled_and_what_rounding_takes() -> None:
    options = Options(
        precision="fp8", framework="megatron-core", kernels="eager", recompute="never",
        micro_batches=(1,), zero=(0,),
    )  # fmt: skip
    made = plan(layers(), HOPPER, 1, options=options)
    (note,) = (line for line in made.warnings if "linear layers in" in line)
    assert note.startswith("3 linear layers in fp8:tensorwise as TransformerEngine has it")
    assert "kernels are modelled" in note
    passes = {
        op.name: op.rounding_s
        for group in made.groups
        for op in group.operators
        if op.rounding_s is not UNSET
    }
    once, again = rounding(X, 2, 2), rounding(Y, 2, 2)
    assert passes.keys() == {"zero", "one", "two"}
    assert passes["one"] == pytest.approx(once + again)
    assert passes["two"] == pytest.approx(again)
    (line,) = (line for line in explain(made).text if line.startswith("Rounding"))
    assert f"for 3 linear layers (fp8): {sum(passes.values()):.4g} s" in line
    nothing = plan(mlp(8, 24, 40), BLACKWELL, 1, options=replace(options, precision="nvfp4"))
    assert any("no linear layer suits nvfp4" in line for line in nothing.warnings)
