"""Pipelines of trainers: the fastest in a trainer's space, written, read back and priced alike."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import UNSET
from msgspec.structs import replace

from harness.trainer_plans import plan_of
from shardwise.answers import Options
from shardwise.answers.pipelines import pipeline_document, pipeline_or_plan
from shardwise.capture import shipped_graph
from shardwise.cli.main import cli
from shardwise.cost.options import quiet
from shardwise.documents import Pipeline
from shardwise.documents.parallelism import Parallelism, PlannedTrainer
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.graph.step import step_of
from shardwise.hardware import load_hardware
from shardwise.peers.pipelines import piped_practices
from shardwise.search.pipelines.uniform import UniformModel
from shardwise.search.search import Infeasible
from shardwise.trainers.formats import write_for
from shardwise.trainers.pipelines import SCHEDULES, price_pipeline, trainer_stages
from shardwise.trainers.plan_pipeline import pipeline_for
from shardwise.trainers.read import configuration_of
from shardwise.trainers.spaces import space_of
from shardwise.trainers.stated import with_stated

MACHINE = load_hardware("dgx-h100")
OPTIONS = Options(micro_batches=(8,))
TRAINERS = ("megatron", "torchtitan")


@pytest.fixture(scope="module")
def whole() -> Graph:
    """With layers for three stages on each of four ranks, and the layers of a preset."""
    return read_graph(shipped_graph("gpt2"))


@pytest.fixture(scope="module", params=TRAINERS)
def planned(request: pytest.FixtureRequest, gpt2: Graph) -> Pipeline:
    return pipeline_for(gpt2, MACHINE, 8, request.param, stages=(2, 4), options=OPTIONS)


@pytest.fixture(scope="module")
def own(gpt2: Graph) -> Pipeline:
    """A pipeline of no trainer's space."""
    found = pipeline_or_plan(gpt2, MACHINE, 8, stages=[2], options=OPTIONS)
    assert isinstance(found, Pipeline)
    return found


def name_of(pipeline: Pipeline) -> str:
    assert pipeline.trainer is not UNSET
    return pipeline.trainer.name


def strategy_of(pipeline: Pipeline) -> Parallelism:
    assert pipeline.trainer is not UNSET
    return pipeline.trainer.parallelism


def test_it_is_the_fastest_of_the_space(gpt2: Graph, planned: Pipeline) -> None:
    trainer = name_of(planned)
    model = UniformModel(gpt2, MACHINE, 8, scattered=trainer == "megatron")
    space = space_of(trainer)
    options = with_stated(OPTIONS, space.implies, ())
    steps = [
        one.pipeline.step_s
        for stages in (2, 4)
        for schedule, cut in trainer_stages(model, model.costed(stages, 8, options, quiet), trainer)
        for one in piped_practices(cut, schedule, space.allows, quiet)
        if one.pipeline.fits
    ]
    assert planned.predicted.step_s == min(steps)
    assert space.allows(strategy_of(planned))
    assert strategy_of(planned).gpus * planned.ranks == 8


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "interleaved:2", "zbv"])
def test_schedules_are_those_that_were_named(gpt2: Graph, schedule: str) -> None:
    pipeline = pipeline_for(
        gpt2, MACHINE, 8, "torchtitan", stages=(2,), schedules=(schedule,), options=OPTIONS
    )
    name, _, each = schedule.partition(":")
    assert pipeline.schedule == name
    assert not each or pipeline.stages_per_rank == int(each)


def test_schedules_that_a_trainer_does_not_run_are_refused(gpt2: Graph) -> None:
    for trainer, schedule in (("megatron", "gpipe"), ("megatron", "zb-h1:2"),
                              ("torchtitan", "1f1b-eager")):  # fmt: skip
        with pytest.raises(BadInput, match=f"{trainer} does not run {schedule}") as raised:
            pipeline_for(gpt2, MACHINE, 8, trainer, stages=(2,), schedules=(schedule,))
        assert raised.value.field == "schedules"


def test_the_command_takes_schedules_beside_a_space() -> None:
    asked = ["plan", str(shipped_graph("gpt2")), "--hardware", "dgx-h100", "--gpus", "8"]
    for more in (["--stages", "2", "--space", "megatron"], ["--space", "megatron"]):
        result = CliRunner().invoke(cli, [*asked, *more, "--schedules", "gpipe"])
        assert isinstance(result.exception, BadInput), result.output
        assert "schedules" in str(result.exception.field)


def test_what_is_written_is_read_and_priced_alike(gpt2: Graph, planned: Pipeline) -> None:
    """The file says the stages, the schedule and every degree, or the price would be another."""
    written = write_for(planned, name_of(planned))
    read = configuration_of(written.text, 8, "file")
    if name_of(planned) == "megatron":
        words = shlex.split(written.text, comments=True)
        assert words[words.index("--pipeline-model-parallel-size") + 1] == str(planned.ranks)
    assert read.trainer == name_of(planned) and not [n for n in read.unread if "pipeline" in n]
    assert (read.stages, read.schedule) == (planned.ranks, planned.schedule)
    assert read.parallelism == strategy_of(planned) and read.batch == gpt2.batch_size
    document = price_pipeline(gpt2, MACHINE, 8, read, OPTIONS, file="file")
    assert document.pipeline.predicted == planned.predicted


def test_the_first_layers_of_each_stage_are_recomputed(gpt2: Graph) -> None:
    """Of two layers in each of two stages one: priced between none and both, written and read."""
    options = with_stated(OPTIONS, space_of("megatron").implies, ())
    model = UniformModel(gpt2, MACHINE, 2, scattered=True)
    costed = model.costed(2, 8, options, quiet)
    none = Parallelism(micro_batches=8)
    full = replace(none, recompute="full")
    first = replace(full, recompute_layers=1)
    found = {
        one.practice.parallelism: one.pipeline
        for one in piped_practices(
            costed, "1f1b", lambda one: one in (none, full), quiet, partial=(first,)
        )
    }
    for schedule_of in (lambda one: one.peak_bytes.max(), lambda one: -one.step_s):
        assert schedule_of(found[none]) > schedule_of(found[first]) > schedule_of(found[full])
    limit = options_with_limit(round(float(found[first].peak_bytes.max())) + 1)
    planned = pipeline_for(
        gpt2, MACHINE, 2, "megatron", stages=(2,), schedules=("1f1b",), options=limit
    )
    assert strategy_of(planned) == first
    assert planned.predicted.step_s == pytest.approx(found[first].step_s)
    text = write_for(planned, "megatron").text
    assert "--recompute-method block\n  --recompute-num-layers 1\n" in text
    read = configuration_of(text, 2, "file")
    assert read.parallelism == first
    priced = price_pipeline(gpt2, MACHINE, 2, read, limit, file="file")
    assert priced.pipeline.predicted == planned.predicted


def options_with_limit(limit_bytes: int) -> Options:
    return dataclasses.replace(OPTIONS, memory_limit_bytes=limit_bytes)


def test_every_schedule_and_degree_is_written(planned: Pipeline) -> None:
    trainer = name_of(planned)
    for schedule in SCHEDULES[trainer]:
        each = {"interleaved": 3, "zb-h1": 3, "zbv": 2, "dualpipev": 2}.get(schedule, 1)
        for given in (
            Parallelism(shards=2, tensor=2, sequence=True, zero={"megatron": 1}.get(trainer, 2),
                        micro_batches=8),
            Parallelism(tensor=4, sequence=True, recompute="full", micro_batches=4),
            Parallelism(shards=4, zero={"megatron": 1}.get(trainer, 3), micro_batches=4),
        ):  # fmt: skip
            assert planned.trainer is not UNSET
            changed = replace(
                planned,
                graph_name="gpt2",
                stages=planned.stages[:1] * 2 * each,
                stages_per_rank=each if each > 1 else UNSET,
                schedule=schedule,
                trainer=replace(planned.trainer, parallelism=given),
            )
            read = configuration_of(write_for(changed, trainer).text, 8, "file")
            assert (read.stages, read.schedule, read.parallelism) == (2, schedule, given)
            if each == 2:
                assert (read.stages_per_rank, read.layers_per_stage) == (2, None)
            if each == 3:
                # torchtitan says the layers of a stage, of a whole GPT-2 12 / (2 · 3).
                of_file = read.stages_per_rank, read.layers_per_stage
                assert of_file == ((3, None) if trainer == "megatron" else (1, 2))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_interleaved_stages_are_written_read_and_priced_alike(whole: Graph, trainer: str) -> None:
    """Of two stages a rank, which torchtitan has anyway."""
    model = UniformModel(whole, MACHINE, 8, scattered=trainer == "megatron")
    allowed = space_of(trainer).allows
    options = with_stated(OPTIONS, space_of(trainer).implies, ())
    cut = model.costed(4, 8, options, quiet, 3)
    one = next(iter(piped_practices(cut, "interleaved", allowed, quiet)))
    planned = replace(
        pipeline_document(one.pipeline, 0.0, 0.0),
        trainer=PlannedTrainer(
            trainer,
            one.practice.parallelism,
            1024,
            None,
            None,
            step_of(whole).dtype,
            gradients=options.step.gradients,
        ),
        kernels=options.light_kernels,
    )
    assert planned.ranks == 4 and planned.stages_per_rank == 3 and len(planned.stages) == 12
    assert [stage.first_device for stage in planned.stages] == [0, 2, 4, 6] * 3
    read = configuration_of(write_for(planned, trainer).text, 8, "file")
    document = price_pipeline(whole, MACHINE, 8, read, OPTIONS, file="file")
    assert document.pipeline.predicted == planned.predicted
    assert (document.stages, document.stages_per_rank) == (4, 3)
    with pytest.raises(BadInput, match="interleaved of 12 stages on 12 ranks"):
        write_for(replace(planned, stages_per_rank=UNSET), trainer)


def test_what_cannot_be_said_is_refused(own: Pipeline, planned: Pipeline) -> None:
    for trainer in TRAINERS:
        with pytest.raises(BadInput, match="cuts and splits of its own") as error:
            write_for(own, trainer)
        assert f"--stages 2 --space {trainer}" in (error.value.expected or "")
        with pytest.raises(BadInput, match="cannot say '1f1b-eager'"):
            write_for(replace(planned, schedule="1f1b-eager"), trainer)
    for trainer in ("deepspeed", "fsdp2", "accelerate", "nanotron"):
        with pytest.raises(BadInput, match=f"not written for {trainer}"):
            write_for(planned, trainer)
    with pytest.raises(BadInput, match="devices in a plan for 8"):
        whole = replace(planned, schedule="1f1b", stages_per_rank=UNSET)
        write_for(replace(whole, stages=planned.stages[:1]), name_of(planned))
    # Plans without stages are written as before.
    text = write_for(plan_of(Parallelism(shards=4, zero=1), trainer="megatron"), "megatron").text
    assert "--pipeline-model-parallel-size 1" in text


def test_what_is_not_planned_says_why(gpt2: Graph) -> None:
    with pytest.raises(BadInput, match="deepspeed: no answer for a trainer's pipelines"):
        pipeline_for(gpt2, MACHINE, 8, "deepspeed", stages=(2,))
    with pytest.raises(BadInput, match="4 layers do not divide into 8"):
        pipeline_for(gpt2, MACHINE, 8, "megatron", stages=(8,), options=OPTIONS)
    options = Options(micro_batches=(8,), memory_limit_bytes=10**8)
    with pytest.raises(Infeasible, match=r"the limit is 0\.1 GiB"):
        pipeline_for(gpt2, MACHINE, 8, "megatron", stages=(2,), options=options)


def test_from_the_command_line(gpt2_file: str, tmp_path: Path) -> None:
    file, flags = tmp_path / "pipeline.json", tmp_path / "train.sh"
    where = ["--hardware", "dgx-h100", "--gpus", "8", "--micro-batches", "8", "--quiet"]

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    run("plan", gpt2_file, *where, "--stages", "2", "--space", "megatron", "-o", str(file))
    planned = json.loads(file.read_text())
    assert planned["trainer"]["name"] == "megatron"
    run("export", str(file), "--to", "megatron", "-o", str(flags))
    priced = json.loads(run("explain", gpt2_file, "--like", str(flags), *where, "--json"))
    assert priced["pipeline"]["predicted"] == planned["predicted"]
