"""What a given strategy takes, and what to change in it: against strategies replayed on their
own."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner
from msgspec import UNSET

from harness.models.comparison_models import residual_block
from harness.strategies import problem_of
from shardwise import documents
from shardwise.answers import Options
from shardwise.capture import load_graph, shipped_graph
from shardwise.cli.explain import explain as explain_command
from shardwise.cli.pricing import pricing_page
from shardwise.documents.parallelism import Parallelism
from shardwise.documents.plan import Plan
from shardwise.documents.pricing import Pricing
from shardwise.errors import BadInput
from shardwise.graph import read_graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.peers.practitioners import practitioners, replayed
from shardwise.pipeline.asked import ANY
from shardwise.replay.replay import Replayer
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.model_sizes import check_model
from shardwise.trainers.plan import plan_for
from shardwise.trainers.price import check_step, price, price_configuration, with_its_shards
from shardwise.trainers.spaces import SPACES

GPUS = 8
MACHINE = load_hardware("dgx-h100").with_devices_per_node(4)
BLOCK = residual_block()
OPTIONS = Options(micro_batches=(1, 2, 4), framework="eager")
GIVEN = Parallelism(shards=8, zero=3, recompute="full", micro_batches=4)


@pytest.fixture(scope="module")
def priced() -> Pricing:
    return price(BLOCK, MACHINE, GPUS, GIVEN, OPTIONS, trainer="deepspeed", unread=["offload"])


def test_it_is_the_replayed_step(priced: Pricing) -> None:
    problem = problem_of(BLOCK, MACHINE, GPUS, OPTIONS, 4)
    known = practitioners(problem, allowed=lambda one: one == GIVEN)
    (own,) = replayed(Replayer(problem, OPTIONS.step), known, float("inf"))
    predicted = priced.plan.predicted
    assert (predicted.replayed_time_s, predicted.peak_bytes) == (
        own.step.time_s,
        round(own.step.peak_bytes),
    )
    assert (priced.parallelism, priced.fits, priced.plan.micro_batches) == (GIVEN, True, 4)
    assert predicted.gap is None and priced.plan.certificate.epsilon is None
    assert priced.plan.certificate.status == "heuristic"
    assert priced.unread == ["offload"]


def test_alternatives_differ_in_one_field(priced: Pricing) -> None:
    assert {one.text for one in priced.alternatives} == {
        "1 micro-batch instead of 4",
        "2 micro-batches instead of 4",
        "no recomputation instead of full",
        "no ZeRO instead of ZeRO-3",
        "ZeRO-1 instead of ZeRO-3",
        "ZeRO-2 instead of ZeRO-3",
    }
    times = [one.replayed_time_s for one in priced.alternatives if one.fits]
    assert times == sorted(times)
    for one in priced.alternatives:
        assert SPACES["deepspeed"].allows(one.parallelism) and len(one.changes) == 1
        again = price(BLOCK, MACHINE, GPUS, one.parallelism, OPTIONS).plan.predicted
        assert again.replayed_time_s == one.replayed_time_s
        assert again.peak_bytes == one.peak_bytes
        given_s = priced.plan.predicted.replayed_time_s
        assert one.saves == pytest.approx(1.0 - one.replayed_time_s / given_s)


def test_the_best_is_the_plan_of_the_space(priced: Pricing) -> None:
    planned = plan_for(BLOCK, MACHINE, GPUS, "deepspeed", options=OPTIONS)
    assert priced.best is not None
    assert priced.best.replayed_time_s == planned.predicted.replayed_time_s
    again = price(BLOCK, MACHINE, GPUS, priced.best.parallelism, OPTIONS, trainer="deepspeed")
    assert again.best is None


def test_what_does_not_fit_is_priced_too() -> None:
    tight = Options(micro_batches=(1,), memory_limit_bytes=1e6)
    pricing = price(BLOCK, MACHINE, GPUS, Parallelism(replicas=8), tight)
    assert not pricing.fits and pricing.best is None
    assert pricing.plan.predicted.peak_bytes > 1e6
    peaks = [one.peak_bytes for one in pricing.alternatives]
    assert peaks == sorted(peaks) and not any(one.fits for one in pricing.alternatives)
    assert pricing.trainer == ANY


@pytest.mark.parametrize(("replicas", "shards"), [(1, 8), (2, 4), (4, 2), (1, 16), (2, 8), (8, 2)])
def test_shards_over_any_number_of_neighbours(replicas: int, shards: int) -> None:
    """In a node of 4 devices, in a part of one, and over several of the nodes."""
    hybrid = Parallelism(replicas, shards, zero=3)
    gpus = replicas * shards
    plan = price(BLOCK, MACHINE, gpus, hybrid, Options(micro_batches=(1,))).plan
    sharing = {
        prod(axis.size for axis in plan.mesh.axes if axis.name in group.zero_axes)
        for group in plan.groups
        if group.zero == 3
    }
    assert sharing == {shards}
    assert plan.trainer and plan.trainer.parallelism == hybrid


def test_shards_cost_alike_however_their_devices_are_found() -> None:
    """Units of the options are those of a node where they have its size."""
    hybrid, options = Parallelism(4, 4, zero=3), replace(OPTIONS, micro_batches=(1,))
    own = price(BLOCK, MACHINE, 16, hybrid, options).plan.predicted
    apart = replace(with_its_shards(options, hybrid), recompute="never", zero=(3,))
    problem = problem_of(BLOCK, MACHINE, 16, apart, 1)
    known = practitioners(problem, allowed=lambda one: one == hybrid)
    (other,) = replayed(Replayer(problem, apart.step), known, float("inf"))
    assert other.step.time_s == pytest.approx(own.replayed_time_s, rel=1e-9)
    assert round(other.step.peak_bytes) == own.peak_bytes


def test_more_shards_take_less_memory() -> None:
    options = Options(micro_batches=(1,))
    peaks = [
        price(BLOCK, MACHINE, 16, Parallelism(16 // n, n, zero=3), options).plan.predicted
        for n in (2, 4, 8, 16)
    ]
    sizes = [one.peak_bytes for one in peaks]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_parallelism_splits_every_product(tensor: int) -> None:
    """Though the block is so small that repeating it on every device takes less."""
    given = Parallelism(replicas=GPUS // tensor, tensor=tensor)
    plan = price(BLOCK, MACHINE, GPUS, given, Options(micro_batches=(1,))).plan
    assert f"TP {tensor}" in str(plan.predicted.label)
    for group in plan.groups:
        if any(op.kind == "aten.linear.default" for op in group.operators):
            assert None not in group.split.values()


@pytest.mark.parametrize("framework", ["compiled", "megatron-core"])
def test_sequence_parallelism_splits_what_lies_between_products(framework: str) -> None:
    """Though norms in one kernel are so quick that repeating them takes less."""
    graph, options = load_graph("gpt2"), Options(micro_batches=(1,), framework=framework)

    def priced_with(sequence: bool) -> Plan:
        given = Parallelism(replicas=4, tensor=2, sequence=sequence)
        return price(graph, load_hardware("dgx-h100"), GPUS, given, options).plan

    whole, parts = priced_with(False), priced_with(True)
    norms = [g for g in parts.groups if any("layer_norm" in op.kind for op in g.operators)]
    assert norms and not any(None in group.split.values() for group in norms)
    assert any(None in group.split.values() for group in whole.groups)
    assert parts.predicted.peak_bytes < whole.predicted.peak_bytes


def test_what_has_no_effect_is_left_out() -> None:
    odd = Parallelism(tensor=8, zero=3, micro_batches=1)
    assert price(BLOCK, MACHINE, GPUS, odd, OPTIONS).parallelism == Parallelism(tensor=8)
    odd = Parallelism(shards=8, sequence=True)
    assert price(BLOCK, MACHINE, GPUS, odd, OPTIONS).parallelism == Parallelism(replicas=8)


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        (Parallelism(replicas=4), "gpus", "dp 4 is for 4 GPUs, not 8"),
        (Parallelism(replicas=0, shards=8), "parallelism", "got Parallelism"),
        (Parallelism(replicas=8, micro_batches=3), "parallelism.micro_batches", "divide"),
        (Parallelism(replicas=8, micro_batches=32), "parallelism.micro_batches", "fewer than 8"),
        (Parallelism(replicas=8, zero=2), "parallelism.shards", "ZeRO-2 over one device"),
        (Parallelism(4, 1, 2, sequence=True), "parallelism.sequence", "no positions"),
    ],
)
def test_what_cannot_be_priced(given: Parallelism, field: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as refused:
        price(BLOCK, MACHINE, GPUS, given, OPTIONS)
    assert refused.value.field == field


def test_shards_that_are_no_neighbours_cannot_be_priced() -> None:
    with pytest.raises(BadInput, match="the shards over 3 devices") as refused:
        price(residual_block(48), MACHINE, 12, Parallelism(4, 3, zero=3), OPTIONS)
    assert refused.value.field == "parallelism.shards"


def test_the_document_and_its_page(priced: Pricing, capsys: pytest.CaptureFixture[str]) -> None:
    members = json.loads(msgspec.json.encode(priced))
    jsonschema.validate(members, documents.json_schema("pricing"))
    assert documents.read(members, Pricing) == priced
    pricing_page(priced)
    shown = capsys.readouterr()
    assert shown.out.startswith("deepspeed: dp_shard 8, full recomputation, 4 micro-batches\n")
    assert "no recomputation instead of full" in shown.out
    assert "not read: offload" in shown.err


def test_the_command_prices_a_file(tmp_path: Path) -> None:
    graph, file = tmp_path / "graph.json", tmp_path / "deepspeed.json"
    write_graph(BLOCK, graph)
    said = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3},
    }
    file.write_text(json.dumps(said), "utf-8")
    where = ["--hardware", "dgx-h100", "--gpus", "8", "--micro-batches", "1,2,4"]
    asked = [str(graph), "--like", str(file)]
    runner = CliRunner()
    result = runner.invoke(explain_command, [*asked, *where, "--json"])
    assert result.exit_code == 0, result.output
    pricing = documents.read(json.loads(result.stdout), Pricing)
    assert pricing.trainer == "deepspeed"
    assert pricing.parallelism == Parallelism(shards=8, zero=3, micro_batches=4)
    for wrong, problem in (
        (asked, "--hardware and --gpus"),
        ([str(graph), *where], "apply only with --like"),
    ):
        refused = runner.invoke(explain_command, wrong).exception
        assert isinstance(refused, BadInput) and problem in str(refused)


def test_a_configuration_is_of_the_graphs_step() -> None:
    gpt2 = read_graph(shipped_graph("gpt2"))
    batch = gpt2.batch_size
    check_step(gpt2, batch, 1024, "job.toml")
    check_step(gpt2, None, None, "job.toml")
    with pytest.raises(BadInput, match="its sequence length is 8,192") as refused:
        check_step(gpt2, batch, 8192, "job.toml")
    assert refused.value.file == "job.toml"
    with pytest.raises(BadInput, match="its global batch is 7"):
        check_step(gpt2, 7, 1024, "job.toml")


def test_what_a_file_states_counts_unless_it_is_given(tmp_path: Path) -> None:
    graph, file = tmp_path / "graph.json", tmp_path / "deepspeed.json"
    write_graph(BLOCK, graph)
    said = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "SGD"},
        "zero_optimization": {
            "stage": 1,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
    }
    where = ["--hardware", "dgx-h100", "--gpus", "8", "--micro-batches", "1"]

    def run(*more: str) -> tuple[Pricing, str]:
        file.write_text(json.dumps(said), "utf-8")
        asked = [str(graph), "--like", str(file), *where, *more]
        result = CliRunner().invoke(explain_command, [*asked, "--json"])
        assert result.exit_code == 0, result.output
        shown = CliRunner().invoke(explain_command, asked)
        return documents.read(json.loads(result.stdout), Pricing), " ".join(shown.stdout.split())

    stated, shown = run()
    assert stated.stated == ["optimizer sgd", "offload states"]
    assert "From the file: optimizer sgd, offload states." in shown
    assert isinstance(stated.left_out, list) and len(stated.left_out) == 1
    assert stated.left_out[0] in stated.unread
    assert "Not priced: zero_optimization.offload_param" in shown
    assert "fits as priced, which the file's own configuration need not." in " ".join(shown.split())
    given, _ = run("--optimizer", "adam")
    assert given.stated == ["offload states"]
    assert given.plan.predicted.replayed_time_s > stated.plan.predicted.replayed_time_s
    said["optimizer"] = {"type": "AdamW"}
    assert run()[0].plan.predicted == given.plan.predicted


def test_a_list_that_was_cut_still_says_how_many_are_left() -> None:
    unread = [*(f"key_{number}" for number in range(39)), "and 6 more"]
    given = Configuration("deepspeed", GIVEN, 64, None, unread=unread, left_out=["offload"])
    priced = price_configuration(BLOCK, MACHINE, GPUS, given, OPTIONS, file="ds.json")
    assert priced.unread == ["offload", *unread]


def test_a_configuration_is_of_the_graphs_model() -> None:
    gpt2 = read_graph(shipped_graph("gpt2"))
    check_model(gpt2, {"layers": 12, "hidden size": 768, "attention heads": 12}, "train.sh")
    check_model(BLOCK, {"layers": 12}, "train.sh")
    check_model(gpt2, {}, "train.sh")
    with pytest.raises(BadInput, match=r"layers 96, hidden size 12,288; .* layers 12, hidden size"):
        check_model(gpt2, {"layers": 96, "hidden size": 12288}, "train.sh")
    with pytest.raises(BadInput, match="attention heads 16"):
        check_model(gpt2, {"attention heads": 16}, "train.sh")


@pytest.mark.parametrize("name", ["bert-base", "gpt2"])
def test_under_fsdp_no_table_of_positions_is_whole(name: str) -> None:
    """Weights, gradients, main copies and moments in float32: 16 bytes a parameter."""
    graph = load_graph(name)
    given, options = Parallelism(shards=8, zero=3), Options(micro_batches=(1,))
    priced = price(graph, load_hardware("dgx-h100"), 8, given, options)
    trained = (t for t in graph.tensors.values() if t.role == "parameter")
    wanted = sum(t.elements * 16 for t in trained) / 8
    held = sum(group.parameter_bytes for group in priced.plan.groups)
    assert wanted <= held <= 1.001 * wanted


def test_states_stay_on_devices_whose_hosts_are_not_known() -> None:
    given = Configuration("deepspeed", GIVEN, 64, None, stated={"offload": "states"})
    unknown = replace(MACHINE, host_memory=None)
    on_gpu, off = (
        price_configuration(BLOCK, machine, GPUS, given, OPTIONS, file="ds.json")
        for machine in (unknown, MACHINE)
    )
    assert on_gpu.left_out is not UNSET and "does not say what memory" in on_gpu.left_out[0]
    assert off.left_out is UNSET and off.stated == ["offload states"]
    assert off.plan.predicted.peak_bytes < on_gpu.plan.predicted.peak_bytes
