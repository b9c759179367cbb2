"""Comparisons with schedules that split backward, and Alpa's cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.models.shortened import shortened
from shardwise.answers import Options
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.cli.compare import compare as compare_command
from shardwise.cost.options import quiet
from shardwise.documents import Comparison, Pipeline
from shardwise.documents.comparison import ComparedMethod
from shardwise.errors import BadInput
from shardwise.graph import Graph, write_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.hardware.host import soft_maximum
from shardwise.peers import alpa, compare
from shardwise.peers.alpa import FormulaRun, FormulaStaged
from shardwise.peers.pipelines import (
    DUAL_PIPE,
    GPIPE,
    MEGATRON_3D,
    METHODS,
    ZERO_BUBBLE,
    PipedPractice,
    cut_for,
    methods_for,
    piped_practices,
)
from shardwise.pipeline.asked import DEFAULT_SCHEDULES
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.replay import Replayer
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.kinds import Guide
from shardwise.search.pipelines.search import NEAR_LIMIT, PipelineSearch
from shardwise.search.pipelines.searched import Run
from shardwise.search.pipelines.uniform import UniformModel, UniformStages
from shardwise.sharding.layout import Floats

MACHINE = load_hardware("dgx-h100").with_devices_per_node(4)
OPTIONS = Options(micro_batches=(8,), framework="eager")
SPLIT = ("zb-h1", "zbv", "dualpipev")


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    """Four of its twelve layers."""
    return shortened("gpt2", 4)


@pytest.fixture(scope="module")
def costed(gpt2: Graph) -> tuple[UniformModel, UniformStages]:
    """Two ranks of four devices."""
    model = UniformModel(gpt2, MACHINE, 8, scattered=True)
    return model, model.costed(2, 8, OPTIONS, quiet)


@pytest.fixture(scope="module")
def document(gpt2: Graph) -> Comparison:
    return compare(gpt2, MACHINE, 8, OPTIONS, proposals=10, stages=[2], schedules=SPLIT)


def method_of(document: Comparison, name: str) -> ComparedMethod:
    return next(method for method in document.methods if method.method == name)


def test_methods_that_split_are_there_where_one_of_their_schedules_is_named() -> None:
    assert list(methods_for(DEFAULT_SCHEDULES)) == [MEGATRON_3D, GPIPE]
    assert list(methods_for(("zbv", "1f1b"))) == [MEGATRON_3D, GPIPE, ZERO_BUBBLE]
    assert methods_for(("zbv",))[ZERO_BUBBLE].schedules == ("zbv",)
    assert list(methods_for(SPLIT)) == list(METHODS)


def piped(costed: tuple[UniformModel, UniformStages], name: str) -> list[PipedPractice]:
    model, stages = costed
    method = METHODS[name]
    return [
        one
        for order, cut in cut_for(model, stages, method.schedules)
        for one in piped_practices(cut, order, method.allowed, quiet)
    ]


def test_schedules_have_every_number_of_stages_that_they_allow(
    costed: tuple[UniformModel, UniformStages],
) -> None:
    made = {
        (one.pipeline.schedule, one.pipeline.stages_per_rank)
        for one in piped(costed, "zero-bubble")
    }
    assert made == {("zb-h1", 1), ("zb-h1", 2), ("zbv", 2)}
    assert {one.pipeline.schedule for one in piped(costed, DUAL_PIPE)} == {"dualpipev"}
    for one in piped(costed, DUAL_PIPE):
        assert one.practice.parallelism.tensor == 1


@pytest.mark.parametrize("name", SPLIT)
def test_their_price_is_that_of_replayed_parts(
    costed: tuple[UniformModel, UniformStages], name: str
) -> None:
    """The step from the stages' replay in three parts and the simulated schedule, put together."""
    model, stages = costed
    search = stages.search
    split = Replayer(search.problem, search.options.step, search.subject.kits, split=True)
    replayer = StageReplayer(split, stages.units.of_group)
    for order, cut in cut_for(model, stages, [name]):
        one = next(piped_practices(cut, order, METHODS[ZERO_BUBBLE].allowed, quiet))
        pipeline, chosen = one.pipeline, (one.practice.choices, one.practice.edge_choices)
        each = cut.stages_per_rank
        made = schedule(name, ranks=2, micro_batches=8, stages_per_rank=each)
        own = [made.placement.stages_of(rank) for rank in range(2)]
        copies = [tied.copies for tied in stages.tied]
        alone = replayer.replay(*chosen, cut.bounds, own, copies)
        parts = zip(alone.forward_s, alone.inputs_s, alone.weights_s, strict=True)
        times = [StageTimes(*map(float, of)) for of in parts]
        assert min(time.weights_s for time in times) > 0
        passes = simulate(made, times, pipeline.hops_s)
        update_s = alone.update_s + np.array(pipeline.tied_s)
        ends = [
            passes.spans_s[rank][-1][1] + float(update_s[list(own[rank])].sum())
            for rank in range(2)
        ]
        assert pipeline.step_s == pytest.approx(max(ends))
        assert pipeline.replayed.weights_s == pytest.approx(alone.weights_s)


@pytest.mark.parametrize(("name", "is_v"), [("zbv", True), ("zb-h1", False)])
def test_first_and_last_stage_of_a_v_share_the_tied_embedding(
    costed: tuple[UniformModel, UniformStages], name: str, is_v: bool
) -> None:
    """Its gradients are not summed, it is there once, and the middle of the V sends nothing."""
    model, stages = costed
    cut = model.recut(stages, 2)
    one = next(piped_practices(cut, name, METHODS[DUAL_PIPE].allowed, quiet))
    pipeline = one.pipeline
    assert any(pipeline.tied_s) != is_v
    assert (pipeline.hops_s[1] == 0) == is_v and min(pipeline.hops_s[::2]) > 0
    chosen = one.practice.choices, one.practice.edge_choices
    own = [pipeline.placement.stages_of(rank) for rank in range(2)]
    twice = cut._split_replayer.replay(*chosen, cut.bounds, own)
    lasting = pipeline.replayed.of_ranks.lasting_bytes
    assert (lasting[0] < twice.of_ranks.lasting_bytes[0]) == is_v
    assert lasting[1] == twice.of_ranks.lasting_bytes[1]


@pytest.mark.parametrize("name", [ZERO_BUBBLE, DUAL_PIPE])
def test_points_are_the_best(
    costed: tuple[UniformModel, UniformStages], document: Comparison, name: str
) -> None:
    (point,) = method_of(document, name).points
    whole = costed if METHODS[name].scattered else (costed[0], unscattered(costed[1]))
    best = min(piped(whole, name), key=lambda one: one.pipeline.rank).pipeline
    assert point.replayed_time_s == best.step_s and point.pipeline
    assert point.pipeline.schedule == best.schedule
    assert point.pipeline.peak_bytes == [round(peak) for peak in best.rank_peak_bytes]


def unscattered(stages: UniformStages) -> UniformStages:
    return replace(stages, scattered=False)


def test_sums_leave_out_none_that_is_faster(costed: tuple[UniformModel, UniformStages]) -> None:
    model, stages = costed
    method = METHODS[ZERO_BUBBLE]
    for order, cut in cut_for(model, stages, method.schedules):
        made = piped_practices(cut, order, method.allowed, quiet)
        first, second, *_ = sorted({one.pipeline.step_s for one in made})
        again = piped_practices(cut, order, method.allowed, quiet, second)
        assert min(one.pipeline.step_s for one in again) == first


def test_ours_is_the_plan_with_these_schedules(gpt2: Graph, document: Comparison) -> None:
    (point,) = method_of(document, "shardwise-pipelines").points
    planned = pipeline_or_plan(gpt2, MACHINE, 8, stages=[2], schedules=SPLIT, options=OPTIONS)
    assert isinstance(planned, Pipeline) and point.pipeline
    assert point.replayed_time_s == planned.predicted.step_s
    assert point.pipeline.schedule == planned.schedule in SPLIT
    assert (point.label or "").startswith("pp2·")


def test_nobody_names_a_schedule_that_is_not_searched(gpt2: Graph) -> None:
    with pytest.raises(BadInput, match="unknown schedule 'zb-h2'"):
        compare(gpt2, MACHINE, 8, OPTIONS, proposals=10, stages=[2], schedules=["zb-h2"])


# Alpa


def test_alpa_is_among_the_systems_and_not_faster_than_what_is_proven(
    gpt2: Graph, document: Comparison
) -> None:
    (point,) = method_of(document, alpa.METHOD).points
    assert point.pipeline and (point.pipeline.stages, point.pipeline.schedule) == (2, "1f1b")
    ours = pipeline_or_plan(gpt2, MACHINE, 8, stages=[2], schedules=["1f1b"], options=OPTIONS)
    assert isinstance(ours, Pipeline)
    bound = ours.certificate.time_lower_bound_s
    assert isinstance(bound, float) and point.replayed_time_s
    assert bound <= point.replayed_time_s <= 1.2 * ours.predicted.step_s


def formula(guide: Guide, host_s: Floats, run: Run, limit_bytes: float) -> Callable[..., float]:
    """Returns what gives Alpa's T of cuts, each stage solved exactly, beside its host's time."""

    @cache
    def stage_s(stage: int, first: int, last: int) -> float:
        solved = guide.stages[0].fastest(first, last, run.kept[stage], limit_bytes)
        if solved is None:
            return inf
        launched_s = host_s[first:last].sum()
        return float(soft_maximum(np.asarray(solved.time_s), launched_s)) / run.micro_batches

    def seconds(bounds: tuple[int, ...]) -> float:
        times = [stage_s(stage, *ends) for stage, ends in enumerate(pairwise(bounds))]
        return sum(times) + (run.micro_batches - 1) * max(times)

    return seconds


@pytest.mark.parametrize("count", [2, 4])
def test_alpas_cuts_are_those_of_the_least_sum(gpt2: Graph, count: int) -> None:
    """Of all cuts of 6 units."""
    search = PipelineSearch(gpt2, MACHINE, Devices.alike(8), OPTIONS, quiet, (alpa.SCHEDULE,))
    (question,) = search.questions([count])
    staged = FormulaStaged(question, quiet, NEAR_LIMIT)
    (run,) = question.runs
    units = len(search.units)
    for guided in staged.guided:
        own = FormulaRun(run.of, run.ranks, run.micro_batches)
        free: Any = {k: [[0.0] * len(i) for i in of] for k, of in guided.hops_s.items()}
        made = staged.fastest(replace(guided, hops_s=free), own, staged.limit_bytes)
        assert made is not None
        seconds = formula(guided.guide, question.first.host_s, run, staged.limit_bytes)
        every = combinations(range(1, units), count - 1)
        least = min(seconds((0, *inner, units)) for inner in every)
        assert seconds(made.bounds) <= 1.02 * least


def test_the_command_takes_schedules(gpt2: Graph, tmp_path: Path) -> None:
    write_graph(gpt2, tmp_path / "gpt2.json")
    arguments = [str(tmp_path / "gpt2.json"), "--hardware", "dgx-h100", "--gpus", "8"]
    arguments += ["--stages", "2"]
    arguments += ["--micro-batches", "8", "--proposals", "10", "--quiet", "--schedules", "zbv"]
    result = CliRunner().invoke(compare_command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for words in ("Zero Bubble", "Alpa-like", "pp2·vpp2·zbv", "zbv"):
        assert words in result.output
    assert "DualPipe" not in result.output
