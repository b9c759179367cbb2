"""Charts of pipelines with several stages on a rank: a row for each rank, stages named in bars."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from harness.graph_builder import layers
from shardwise.answers import Options, pipeline_timeline
from shardwise.answers.pipelines import pipeline_document, pipeline_or_plan
from shardwise.cost.options import quiet
from shardwise.documents import Pipeline
from shardwise.hardware import Devices, load_hardware
from shardwise.pictures.gantt import BAR, HELD, LANE, LEFT, TOP
from shardwise.pictures.pipeline import pipeline_picture, pipeline_summary, pipeline_svg
from shardwise.search.pipelines.search import PipelineSearch

L4 = load_hardware("l4")
CHAIN = layers(10, 64, 1024)
OPTIONS = Options(micro_batches=(4,))
PLACED = {"zbv": [(0, 3), (1, 2)], "interleaved:2": [(0, 2), (1, 3)], "1f1b": [(0,), (1,)]}
MARK = re.compile(r"\(stage (\d+)\)")


def made(schedule: str) -> Pipeline:
    found = pipeline_or_plan(CHAIN, L4, 2, stages=[2], schedules=[schedule], options=OPTIONS)
    assert isinstance(found, Pipeline)
    return found


@pytest.fixture(scope="module", params=list(PLACED))
def answer(request: pytest.FixtureRequest) -> tuple[Pipeline, list[tuple[int, ...]]]:
    return made(request.param), PLACED[request.param]


def rects(pipeline: Pipeline) -> list[tuple[int, float, float, str]]:
    """Returns of each bar of the page's chart its row, left, right and text."""
    svg = ElementTree.fromstring(pipeline_svg(pipeline))
    bars = []
    for rect in svg.iter("rect"):
        row = int((float(rect.get("y", 0)) - TOP) // (LANE + HELD))
        left = float(rect.get("x", 0))
        right = left + float(rect.get("width", 0))
        bars.append((row, left, right, "".join(rect.itertext())))
    return bars


def test_a_rank_is_a_row_and_bars_name_its_stages(
    answer: tuple[Pipeline, list[tuple[int, ...]]],
) -> None:
    pipeline, placed = answer
    assert pipeline.timeline is not UNSET
    bars = rects(pipeline)
    expected = sum(len(lane.bars) for s in pipeline.timeline.stages for lane in s.lanes)
    assert len(bars) == expected and {row for row, *_ in bars} == {0, 1}
    for row, own in enumerate(placed):
        named = [MARK.search(text) for at, _, _, text in bars if at == row]
        if len(own) == 1:
            assert not any(named)
        else:
            assert {int(match[1]) for match in named if match} == set(own) and all(named)


def test_bars_of_a_row_do_not_overlap(answer: tuple[Pipeline, list[tuple[int, ...]]]) -> None:
    """A device runs one pass at a time."""
    for row in (0, 1):
        spans = sorted((left, right) for at, left, right, _ in rects(answer[0]) if at == row)
        for (_, end), (start, _) in pairwise(spans):
            # Bars are at least 0.6 wide.
            assert start >= end - 0.61
        assert spans[0][0] >= LEFT


def test_rows_say_ranks_stages_waiting_and_peaks() -> None:
    svg = pipeline_svg(made("zbv"))
    labels = [one.text for one in ElementTree.fromstring(svg).iter("text")]
    assert {"Rank 0: stages 0, 3", "Rank 1: stages 1, 2"} <= set(labels)
    assert sum(str(text).startswith("waits ") and "peak " in str(text) for text in labels) == 2
    assert {"0", "1", "2", "3"} <= set(labels)
    assert len(re.findall('class="memory"', svg)) == 2
    plain = [one.text for one in ElementTree.fromstring(pipeline_svg(made("1f1b"))).iter("text")]
    assert any(str(text).startswith("Stage 1, waits ") for text in plain)


def test_of_many_stages_the_row_names_some() -> None:
    pipeline = made("interleaved:5")
    labels = [one.text for one in ElementTree.fromstring(pipeline_svg(pipeline)).iter("text")]
    assert "Rank 0: stages 0, 2, …, 8" in labels
    assert "10 stages on 2 ranks" in pipeline_summary(pipeline)


def test_many_passes_of_each_stage_have_a_strip_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They overlap in time, so they share the height of a bar."""
    monkeypatch.setattr(pipeline_timeline, "MOST_BARS", 5)
    monkeypatch.setattr(pipeline_timeline, "FEWEST", 5)
    search = PipelineSearch(CHAIN, L4, Devices.alike(2), OPTIONS, quiet, ("interleaved:2",))
    found = search.fastest([2]).pipeline
    assert found is not None
    svg = ElementTree.fromstring(pipeline_svg(pipeline_document(found, 0.0, 0.0)))
    merged = [rect for rect in svg.iter("rect") if rect.get("class") == "compute"]
    assert len(merged) == 4 and {float(r.get("height", 0)) for r in merged} == {BAR / 2}
    tops = sorted(float(rect.get("y", 0)) for rect in merged)
    assert tops[1] - tops[0] == pytest.approx(BAR / 2) and len(set(tops)) == 4


def test_the_picture_has_a_row_and_a_line_of_memory_for_each_rank(
    answer: tuple[Pipeline, list[tuple[int, ...]]],
) -> None:
    pipeline, placed = answer
    lanes, memory = pipeline_picture(pipeline).figure.axes
    names = [tick.get_text() for tick in lanes.get_yticklabels()]
    several = len(placed[0]) > 1
    assert len(names) == 2 and all(
        name.startswith("Rank" if several else "stage") for name in names
    )
    drawn = {text.get_text() for text in lanes.texts} & {"0", "1", "2", "3"}
    assert drawn == ({"0", "1", "2", "3"} if several else set())
    assert len(memory.patches) == 2


def test_stages_of_an_earlier_document_are_rows_by_their_first_device() -> None:
    """Documents that say no number of stages a rank are drawn by where stages are."""
    pipeline = replace(made("zbv"), stages_per_rank=UNSET)
    assert {row for row, *_ in rects(pipeline)} == {0, 1}
