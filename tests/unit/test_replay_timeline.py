"""The timeline of a plan: lanes add up to what the plan is predicted to take, and stay small."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shardwise
from harness.models.comparison_models import residual_block
from shardwise import documents
from shardwise.answers.levels import Levels
from shardwise.answers.timeline import MOST_BARS
from shardwise.cli.main import cli
from shardwise.cost.options import Options
from shardwise.documents.plan import Plan, PlannedCluster
from shardwise.documents.timeline import Timeline
from shardwise.hardware import Devices, load_hardware
from shardwise.outfiles import write_json
from shardwise.pictures.gantt import gantt_svg
from shardwise.replay.link_levels import seconds_by_level
from shardwise.replay.tape import COMPUTE
from shardwise.search.fitting import search_frontier
from shardwise.search.search import Subject

COMMUNICATION = "communication"


def timeline_of(plan: Plan) -> Timeline:
    assert isinstance(plan.timeline, Timeline)
    return plan.timeline


def busy(timeline: Timeline, talks: bool) -> float:
    return sum(lane.busy_s for lane in timeline.lanes if (lane.kind == COMMUNICATION) == talks)


@pytest.mark.parametrize(("batches", "recompute"), [(1, None), (8, "always"), (32, "never")])
def test_lanes_add_up_to_the_step(batches: int, recompute: str | None) -> None:
    options = Options(micro_batches=(batches,), recompute=recompute, framework="eager")
    plan = shardwise.plan("shipped:gpt2", "dgx-a100-80gb", 16, options)
    timeline, predicted = timeline_of(plan), plan.predicted
    assert plan.micro_batches == batches
    assert busy(timeline, talks=False) == pytest.approx(predicted.compute_s, rel=1e-4)
    assert busy(timeline, talks=True) == pytest.approx(predicted.communication_s, rel=1e-4)
    assert max(timeline.held_bytes) == timeline.peak_bytes == predicted.peak_bytes
    assert 0.0 <= timeline.peak_at_s <= timeline.step_s <= predicted.replayed_time_s * (1 + 1e-5)
    kinds = {lane.kind for lane in timeline.lanes}
    assert ("recomputation" in kinds) == (recompute == "always")
    for lane in timeline.lanes:
        assert len(lane.bars) <= MOST_BARS
        for bar in lane.bars:
            assert 0.0 <= bar.start_s < bar.end_s <= timeline.step_s * (1 + 1e-5)
            assert bar.busy_s <= bar.end_s - bar.start_s + timeline.step_s * 1e-5
        for bar, following in pairwise(lane.bars):
            assert bar.end_s <= following.start_s


def test_tasks_are_told_apart_by_level() -> None:
    """Both ways of dividing communication by level agree, on every point of a frontier."""
    options = Options(micro_batches=(2,), zero=(0, 3))
    graph, hardware = residual_block(), load_hardware("dgx-v100-16gb*2")
    (found,) = search_frontier(Subject.of(graph), hardware, Devices.alike(16), options)
    levels, replayer = Levels(found.problem), found.own_replayer
    talks = np.array(replayer.tape.streams) != COMPUTE
    both = 0
    for point in range(len(found.solution.choices)):
        choices, edges = found.solution.choices[point], found.solution.edge_choices[point]
        communication_s = float(found.time_s[point]) - found.compute_s(point)
        expected = levels.seconds(choices, edges, communication_s)
        of_tasks = seconds_by_level(replayer, options.step, choices, edges)
        sums = {level: float(seconds[talks].sum()) for level, seconds in of_tasks.items()}
        assert sums == pytest.approx(expected, rel=1e-6, abs=1e-9)
        both += min(sums.values()) > 0.0
    assert both, "some strategies use both levels"


def test_places_of_several_kinds_have_lanes_of_their_own() -> None:
    plan = shardwise.plan(residual_block(8192), "heterog-8", "v100=2,1080ti=2", micro_batches=(1,))
    timeline = timeline_of(plan)
    assert isinstance(plan.cluster, PlannedCluster)
    names = {place.name for place in plan.cluster.places}
    assert {lane.name.partition(":")[0] for lane in timeline.lanes} == names
    assert timeline.peak_bytes == plan.predicted.peak_bytes
    for place in plan.cluster.places:
        computing = next(x for x in timeline.lanes if x.name == f"{place.name}: compute")
        assert computing.busy_s == pytest.approx(place.compute_s, rel=1e-4)


def test_a_chart_has_a_bar_for_every_bar_and_says_the_peak() -> None:
    plan = shardwise.plan("shipped:vgg16", "dgx-v100-16gb", 4, micro_batches=(2,))
    timeline = timeline_of(plan)
    svg = gantt_svg(timeline, plan.memory_limit_bytes)
    assert svg.count("<rect") == sum(len(lane.bars) for lane in timeline.lanes)
    assert f"at the start of {timeline.peak_task}" in svg
    assert "style=" not in svg, "pages forbid styles in elements"


def test_plans_of_earlier_versions_have_none() -> None:
    plan = shardwise.plan("shipped:vgg16", "dgx-v100-16gb", 2, micro_batches=(1,))
    document = {name: value for name, value in plan.to_dict().items() if name != "timeline"}
    assert documents.read(document, Plan).timeline is not plan.timeline


def test_explain_draws_the_step_of_a_plan(tmp_path: Path) -> None:
    plan = shardwise.plan("shipped:vgg16", "dgx-v100-16gb", 4, micro_batches=(2,))
    write_json(plan, str(tmp_path / "plan.json"))
    picture = tmp_path / "step.svg"
    arguments = ["explain", str(tmp_path / "plan.json"), "--plot", str(picture)]
    CliRunner().invoke(cli, arguments, catch_exceptions=False)
    svg = picture.read_text()
    for lane in timeline_of(plan).lanes:
        assert svg.count(f"title>{lane.name}: ") == len(lane.bars)
