"""Published training steps, predicted: the models are theirs, the parallelism is theirs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

import msgspec  # noqa: E402
from published.captures import Captures  # noqa: E402
from published.compute import predict_runs, predicted  # noqa: E402
from published.difference import difference  # noqa: E402
from published.pipelined import PipelinePrediction, predict_pipeline  # noqa: E402
from published.predict import (  # noqa: E402
    Prediction,
    even_share,
    masks,
    predict,
    run_hardware,
    run_mesh,
    run_options,
    tensor_split,
    with_clock,
)
from published.reading import read_published  # noqa: E402
from published.run import Run  # noqa: E402
from published.stored import read_stored  # noqa: E402

from harness.tiers import some  # noqa: E402
from shardwise.cost.assemble import assemble  # noqa: E402
from shardwise.cost.options import Options, quiet  # noqa: E402
from shardwise.cost.step_settings import StepSettings  # noqa: E402
from shardwise.documents import Plan  # noqa: E402
from shardwise.documents.parallelism import Parallelism  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.peers.evaluate import evaluate  # noqa: E402
from shardwise.peers.pipelines import priced_in  # noqa: E402
from shardwise.peers.restrict import least_time  # noqa: E402
from shardwise.replay.replay import Replayer  # noqa: E402
from shardwise.search.pipelines.subject import StagedSubject  # noqa: E402
from shardwise.search.pipelines.uniform import UniformModel  # noqa: E402
from shardwise.trainers.price import price  # noqa: E402

ROOT = Path(__file__).parents[3]
PUBLISHED = read_published()
RUNS = {run.name: run for run in PUBLISHED.runs}
FAST = (
    "resnet50-a100-8-amp",
    "bert-large-phase1-a100-256",
    "megatron-2b-v100-2",
    "megatron-22b-a100-8-selective",
    "mpt-1b-a100-8",
    "llama2-7b-a100-128-hsdp",
    "llama-1b-h100-8-dp4-tp2",
    "llama-1b-h100-16-dp16",
    "mcore-12x512-h100-tp1-zero1",
    "llama3.2-1b-b200-1-graphs",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    # The models that are written out here are imported as benchmarks.published.bert.
    monkeypatch.chdir(ROOT)


@cache
def captures(name: str, folder: Path) -> Captures:
    """The captures of one run, so that its model is captured on its own batch."""
    return Captures([RUNS[name]], folder)


@cache
def prediction_of(name: str, folder: Path) -> Prediction:
    return predict(RUNS[name], captures(name, folder).subject(RUNS[name]))


def chosen(prediction: Prediction, name: str) -> str:
    """What the tensor axis splits in the group with this operator."""
    coarsened = prediction.problem.coarsened
    return tensor_split(prediction, coarsened.groups[coarsened.group_of[name]])


@pytest.mark.parametrize(
    "name",
    some(FAST, lambda name: name in ("resnet50-a100-8-amp", "mcore-12x512-h100-tp1-zero1")),
)
def test_no_unit_is_wrong(name: str, folder: Path) -> None:
    """A factor of three says nothing of accuracy; a wrong unit or batch would exceed it."""
    prediction = prediction_of(name, folder)
    published = prediction.run.iteration_s
    assert 1 / 3 < prediction.time_s / published < 3
    assert prediction.device_s <= prediction.point.time_s * (1 + 1e-9)
    longer = max(prediction.device_s, prediction.host_s)
    assert longer <= prediction.time_s <= 2**0.25 * longer * (1 + 1e-9)
    if prediction.run.memory_bytes is not None:
        assert 0.5 < prediction.point.memory_bytes / prediction.run.memory_bytes < 1.5
        assert 0.5 < prediction.peak_bytes / prediction.run.memory_bytes < 1.5


@pytest.mark.parametrize("name", some(FAST, lambda name: name == "mcore-12x512-h100-tp1-zero1"))
def test_a_run_is_predicted_as_it_is_stored(name: str, folder: Path) -> None:
    """`--check` does this for every run."""
    anew = predicted(RUNS[name], captures(name, folder))
    assert difference(name, anew, read_stored()[name]) is None


@pytest.mark.parametrize(
    "name",
    some(
        ("mpt-1b-a100-8", "megatron-2b-v100-2", "mpt-125m-a100-8"),
        lambda name: name == "mpt-125m-a100-8",
    ),
)
def test_the_model_has_the_published_parameters(name: str, folder: Path) -> None:
    run = RUNS[name]
    tensors = captures(name, folder).graph(run).tensors.values()
    parameters = sum(t.elements for t in tensors if t.role == "parameter")
    rounding = 0.0 if run.source == "llm-foundry" else 0.005
    assert parameters == pytest.approx(run.parameters, rel=rounding, abs=0.5)


def test_a_shared_capture_gives_the_graph_of_an_own_one(folder: Path) -> None:
    """Runs of one model with other batches are cut from one capture."""
    names = ("mpt-125m-a100-8", "mpt-125m-a100-8-mb32")
    shared = Captures([RUNS[name] for name in names], folder)
    for name in names:
        own = captures(name, folder).graph(RUNS[name])
        cut = shared.graph(RUNS[name])
        assert cut.tensors == own.tensors
        assert cut.operators == own.operators


@pytest.mark.parametrize("framework", ["eager", "megatron-core"])
def test_pricing_the_host_afterwards_is_pricing_it_at_once(framework: str, folder: Path) -> None:
    name = "mcore-12x512-a100-tp2-zero3"
    run = msgspec.structs.replace(RUNS[name], framework=framework, kernels="eager")
    subject = captures(name, folder).subject(run)
    prediction = predict(run, subject)
    assert 0 < prediction.collectives < prediction.operators
    hardware = run_hardware(run)
    mesh = run_mesh(run, hardware)
    options = replace(run_options(run, mesh), framework=framework)
    variant = subject.variant(options, run.micro_batches)
    problem = assemble(variant, hardware, mesh, options, quiet, run.micro_batches)
    point = evaluate(problem, least_time(problem, masks(run, problem), options, quiet)[0])
    replayer = Replayer(problem, StepSettings())
    replayed = replayer.replay(point.choices[None, :], point.edge_choices[None, :])
    assert prediction.host_s == pytest.approx(replayed.host_s[0], rel=1e-9)
    assert prediction.device_s == pytest.approx(replayed.device_s[0], rel=1e-9)
    assert prediction.time_s == pytest.approx(replayed.time_s[0], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "attention"),
    some(
        (
            ("mcore-12x512-a100-tp2-zero3", "scaled_dot_product_attention"),
            ("megatron-2b-v100-2", "matmul"),
        ),
        lambda case: case[0].startswith("mcore"),
    ),
)
def test_tensor_parallelism_is_megatrons(name: str, attention: str, folder: Path) -> None:
    """Columns, then rows; heads in the attention; the residual stream whole."""
    prediction = prediction_of(name, folder)
    layer = "biogpt.layers.3"
    assert chosen(prediction, f"{layer}.self_attn.q_proj.linear") == "out"
    assert chosen(prediction, f"{layer}.self_attn.out_proj.linear") == "in"
    assert chosen(prediction, f"{layer}.fc1.linear") == "out"
    assert chosen(prediction, f"{layer}.fc2.linear") == "in"
    heads_of = prediction.problem.coarsened.group_of[f"{layer}.self_attn.{attention}"]
    member = prediction.problem.coarsened.groups[heads_of].members[0]
    heads = member.semantics.inputs[0]
    split = chosen(prediction, f"{layer}.self_attn.{attention}")
    variables = prediction.problem.coarsened.groups[heads_of].variables
    along = {variables[member.variables[v]]: access.dim for v, access in heads.items()}
    assert along[split] == 1  # (batch, heads, positions, head size)
    assert chosen(prediction, f"{layer}.dropout") == "none"


@pytest.mark.full
def test_sequence_parallelism_splits_positions_between_products(folder: Path) -> None:
    prediction = prediction_of("megatron-22b-a100-8-selective", folder)
    layer = "biogpt.layers.3"
    assert chosen(prediction, f"{layer}.fc1.linear") == "out"
    assert chosen(prediction, f"{layer}.fc2.linear") == "in"
    assert chosen(prediction, f"{layer}.dropout") == "d1"


def flags(prediction: Prediction, column: str) -> dict[str, int]:
    """A column of the chosen configurations by group name."""
    costs, choices = prediction.problem.costs, prediction.point.choices
    return {
        group.name: int(getattr(costs[group.index], column)[choices[group.index]])
        for group in prediction.problem.coarsened.groups
    }


@pytest.mark.full
def test_recomputation_is_the_published_one(folder: Path) -> None:
    core = flags(prediction_of("megatron-22b-a100-8-selective", folder), "recompute")
    again = {name for name, flag in core.items() if flag}
    layer = "biogpt.layers.3.self_attn"
    assert {n for n in again if ".layers.3." in n} == {
        f"{layer}.matmul",
        f"{layer}.mul",
        f"{layer}.matmul_1",
    }
    full = flags(prediction_of("megatron-2b-v100-2", folder), "recompute")
    assert full["biogpt.layers.3.fc1.linear"] == 1
    assert full["biogpt.embed_tokens.embedding"] == 0
    none = flags(prediction_of("mpt-1b-a100-8", folder), "recompute")
    assert not any(none.values())


def test_a_share_of_the_layers_is_evenly_spaced() -> None:
    layers = list(range(12))
    assert even_share(layers, 1.0) == set(layers)
    assert even_share(layers, 0.5) == {0, 2, 4, 6, 8, 10}
    assert even_share(layers, 0.25) == {1, 5, 9}
    assert even_share(layers, 0.75) == set(layers) - {2, 6, 10}
    assert even_share(layers, 1 / 3) == {1, 4, 7, 10}


def test_every_second_layer_is_recomputed(folder: Path) -> None:
    name = "mcore-12x512-a100-tp1-zero0-recompute"
    run = msgspec.structs.replace(RUNS[name], recompute_share=0.5)
    prediction = predict(run, captures(name, folder).subject(run))
    recomputed = flags(prediction, "recompute")
    layers = [recomputed[f"biogpt.layers.{i}.fc1.linear"] for i in range(12)]
    assert layers == [1, 0] * 6
    whole = prediction_of(name, folder)
    assert prediction.device_s < whole.device_s
    assert prediction.operators < whole.operators
    assert prediction.point.memory_bytes > whole.point.memory_bytes


@pytest.mark.full
def test_state_is_sharded_over_the_published_ranks(folder: Path) -> None:
    hybrid = prediction_of("llama2-7b-a100-128-hsdp", folder)
    levels = [axis.level for axis in hybrid.problem.context.mesh.axes]
    assert levels == ["between nodes", "inside a node"]
    zero_axes = set(flags(hybrid, "zero_axes").values())
    assert zero_axes == {0, 0b10}
    assert flags(hybrid, "zero")["model.layers.3.mlp.down_proj.linear"] == 3
    plain = prediction_of("resnet50-a100-8-amp", folder)
    assert set(flags(plain, "zero").values()) == {0}


def axes(name: str) -> list[tuple[str, int, str]]:
    run = RUNS[name]
    mesh = run_mesh(run, run_hardware(run))
    return [(axis.name, axis.size, axis.level) for axis in mesh.axes]


def test_meshes_have_the_published_nodes() -> None:
    """Eight GPUs a node; four where the source says so; a rack of NVLink is one node."""
    between, inside = "between nodes", "inside a node"
    assert axes("llama3-8b-h100-64-2d") == [("nodes", 8, between), ("tensor", 8, inside)]
    assert axes("qwen2.5-14b-h100-64-nemo-tp4") == [("nodes", 16, between), ("tensor", 4, inside)]
    whole = axes("qwen2.5-14b-gb200-64-fsdp-recompute-none")
    assert whole == [("data", 64, inside)]
    assert axes("mpt-1b-h100-16") == [("nodes", 2, between), ("data", 8, inside)]


def test_a_network_and_nodes_of_four_are_those_of_the_row() -> None:
    hardware = run_hardware(RUNS["qwen2.5-14b-h100-64-nemo-tp4"])
    assert hardware.per_node == 4
    assert hardware.levels[1].bandwidth_bytes_per_s == 200e9


def test_lower_clocks_take_no_less_time(folder: Path) -> None:
    name = "mcore-12x512-h100-tp1-zero1"
    run, usual = RUNS[name], prediction_of(name, folder)
    slower = predict(run, captures(name, folder).subject(run), with_clock(0.5))
    clocks = [p.hardware.devices[0].sustained_clock for p in (usual, slower)]
    assert clocks[1] == clocks[0] / 2
    assert usual.device_s <= slower.device_s <= usual.device_s * 2
    assert slower.operators == usual.operators


def test_runs_of_one_capture_are_predicted_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    wanted = ("mcore-12x512-h100-tp1-zero1", "mcore-12x512-h100-tp4-zero1-overlap-reduce-gather")
    other = "mcore-12x512-h100-tp1-zero1-unfused"
    runs = [RUNS[name] for name in (wanted[0], other, wanted[1])]
    (done,) = predict_runs(runs, lambda run: run.name != other)
    assert sorted(name for name, _ in done) == sorted(wanted)
    assert all(line.row == RUNS[name].predicted_as for name, line in done)
    assert len({line.parameters for _, line in done}) == 1
    assert len(list(folder.glob("out/published/*.json.gz"))) == 1


def test_a_model_that_cannot_be_parallelised_so_is_refused(folder: Path) -> None:
    name = "mcore-12x512-h100-tp1-zero1"
    run: Run = msgspec.structs.replace(
        RUNS[name], name="wrong", data_parallel=3, gpus=3, batch=33, micro_batches=11
    )
    with pytest.raises(BadInput):
        predict(run, Captures([RUNS[name]], folder).subject(RUNS[name]))


PIPED = "mcore-12x512-a100-tp1-pp4x3-zero0"


@cache
def pipeline_of(name: str, folder: Path) -> PipelinePrediction:
    return predict_pipeline(RUNS[name], captures(name, folder).staged(RUNS[name]))


def test_stages_are_the_published_ones(folder: Path) -> None:
    """Twelve layers on four ranks, three of one layer each; the last rank has the head."""
    pipeline = pipeline_of(PIPED, folder).pipeline
    assert (pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank) == ("interleaved", 4, 3)
    assert pipeline.micro_batches == 4 and pipeline.mesh.gpus == 8
    names = [pipeline.units.names[first] for first in pipeline.bounds[1:-1]]
    assert [name.split(".")[-1] for name in names] == [str(layer) for layer in range(1, 12)]
    # Megatron-LM's first and last rank share the embedding.
    assert [seconds > 0 for seconds in pipeline.tied_s] == [True, *[False] * 10, True]


def test_a_pipeline_is_predicted_as_it_is_stored(folder: Path) -> None:
    anew, stored = predicted(RUNS[PIPED], captures(PIPED, folder)), read_stored()[PIPED]
    assert difference(PIPED, anew, stored) is None
    assert anew.device_s < anew.time_s and anew.host_s < anew.time_s
    assert 1 / 3 < anew.time_s / RUNS[PIPED].iteration_s < 3
    interleaved = pipeline_of(PIPED, folder)
    assert anew.peak_bytes == pytest.approx(interleaved.pipeline.peak_bytes.max())


def test_one_device_a_stage_is_priced_as_a_trainers_pipeline(folder: Path) -> None:
    """With nothing to split there is one strategy, which needs no pins."""
    run = msgspec.structs.replace(RUNS[PIPED], gpus=4, data_parallel=1, batch=16)
    staged = StagedSubject.of(Captures([run], folder).graph(run))
    anew = predict_pipeline(run, staged).pipeline
    options = Options(
        optimizer="adam", zero=(0,), recompute="never", framework="megatron-tests",
        kernels=run.light_kernels, rerun=run.rerun_of_segments, step=run.step,
    )  # fmt: skip
    # On one device a stage nothing is scattered.
    model = UniformModel(staged.subject.graph, run_hardware(run), 4, staged)
    stages = model.costed(4, 4, options, quiet, 3)
    own = priced_in(stages, "interleaved", Parallelism(micro_batches=4), quiet)
    assert own is not None
    assert anew.step_s == pytest.approx(own.pipeline.step_s)
    assert anew.peak_bytes == pytest.approx(own.pipeline.peak_bytes)


MIXTURE = msgspec.structs.replace(
    RUNS["bridge-qwen3-30b-26.02-gb200-8-mxfp8"],
    capture="hf:MixtralConfig:hidden_size=256,num_hidden_layers=4,num_attention_heads=8,"
    "num_key_value_heads=4,vocab_size=512,intermediate_size=512,num_local_experts=8",
    seq=128, gpus=4, data_parallel=4, expert_parallel=2, batch=32, micro_batches=2,
)  # fmt: skip
"""A small mixture, with its experts over two of four devices, in MXFP8."""


def priced_as_trained(run: Run, folder: Path) -> Plan:
    """The plan that prices a run's degrees as a configuration of Megatron."""
    options = Options(
        optimizer="adam", zero=(run.zero,), micro_batches=(run.micro_batches,),
        framework=run.framework, precision=run.precision, step=run.step,
    )  # fmt: skip
    graph = Captures([run], folder).graph(run)
    return price(graph, run_hardware(run), run.gpus, run.parallelism, options).plan


@pytest.mark.parametrize(
    "degrees",
    [{}, {"data_parallel": 2, "tensor_parallel": 2, "expert_parallel": 4,
          "expert_tensor_parallel": 1}],
)  # fmt: skip
def test_a_mixture_is_priced_as_a_trainers_configuration(
    degrees: dict[str, int], folder: Path
) -> None:
    run = msgspec.structs.replace(MIXTURE, **degrees)
    anew = predict(run, Captures([run], folder).subject(run))
    plan = priced_as_trained(run, folder)
    assert anew.time_s == pytest.approx(plan.predicted.replayed_time_s, rel=1e-6)
    assert anew.peak_bytes == pytest.approx(plan.predicted.peak_bytes, rel=1e-6)
    assert (anew.operators, anew.collectives) == (0, 0) and anew.host_s > 0
    whole = msgspec.structs.replace(run, precision="captured")
    assert predict(whole, Captures([whole], folder).subject(whole)).time_s != anew.time_s


def test_experts_of_a_run_lie_on_neighbouring_devices() -> None:
    between, inside = "between nodes", "inside a node"
    run = RUNS["bridge-deepseek-v3-26.04.01-b200-256-mxfp8"]
    of_stage = msgspec.structs.replace(run, gpus=run.gpus // run.pipeline_parallel)
    mesh = run_mesh(of_stage, run_hardware(run))
    assert [(axis.name, axis.size, axis.level) for axis in mesh.axes] == [
        ("experts", 4, between),
        ("data", 8, inside),
    ]
    assert axes("bridge-gpt-oss-120b-26.08-gb300-64-mxfp8") == [
        ("data", 4, inside),
        ("experts", 16, inside),
    ]


def test_degrees_that_a_model_cannot_follow_are_refused(folder: Path) -> None:
    run = msgspec.structs.replace(MIXTURE, expert_parallel=1, data_parallel=2, context_parallel=2)
    with pytest.raises(BadInput, match="cp 2"):
        predict(run, Captures([run], folder).subject(run))


def test_the_first_and_the_last_stage_have_the_layers_of_the_row(folder: Path) -> None:
    run = msgspec.structs.replace(
        MIXTURE, gpus=16, data_parallel=4, pipeline_parallel=4, batch=64, micro_batches=4,
        end_layers=(0, 2),
    )  # fmt: skip
    pipeline = predict_pipeline(run, Captures([run], folder).staged(run)).pipeline
    names = [pipeline.units.names[first].split(".")[-1] for first in pipeline.bounds[1:-1]]
    assert names == ["0", "1", "2"]


def test_runs_of_one_configuration_are_predicted_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    other = msgspec.structs.replace(MIXTURE, name="other", figure=1.0, quote="1")
    asked = []

    def counted(run: Run, captures: Captures) -> str:
        asked.append(run.name)
        return run.predicted_as

    monkeypatch.setattr("published.compute.predicted", counted)
    (done,) = predict_runs([MIXTURE, other], processes=1)
    assert dict(done) == dict.fromkeys((MIXTURE.name, "other"), MIXTURE.predicted_as)
    assert len(asked) == 1


def test_stages_are_split_as_without_a_pipeline(folder: Path) -> None:
    run = RUNS["mcore-12x512-a100-tp2-pp2-zero0"]
    pipeline = predict_pipeline(run, captures(run.name, folder).staged(run)).pipeline
    problem = pipeline.search.problem
    axes = [axis.name for axis in problem.context.mesh.axes]
    assert axes == ["data", "tensor"]
    for layer in (0, 11):
        for product, wanted in (("fc1", "out"), ("fc2", "in")):
            group = problem.coarsened.group_of[f"biogpt.layers.{layer}.{product}.linear"]
            row = problem.costs[group].assignment[pipeline.choices[group]]
            variables = problem.coarsened.groups[group].variables
            assert [variables[int(v)] for v in row] == ["batch", wanted]
