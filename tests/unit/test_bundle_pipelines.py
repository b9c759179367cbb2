"""Curves over bundles and quotes of parts and of kinds together, with pipelines."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace as with_members

from harness.graph_builder import layers
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.answers.combined_offers import _searched, _Together
from shardwise.answers.pipeline_points import PipelinePoints
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.answers.quote_rows import Terms
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.documents import Pipeline
from shardwise.documents.curve import CurvePoint, fastest_s, fits
from shardwise.documents.pipeline_point import PipelinePoint, groups_text, pipeline_text
from shardwise.errors import BadInput
from shardwise.hardware import Offer, load_hardware
from shardwise.pictures.plots import curve_picture
from shardwise.pipeline.asked import DEFAULT_SCHEDULES
from shardwise.search.search import Subject

HETEROG = load_hardware("heterog-8")
CHAIN = layers(10, 64, 2048)
FREE = Options(micro_batches=(8,), time_limit_s=2.0)
TIGHT = replace(
    FREE,
    zero=(0,),
    memory_limit_bytes=2.0**28,
    pins=(parse_pin("inside!=out"), parse_pin("inside!=in")),
)
"""Weights are on every device of a stage: the chain fits in four stages only."""
BOTH, ONE = "v100=2,p100=2", "v100=1"


def pipeline_of(point: CurvePoint) -> PipelinePoint:
    assert point.pipeline is not UNSET
    return point.pipeline


def test_a_bundle_has_the_pipeline_of_its_plan() -> None:
    curve = advice.curve(CHAIN, HETEROG, None, TIGHT, bundles=[BOTH, ONE], stages=[4])
    one, both = curve.points
    assert not fits(one) and "no pipeline that was asked for fits either" in str(one.reason)
    planned = pipeline_or_plan(CHAIN, HETEROG, BOTH, stages=[4], options=TIGHT)
    assert isinstance(planned, Pipeline) and not both.feasible
    pipeline = pipeline_of(both)
    assert (pipeline.id, pipeline.step_s) == (planned.id, planned.predicted.step_s)
    assert pipeline.groups == [stage.group for stage in planned.stages]
    assert [run.bundle for run in curve.does_not_fit or ()] == [ONE]
    assert curve.search.seconds > 0


def test_a_pipeline_is_there_where_it_is_faster_alone() -> None:
    plain = advice.curve(CHAIN, HETEROG, None, FREE, bundles=[BOTH])
    piped = advice.curve(CHAIN, HETEROG, None, FREE, bundles=[BOTH], stages=[2])
    (before,), (after,) = plain.points, piped.points
    planned = pipeline_or_plan(CHAIN, HETEROG, BOTH, stages=[2], options=FREE)
    assert isinstance(planned, Pipeline)
    faster = planned.predicted.step_s < (fastest_s(before, overlap=True) or 0.0)
    assert (after.pipeline is not UNSET) == faster
    assert without(after).reason == before.reason


def without(point: CurvePoint) -> CurvePoint:
    return with_members(point, pipeline=UNSET)


def test_the_picture_has_bars_of_pipelines() -> None:
    curve = advice.curve(CHAIN, HETEROG, None, TIGHT, bundles=[BOTH, ONE], stages=[4])
    step = pipeline_of(curve.points[1]).step_s
    picture = curve_picture(curve)
    heights = [bar.get_height() for bar in picture.figure.axes[0].patches]
    assert heights.count(step) == 2, "once as a step, once in the colour of pipelines"


@pytest.mark.parametrize("schedules", [["zbv"], ["1f1b", "interleaved:2"]])
def test_several_kinds_have_one_stage_on_each_device(schedules: list[str]) -> None:
    asked: dict[str, Any] = {"stages": [2], "schedules": schedules, "options": FREE}
    for ask in (
        lambda: advice.curve(CHAIN, HETEROG, None, bundles=[BOTH], **asked),
        lambda: advice.quote(CHAIN, [], hardware=HETEROG, prices={}, **asked),
        lambda: advice.quote(CHAIN, [], combine=2, **asked),
        lambda: advice.frontier(CHAIN, HETEROG, BOTH, **asked),
    ):
        with pytest.raises(BadInput, match="on devices of several kinds") as error:
            ask()
        assert error.value.field == "schedules"


def test_more_stages_than_any_bundle_has_devices_are_refused() -> None:
    with pytest.raises(BadInput, match="5 stages of up to 4 devices"):
        advice.curve(CHAIN, HETEROG, None, FREE, bundles=[BOTH, ONE], stages=[2, 5])


def test_parts_of_a_profile_are_quoted_by_their_pipelines() -> None:
    hardware = load_hardware("l40s-4+a100-4")
    names = [group.name for group in hardware.groups]
    prices = dict(zip(names, (2.0, 0.5), strict=True))
    asked: dict[str, Any] = {"hardware": hardware, "prices": prices, "options": TIGHT, "steps": 10}
    quote = advice.quote(CHAIN, [], stages=[4], **asked)
    text = ",".join(f"{name}=2" for name in names)
    row = next(row for row in quote.offers if row.bundle == text)
    planned = pipeline_or_plan(CHAIN, hardware, text, stages=[4], options=TIGHT)
    assert isinstance(planned, Pipeline) and row.pipeline is not UNSET
    assert (row.plan_id, row.time_s) == (planned.id, planned.predicted.step_s)
    assert row.usd_total == pytest.approx(5.0 / 3600 * 10 * planned.predicted.step_s)


def test_kinds_of_instances_together_have_pipelines() -> None:
    """Two devices of one kind beside four of another are three stages of two."""
    few = Offer("cloud", "few", 2, "L4", "here", False, 1.0, "2026-11-01", "x", "l4")
    old = replace(few, instance_type="old", gpus_per_instance=4, gpu_kind="V100",
                  hardware="dgx-v100-16gb")  # fmt: skip
    terms = Terms(FREE, CHAIN.batch_size, None, None, datetime.date(2026, 11, 1))
    asked = PipelinePoints.asked(CHAIN, FREE, [3], DEFAULT_SCHEDULES)
    together = _Together(((few, 1), (old, 1)))
    row, outcome = _searched(Subject.of(CHAIN), together, terms, quiet, asked)
    assert row is not None and row.pipeline is not UNSET, outcome
    assert row.pipeline.stages == 3 and row.plan_id == row.pipeline.id
    assert sorted(row.pipeline.groups or ()) == ["l4", "v100", "v100"]


def test_texts_name_the_groups_of_stages() -> None:
    assert groups_text(["h100", "h100", "h100", "a100"]) == " (3 h100, 1 a100)"
    assert groups_text([]) == ""
    (point,) = advice.curve(CHAIN, HETEROG, None, TIGHT, bundles=[BOTH], stages=[4]).points
    pipeline = pipeline_of(point)
    assert pipeline.groups is not UNSET
    names = " (2 v100, 2 p100)" if pipeline.groups[:1] == ["v100"] else " (2 p100, 2 v100)"
    assert pipeline_text(pipeline) == f"4 stages{names}, {pipeline.schedule}, 8"
