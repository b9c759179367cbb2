"""Which past jobs are like a new one, and what their times say of it."""

from __future__ import annotations

from typing import Any

from pytest import approx

from service.questions.job_size import LIKENESS_OF_START, Size, corrected_s, likeness, size_of
from service.questions.question import Limits, curve_question, plan_question
from shardwise.documents import CurveRequest, PlanRequest
from shardwise.hardware import load_hardware

GRAPH = {"operators": 100, "batch_size": 64, "most_dims": 2}
LIMITS = Limits(1024, 1024)


def plan(gpus: int = 8, hardware: str = "dgx-h100", graph: str = "g", **options: Any) -> Size:
    asked = PlanRequest(graph, hardware, gpus, options=options)
    return size_of(plan_question(asked, graph, load_hardware(hardware), LIMITS).document, GRAPH)


def test_likeness_is_of_what_a_search_is_asked() -> None:
    assert likeness(plan(), plan()) == 1.0
    assert likeness(plan(), plan(16)) > likeness(plan(), plan(64)) > LIKENESS_OF_START
    assert likeness(plan(), plan(graph="other")) > 0.5
    assert likeness(plan(), plan(hardware="dgx-a100-80gb")) > 0.5
    for options in (
        {"epsilon": 0.0},
        {"method": "tofu"},
        {"step": {"state": "8bit"}},
        {"overlap": False},
        {"micro_batches": [1]},
    ):
        assert likeness(plan(), plan(**options)) < 0.2, options
        assert likeness(plan(8, **options), plan(16, **options)) > 0.75, options
    assert likeness(plan(epsilon=0.0), plan(epsilon=1e-9)) == 1.0


def test_counts_of_a_curve_are_a_size() -> None:
    sizes = [
        size_of(
            curve_question(
                CurveRequest("g", "dgx-h100", count), "g", load_hardware("dgx-h100"), LIMITS
            ).document,
            GRAPH,
        )
        for count in (8, 12, 512)
    ]
    assert likeness(sizes[0], sizes[1]) > 0.9
    assert likeness(sizes[0], sizes[2]) < 0.05


def test_jobs_of_like_size_count_and_others_do_not() -> None:
    like, unlike = plan(), plan(epsilon=0.0, method="elimination")
    assert corrected_s(8.0, like, []) == 8.0
    assert corrected_s(8.0, like, [(like, 8.0, 100.0)]) == approx(100.0, rel=0.15)
    quick = [(like, 8.0, 8.0)] * 50
    slow = [(unlike, 8.0, 160.0)]
    assert corrected_s(8.0, unlike, quick + slow) > 120.0
    assert corrected_s(8.0, like, quick + slow) < 9.0
    larger = [(plan(64), 20.0, 2000.0)] * 50
    assert corrected_s(8.0, like, [*larger, (like, 8.0, 8.0)]) < 40.0, "the nearest counts most"
    assert corrected_s(8.0, plan(48), [*quick, *larger]) > 200.0
