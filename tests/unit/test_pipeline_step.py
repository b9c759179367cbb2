"""A pipeline's step over time: its lanes, its picture, and `shardwise explain` of it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from harness.models.shortened import shortened
from shardwise import documents
from shardwise.answers import pipeline_or_plan, pipeline_timeline, read_plan
from shardwise.answers.explain import explain
from shardwise.answers.pipelines import pipeline_document
from shardwise.cli.explain import explain as explain_command
from shardwise.cli.plan import plan as plan_command
from shardwise.cost.options import Options, quiet
from shardwise.documents.timeline import Bar
from shardwise.errors import BadInput
from shardwise.hardware import Devices, load_hardware
from shardwise.pictures.pipeline import merged, pipeline_svg
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import PipelineSearch

BATCHES = 8
PASSES = ("forward", "backward")


@pytest.fixture(scope="module")
def found() -> Pipeline:
    graph = shortened("gpt2", 4)
    options = Options(micro_batches=(BATCHES,))
    search = PipelineSearch(graph, load_hardware("l4"), Devices.alike(4), options, quiet, ("1f1b",))
    pipeline = search.fastest([4]).pipeline
    assert pipeline is not None
    return pipeline


@pytest.fixture(scope="module")
def answer(found: Pipeline) -> documents.Pipeline:
    return pipeline_document(found, 0.0, 0.0)


@pytest.fixture
def file(answer: documents.Pipeline, tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.json"
    path.write_bytes(msgspec.json.encode(answer))
    return path


def bars_of(document: documents.Pipeline, stage: int) -> list[tuple[str, Bar]]:
    """Returns kind and place of every bar of a stage, by start."""
    assert document.timeline is not msgspec.UNSET
    lanes = document.timeline.stages[stage].lanes
    return sorted(
        ((lane.kind, bar) for lane in lanes for bar in lane.bars), key=lambda one: one[1].start_s
    )


def explained(*arguments: str) -> Result:
    return CliRunner().invoke(explain_command, [*arguments], env={"COLUMNS": "200"})


def test_every_pass_is_a_bar_and_waiting_is_between(answer: documents.Pipeline) -> None:
    step_s = answer.predicted.step_s
    ends = []
    for number, stage in enumerate(answer.stages):
        bars = bars_of(answer, number)
        kinds = [kind for kind, _ in bars]
        assert [kinds.count(kind) for kind in PASSES] == [BATCHES, BATCHES]
        assert kinds[-1] == "update" and kinds.count("update") == 1
        assert all(a[1].end_s <= b[1].start_s + 1e-5 * step_s for a, b in pairwise(bars))
        busy_s = sum(bar.busy_s for _, bar in bars)
        assert 1.0 - busy_s / step_s == pytest.approx(stage.idle, abs=1e-4)
        ends.append(bars[-1][1].end_s)
    assert max(ends) == pytest.approx(step_s, rel=1e-5)


def test_held_memory_reaches_each_stages_peak(answer: documents.Pipeline) -> None:
    assert answer.timeline is not msgspec.UNSET
    for stage, over_time in zip(answer.stages, answer.timeline.stages, strict=True):
        held = over_time.held_bytes
        assert len(held) == pipeline_timeline.STRETCHES
        assert max(held) == pytest.approx(stage.peak_bytes, abs=1.0)
        assert held[-1] <= max(held)
        assert isinstance(stage.kept_bytes, int) and 0 < stage.kept_bytes < stage.peak_bytes
    first = answer.timeline.stages[0].held_bytes
    assert first[0] < max(first) > first[-1]


def test_of_very_many_passes_those_in_the_middle_are_one_bar(
    found: Pipeline, answer: documents.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_timeline, "MOST_BARS", 10)
    fewer = pipeline_document(found, 0.0, 0.0)
    assert fewer.timeline is not msgspec.UNSET and answer.timeline is not msgspec.UNSET
    assert merged(fewer.timeline) and not merged(answer.timeline)
    for number in range(len(answer.stages)):
        some, every = bars_of(fewer, number), bars_of(answer, number)
        assert len(some) == 10
        assert [one for one in some if one[0] == "compute"] == some[4:5]
        assert some[:4] == every[:4] and some[5:] == every[-5:]
        busy_s = [sum(bar.busy_s for _, bar in bars) for bars in (some, every)]
        assert busy_s[0] == pytest.approx(busy_s[1], rel=1e-4)


@pytest.mark.parametrize("suffix", ["svg", "html", "png"])
def test_plan_and_explain_draw_the_step(suffix: str, file: Path, tmp_path: Path) -> None:
    picture = tmp_path / f"step.{suffix}"
    where = ("shipped:gpt2", "--hardware", "l4", "--gpus", "4", "--micro-batches", "8", "--quiet")
    planned = CliRunner().invoke(plan_command, [*where, "--stages", "2", "--plot", str(picture)])
    assert planned.exit_code == 0, planned.output
    assert picture.stat().st_size > 5000
    picture.unlink()
    assert explained(str(file), "--plot", str(picture)).exit_code == 0
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"Backward: " in content


def test_the_pages_chart_has_a_bar_for_each_pass(answer: documents.Pipeline) -> None:
    svg = ElementTree.fromstring(pipeline_svg(answer))
    classes = [one.get("class") for one in svg.iter("rect")]
    assert [classes.count(kind) for kind in PASSES] == [4 * BATCHES, 4 * BATCHES]
    assert len([one for one in svg.iter("polygon") if one.get("class") == "memory"]) == 4
    assert "4 stages" in str(svg.get("aria-label"))


def test_explain_says_what_each_stage_keeps_and_waits(
    answer: documents.Pipeline, file: Path
) -> None:
    told = explain(answer)
    result = explained(str(file))
    assert result.exit_code == 0, result.output
    assert "Stage 0 (wte.embedding to h." in result.stdout
    assert "keeps 4 micro-batches, " in result.stdout and "GiB peak; waits " in result.stdout
    assert told.stages[told.slowest_stage].busy_s == max(one.busy_s for one in told.stages)
    assert re.search(rf"Stage {told.slowest_stage} \(\S+( to \S+)?\) is the slowest", result.stdout)
    assert "groups by time, 24 of" in result.stdout
    assert told.hops_s == pytest.approx(2 * sum(one.hop_s or 0.0 for one in answer.stages))
    for stage, of_stage in zip(answer.stages, told.stages, strict=True):
        assert sum(group.repeats for group in of_stage.groups) == len(stage.groups)
        assert 1.0 - of_stage.busy_s / answer.predicted.step_s == pytest.approx(stage.idle)
    as_json = json.loads(explained(str(file), "--json").stdout)
    read = documents.read(as_json, documents.PipelineExplanation)
    assert read == told


def _without(name: str) -> Any:
    def change(document: dict[str, Any]) -> None:
        del document[name]

    return change


def _no_stages(document: dict[str, Any]) -> None:
    document["stages"] = []


def _far_group(document: dict[str, Any]) -> None:
    document["stages"][1]["groups"][0] = 10**6


def _unknown_kind(document: dict[str, Any]) -> None:
    document["timeline"]["stages"][2]["lanes"][0]["kind"] = "sideways"


def _fewer_lanes(document: dict[str, Any]) -> None:
    document["timeline"]["stages"].pop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without("schedule"), "schedule"),
        (_without("timeline"), "timeline: the pipeline was made by an earlier version"),
        (_no_stages, "stages: no stages"),
        (_far_group, "stages[1].groups[0]: there is no group 1000000"),
        (_unknown_kind, "timeline.stages[2].lanes[0].kind: unknown kind 'sideways'"),
        (_fewer_lanes, "timeline.stages: 3 stages"),
    ],
)
def test_a_bad_document_is_named(change: Any, says: str, file: Path, tmp_path: Path) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    result = explained(str(file), "--plot", str(tmp_path / "step.svg"))
    assert isinstance(result.exception, BadInput)
    assert says in str(result.exception)
    assert not (tmp_path / "step.svg").exists()


def test_a_truncated_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(BadInput, match=r"pipeline\.json: not JSON.*shardwise\.pipeline/1"):
        read_plan(file)


def test_documents_without_the_new_members_are_still_explained(file: Path) -> None:
    document = json.loads(file.read_text())
    del document["timeline"]
    for stage in document["stages"]:
        del stage["kept_bytes"]
    file.write_text(json.dumps(document))
    result = explained(str(file))
    assert result.exit_code == 0, result.output
    assert "; its peak is " in result.stdout


def test_the_library_has_it_where_plans_are() -> None:
    assert pipeline_or_plan.__module__ == "shardwise.answers.pipelines"
