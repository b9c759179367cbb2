"""Pipelines in trainers' configurations: what is read, and that they are priced as equal stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import UNSET

from harness.models.shortened import shortened
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cli.explain import explain
from shardwise.cost.options import quiet
from shardwise.documents import PipelinePricing, json_schema
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.peers.pipelines import priced_in
from shardwise.search.pipelines.uniform import UniformModel
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.pipelines import price_pipeline
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of

MACHINE = load_hardware("dgx-h100")
OPTIONS = Options(micro_batches=(8,))
"""With the number of the files below alone; others are priced once (`of_flags`)."""

FLAGS = """torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel
--pipeline-model-parallel-size 2 --use-distributed-optimizer --micro-batch-size 4
--global-batch-size 64 --seq-length 1024 --recompute-granularity selective
--recompute-modules core_attn layernorm"""

TOML = """
[training]
local_batch_size = 32
seq_len = 1024
[parallelism]
data_parallel_shard_degree = -1
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "gpipe"
pipeline_parallel_microbatch_size = 4
pipeline_parallel_first_stage_less_layers = 0
pipeline_parallel_last_stage_less_layers = 0
[activation_checkpoint]
mode = "none"
"""


@pytest.fixture(scope="module")
def eight() -> Graph:
    """With layers for several stages on each of two ranks."""
    return shortened("gpt2", 8)


MEGATRON_S = Options(
    micro_batches=(8,), zero=(0, 1, 2, 3), recompute="auto", framework="megatron-core"
)
"""The options of a step of Megatron's flags above."""


def configured(text: str) -> Configuration:
    return configuration_of(text, 8, "file")


def priced(gpt2: Graph, text: str, options: Options = OPTIONS) -> PipelinePricing:
    return price_pipeline(gpt2, MACHINE, 8, configured(text), options, file="file")


@pytest.fixture(scope="module")
def of_flags(gpt2: Graph) -> PipelinePricing:
    return priced(gpt2, FLAGS, Options(micro_batches=(8, 16)))


def test_what_is_read() -> None:
    megatron, titan = configured(FLAGS), configured(TOML)
    assert (megatron.stages, megatron.schedule, megatron.unread) == (2, "1f1b", [])
    assert megatron.parallelism == Parallelism(
        shards=2, tensor=2, sequence=True, zero=1, recompute="selective", micro_batches=8
    )
    assert (titan.stages, titan.schedule, titan.unread) == (4, "gpipe", [])
    # FSDP keeps parameters whole in a pipeline: ZeRO-2.
    assert titan.parallelism == Parallelism(shards=2, zero=2, micro_batches=8)
    always = TOML.replace("[activation", 'fsdp_reshard_after_forward = "always"\n[activation')
    assert configured(always).parallelism.zero == 3


@pytest.mark.parametrize(
    ("flags", "each", "layers"),
    [
        ("--num-layers-per-virtual-pipeline-stage 3", 1, 3),
        ("--num-virtual-stages-per-pipeline-rank 2", 2, None),
        ("--virtual-pipeline-model-parallel-size 2", 2, None),
    ],
)
def test_interleaved_stages_of_megatron(flags: str, each: int, layers: int | None) -> None:
    read = configured(f"{FLAGS} {flags}")
    assert (read.schedule, read.stages, read.unread) == ("interleaved", 2, [])
    assert (read.stages_per_rank, read.layers_per_stage) == (each, layers)
    single = f"{FLAGS} {flags}".replace(
        "model-parallel-size 2 --use", "model-parallel-size 1 --use"
    )
    assert configured(single).schedule == "1f1b"


FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING = "--account-for-embedding-in-pipeline-split"
LOSS = "--account-for-loss-in-pipeline-split"
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("flags", "ends"),
    [
        (f"--num-layers 8 {FIRST} 3", (3, 5)),
        (f"--num-layers 8 {LAST} 6", (2, 6)),
        (f"--num-layers 8 {FIRST} 3 {LAST} 5", (3, 5)),
        (f"--num-layers 10 {EMBEDDING} {LOSS}", (5, 5)),
        (f"--num-layers 7 {LOSS}", (4, 3)),
        (f"--num-layers 10 {EMBEDDING} {LOSS} --num-virtual-stages-per-pipeline-rank 3", (1, 1)),
        (f"--num-layers 6 {EMBEDDING} {LOSS} --num-virtual-stages-per-pipeline-rank 4", (0, 0)),
        (f"--num-layers 8 {LAYOUT} 'Et*3|t*5L'", (3, 5)),
        (f"{LAYOUT} 'E|(t|)*6,L'", (0, 0)),
        (f"{LAYOUT}='Et,tt|(tt|)*2,tttL'", (3, 3)),
    ],
)
def test_unequal_stages_of_megatron(flags: str, ends: tuple[int, int]) -> None:
    read = configured(f"{FLAGS} {flags}")
    assert read.ends == ends and read.unread == []
    one = f"{FLAGS} {flags}".replace("model-parallel-size 2 --use", "model-parallel-size 1 --use")
    assert configured(one).ends is None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (f"{FIRST} 3", "--num-layers"),
        (f"--num-layers 8 {FIRST} 3 {LOSS}", "one kind of flag"),
        (f"--num-layers 8 {LOSS}", "9 layers do not divide by 2"),
        (f"--num-layers 8 {FIRST} 3 --num-virtual-stages-per-pipeline-rank 2", "one stage on each"),
        (f"--num-layers 8 {LAYOUT} EtttL", "got 'EtttL' .expected stages between"),
        (f"--num-layers 8 {LAYOUT} 'ttt|tL'", "E in the first and L in the last"),
        (f"--num-layers 8 {LAYOUT} 'Et*4|t*3mL'", "predicts further tokens"),
        (f"--num-layers 8 {LAYOUT} 'Et|t*2|t*3|t*2L'", "stages of 1, 2, 3, 2 layers are not"),
        (f"--num-layers 8 {LAYOUT} 'Et*3|t*4L'", "7 layers in the layout .expected --num-layers 8"),
        (f"--num-layers 8 {LAYOUT} 'Et|t*3|t*4L'", "3 stages of the layout do not divide by 2"),
        (
            f"--num-layers 8 {LAYOUT} 'Et*4|t*4L' {FIRST} 3",
            "given beside --pipeline-model-parallel-l",
        ),
        (f"--num-layers 8 {LAYOUT} 'E(t*900|)*900L'", "too many stages"),
    ],
)
def test_unequal_stages_that_are_refused(flags: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        configured(f"{FLAGS} {flags}")


def test_unequal_stages_are_priced_beside_equal_ones(eight: Graph) -> None:
    document = priced(eight, f"{FLAGS} --num-layers 8 {FIRST} 3")
    model = UniformModel(eight, MACHINE, 8, scattered=True, ends={2: (3, 5)})
    stages = model.costed(2, 8, MEGATRON_S, quiet)
    own = priced_in(stages, "1f1b", configured(FLAGS).parallelism, quiet)
    assert own is not None and document.pipeline.predicted.step_s == own.pipeline.step_s
    equal = priced(eight, FLAGS)
    assert document.pipeline.predicted.step_s > equal.pipeline.predicted.step_s
    # Of other numbers of stages all have equal layers.
    there = {one.text: one.step_s for one in equal.alternatives}
    other = "4 stages instead of 2"
    assert {one.text: one.step_s for one in document.alternatives}[other] == there[other]


def test_interleaved_stages_of_torchtitan() -> None:
    """Two on each rank, unless the layers of a stage are given."""
    text = TOML.replace('"gpipe"', '"Interleaved1F1B"')
    read = configured(text)
    assert (read.schedule, read.stages_per_rank, read.layers_per_stage) == ("interleaved", 2, None)
    given = configured(text.replace("[activation", "pipeline_parallel_layers_per_stage = 1\n[act"))
    assert (given.schedule, given.layers_per_stage) == ("interleaved", 1)
    for name, own in (
        ("InterleavedZeroBubble", "zb-h1"), ("ZBVZeroBubble", "zbv"), ("DualPipeV", "dualpipev"),
    ):  # fmt: skip
        split = configured(TOML.replace("gpipe", name))
        assert (split.schedule, split.stages_per_rank, split.unread) == (own, 2, [])
    with pytest.raises(BadInput, match="'LoopedBFS', which is not priced"):
        configured(TOML.replace("gpipe", "LoopedBFS"))


def test_interleaved_stages_are_priced_beside_others(eight: Graph) -> None:
    """The layers of a stage and the stages of a rank say the same."""
    document = priced(eight, f"{FLAGS} --num-layers-per-virtual-pipeline-stage 2")
    same = priced(eight, f"{FLAGS} --num-virtual-stages-per-pipeline-rank 2")
    assert document.alternatives == same.alternatives
    assert document.pipeline.predicted == same.pipeline.predicted
    assert document.stages_per_rank == document.pipeline.stages_per_rank == 2
    assert document.stages == 2 and len(document.pipeline.stages) == 4
    stages = UniformModel(eight, MACHINE, 8, scattered=True).costed(2, 8, MEGATRON_S, quiet, 2)
    own = priced_in(stages, "interleaved", configured(FLAGS).parallelism, quiet)
    assert own is not None and document.pipeline.predicted.step_s == own.pipeline.step_s
    texts = {one.text: one for one in document.alternatives}
    plain = priced(eight, FLAGS)
    assert texts["1f1b instead of interleaved"].step_s == plain.pipeline.predicted.step_s
    assert "4 stages a rank instead of 2" in texts
    there = {one.text: one for one in plain.alternatives}
    back = there["interleaved with 2 stages a rank instead of 1f1b"]
    assert back.step_s == document.pipeline.predicted.step_s and back.stages_per_rank == 2


@pytest.mark.parametrize(
    ("theirs", "ours"), [("ZBVZeroBubble", "zbv"), ("InterleavedZeroBubble", "zb-h1")]
)
def test_schedules_that_split_backward_are_priced(gpt2: Graph, theirs: str, ours: str) -> None:
    """Two stages on each of two ranks, beside what differs."""
    text = TOML.replace("gpipe", theirs).replace("parallel_degree = 4", "parallel_degree = 2")
    text = text.replace("local_batch_size = 32", "local_batch_size = 16").replace("= 4\n", "= 2\n")
    document = priced(gpt2, text)
    assert document.schedule == document.pipeline.schedule == ours
    assert (document.stages, document.stages_per_rank) == (2, 2)
    assert all(stage.weights_s for stage in document.pipeline.stages)
    stages = UniformModel(gpt2, MACHINE, 8).costed(
        2, 8, Options(micro_batches=(8,), zero=(0, 2, 3), recompute="auto"), quiet, 2
    )
    own = priced_in(stages, ours, configured(text).parallelism, quiet)
    assert own is not None and document.pipeline.predicted.step_s == own.pipeline.step_s
    texts = {one.text: one for one in document.alternatives if one.changes == ["schedule"]}
    assert f"1f1b instead of {ours}" in texts
    other = {"zbv": "zb-h1", "zb-h1": "zbv"}[ours]
    changed = texts[f"{other} with 2 stages a rank instead of {ours}"]
    there = priced_in(stages, other, configured(text).parallelism, quiet)
    assert there is not None and changed.step_s == there.pipeline.step_s
    assert any("ZeRO" in one.text for one in document.alternatives)


@pytest.mark.parametrize(
    ("layers", "words"), [(1, "zbv with 4 stages on each"), (4, "with 1 stag")]
)
def test_a_v_has_two_stages_on_each_rank(eight: Graph, layers: int, words: str) -> None:
    text = TOML.replace("gpipe", "ZBVZeroBubble").replace(
        "parallel_degree = 4", "parallel_degree = 2"
    )
    text = text.replace(
        "[activation", f"pipeline_parallel_layers_per_stage = {layers}\n[activation"
    )
    text = text.replace("local_batch_size = 32", "local_batch_size = 16")
    with pytest.raises(BadInput, match=words) as error:
        priced(eight, text)
    assert error.value.field == "stages per rank"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--num-layers-per-virtual-pipeline-stage 3", "4 layers do not divide into stages of 3"),
        ("--num-virtual-stages-per-pipeline-rank 4", "4 layers do not divide into 2 times 4"),
    ],
)
def test_interleaved_stages_that_cannot_be(gpt2: Graph, flags: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        priced(gpt2, f"{FLAGS} {flags}")


def with_less(first: int | None, last: int | None) -> str:
    """Returns the job with other layers in first and last stage, None for torchtitan's default."""
    lines = [line for line in TOML.splitlines() if "less_layers" not in line]
    place = lines.index("[parallelism]") + 1
    for end, count in (("first", first), ("last", last)):
        if count is not None:
            lines.insert(place, f"pipeline_parallel_{end}_stage_less_layers = {count}")
    return "\n".join(lines)


def test_ends_of_torchtitan_have_fewer_layers(eight: Graph) -> None:
    """Three layers a stage of twelve, two of which are counted for embedding and head each."""
    document = priced(eight, with_less(2, 2))
    model = UniformModel(eight, MACHINE, 8, ends={4: (1, 1)})
    stages = model.costed(
        4, 8, replace(OPTIONS, micro_batches=(8,), zero=(0, 1, 2, 3), framework="eager"), quiet
    )
    own = priced_in(stages, "gpipe", document.parallelism, quiet)
    assert own is not None and document.pipeline.predicted.step_s == own.pipeline.step_s
    assert not any("less_layers" in line for line in document.unread)


@pytest.mark.parametrize(
    ("first", "last", "layers"),
    [(None, None, "2, 3, 2, 1"), (0, 2, "3, 3, 2, 0"), (1, 0, "2, 2, 2, 2")],
)
def test_other_layers_between_the_ends_are_noted(
    eight: Graph, first: int | None, last: int | None, layers: str
) -> None:
    notes = [line for line in priced(eight, with_less(first, last)).unread if "less_layers" in line]
    expected = f"stages of {layers} layers, priced as stages of equal layers"
    assert len(notes) == (layers != "2, 2, 2, 2")
    assert all(expected in note for note in notes)


@pytest.mark.parametrize(("text", "zero"), [(FLAGS, 1), (TOML, 2)], ids=["megatron", "torchtitan"])
def test_the_price_is_that_of_equal_stages(gpt2: Graph, text: str, zero: int) -> None:
    document, read = priced(gpt2, text), configured(text)
    model = UniformModel(gpt2, MACHINE, 8, scattered=read.trainer == "megatron")
    options = MEGATRON_S if read.trainer == "megatron" else replace(MEGATRON_S, framework="eager")
    stages = model.costed(read.stages, 8, options, quiet)
    own = priced_in(stages, read.schedule, read.parallelism, quiet)
    assert own is not None and read.parallelism.zero == zero
    assert document.pipeline.predicted.step_s == own.pipeline.step_s
    assert document.pipeline.predicted.peak_bytes == round(own.pipeline.peak_bytes.max())
    assert [stage.units for stage in document.pipeline.stages] == [
        b - a for a, b in zip(stages.bounds[:-1], stages.bounds[1:], strict=True)
    ]
    assert document.pipeline.schedule == read.schedule and document.fits
    assert document.pipeline.certificate.status == "heuristic"
    assert document.pipeline.certificate.epsilon is None


def test_alternatives_change_one_thing(of_flags: PipelinePricing) -> None:
    kinds = {change for one in of_flags.alternatives for change in one.changes}
    assert kinds == {
        "micro-batches", "recomputation", "tensor parallelism", "sequence parallelism",
        "ZeRO stage", "stages", "schedule",
    }  # fmt: skip
    own_s = of_flags.pipeline.predicted.step_s
    for one in of_flags.alternatives:
        assert len(one.changes) == 1 and one.stages * one.parallelism.gpus == 8
        assert one.saves == pytest.approx(1 - one.step_s / own_s)
        assert one.parallelism.zero in (0, 1)
        assert (one.schedule == "1f1b") == (one.changes != ["schedule"])
        if one.stages != 2:
            assert one.stages == 4 and one.text == "4 stages instead of 2"
    fitting = [one.step_s for one in of_flags.alternatives if one.fits]
    assert fitting == sorted(fitting)
    assert of_flags.best is not None
    assert of_flags.best.step_s <= min([own_s, *fitting])


def test_torchtitan_has_another_schedule() -> None:
    document = priced(read_graph(shipped_graph("gpt2")), TOML)
    changed = [one for one in document.alternatives if one.changes == ["schedule"]]
    assert {one.stages_per_rank for one in changed} == {UNSET, 3}
    assert {one.schedule for one in changed} == {"1f1b", "interleaved", "zb-h1"}
    (one,) = (o for o in changed if o.stages_per_rank is UNSET)
    assert one.schedule == "1f1b" and one.text == "1f1b instead of gpipe"
    assert one.peak_bytes < document.pipeline.predicted.peak_bytes


def test_what_does_not_fit_is_priced(gpt2: Graph) -> None:
    options = Options(micro_batches=(8,), memory_limit_bytes=10**8)
    document = priced(gpt2, FLAGS, options)
    assert not document.fits and document.best is None
    assert document.pipeline.predicted.peak_bytes > 10**8


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("parallel-size 2 --use", "parallel-size 8 --use", "4 layers do not divide"),
        ("--micro-batch-size 4", "--micro-batch-size 16", "2 micro-batches of 64"),
        ("--global-batch-size 64", "--global-batch-size 32", "global batch is 32"),
    ],
)
def test_what_cannot_be_priced_says_why(gpt2: Graph, old: str, new: str, words: str) -> None:
    assert old in FLAGS
    text = FLAGS.replace(old, new)
    if "8 --use" in new:
        text = text.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1")
    with pytest.raises(BadInput, match=words):
        priced(gpt2, text)


def test_services_refuse_it(gpt2: Graph) -> None:
    with pytest.raises(BadInput, match=r"pipeline of 2 stages.*without --server"):
        price_configuration(gpt2, MACHINE, 8, configured(FLAGS), OPTIONS, file="file")


def test_the_command_prints_its_stages(gpt2_file: str, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(FLAGS)
    arguments = [gpt2_file, "--like", str(file), "--hardware", "dgx-h100", "--gpus", "8"]
    arguments += ["--micro-batches", "8", "--quiet"]
    result = CliRunner().invoke(explain, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "megatron: pp 2 × dp_shard 2 (ZeRO-1) × tp 2" in result.output
    assert "4 stages instead of 2" in result.output and "stages" in result.output
    as_json = CliRunner().invoke(explain, [*arguments, "--json"])
    assert '"shardwise.pipeline-pricing/1"' in as_json.stdout
    assert json_schema("pipeline-pricing")["$id"].endswith("pipeline-pricing:1")
