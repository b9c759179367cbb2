"""Where a curve or a quote is used, a step takes the time that ranked it: replayed, or the sum."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi")

from harness.page.rendered import rendered
from harness.replayed_frontier import replayed_curve
from service.edge.watch_metrics import STEP, points_of
from service.handlers.allocations import AllocationRequest, parse_allocation
from shardwise import documents
from shardwise.answers import job_from_curve
from shardwise.documents import CurvePoint
from shardwise.documents.quote import OfferRow
from shardwise.errors import BadInput
from shardwise.notebook import Quote

STEPS_S = {True: [1.0, 0.75, 0.5], False: [1.25, 1.5, 1.75]}
ROOT = Path(__file__).parents[3]


def curve(overlap: bool) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(replayed_curve())
    return {**document, "overlap": overlap}


@pytest.mark.parametrize("overlap", [True, False])
def test_watched_curves(overlap: bool) -> None:
    points = points_of(curve(overlap))
    assert [point[STEP] for point in points] == STEPS_S[overlap]
    assert points_of({}) == [], "a curve that is not computed yet"


class Asked:
    """What `parse_allocation` reads of a request."""

    class settings:
        max_json_depth = 10
        max_curve_gpus = 64

    def __init__(self, body: Any) -> None:
        self.body = msgspec.json.encode(body)


def allocation(curve: dict[str, Any]) -> AllocationRequest:
    body = {"gpus": 4, "jobs": [{"curve": curve}]}
    return parse_allocation(Asked(body))  # type: ignore[arg-type]


@pytest.mark.parametrize("overlap", [True, False])
def test_allocations(overlap: bool) -> None:
    given = allocation(curve(overlap)).jobs[0].curve
    assert given is not None
    computed = job_from_curve(msgspec.structs.replace(replayed_curve(), overlap=overlap), "x")
    for points in (given.counts(), computed.points):
        assert [point.time_s for point in points] == STEPS_S[overlap]


def with_pipelines() -> dict[str, Any]:
    """Returns a curve of which one count is faster as a pipeline, and one fits as nothing else."""
    document = curve(overlap=True)
    first, second, third = document["points"]
    pipeline = {
        "id": "sha256:0", "stages": 2, "schedule": "1f1b", "micro_batches": 8, "step_s": 0.25,
        "samples_per_s": 44.0, "peak_bytes": 7, "idle": 0.1, "labels": ["x"], "first_units": ["y"],
    }  # fmt: skip
    unfit = {**third, "feasible": False, "time_s": None, "replayed_time_s": None, "pipeline": {
        **pipeline, "step_s": 0.2, "samples_per_s": None,
    }}  # fmt: skip
    return {**document, "points": [first, {**second, "pipeline": pipeline}, unfit]}


def test_a_faster_pipeline_is_the_step_everywhere() -> None:
    watched = points_of(with_pipelines())
    assert [point[STEP] for point in watched] == [1.0, 0.25, 0.2]
    assert (watched[1]["samples_per_s"], watched[1]["peak_bytes"]) == (44.0, 7)
    given = allocation(with_pipelines()).jobs[0].curve
    assert given is not None
    read = documents.read(with_pipelines(), documents.Curve)
    assert given.counts() == job_from_curve(read, "x").points
    assert [(p.time_s, p.samples_per_s) for p in given.counts()][1:] == [(0.25, 44.0), (0.2, 5.0)]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"step_s": 0.0}, "jobs[0].curve.points[0].pipeline.step_s"),
        ({"step_s": "fast"}, "jobs[0].curve.points[0].pipeline.step_s"),
        ({"step_s": 1.0, "samples_per_s": 1e40}, "jobs[0].curve.points[0].pipeline.samples_per_s"),
        ({}, "jobs[0].curve.points[0].pipeline.step_s"),
        (7, "jobs[0].curve.points[0].pipeline"),
    ],
)
def test_a_malformed_pipeline_is_refused_by_field(wrong: object, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        allocation({"points": [{"gpus": 1, "time_s": 1.0, "pipeline": wrong}]})
    assert refused.value.field == field


def test_a_given_curve_has_its_pipelines_already() -> None:
    body = {"gpus": 4, "jobs": [{"curve": with_pipelines(), "stages": [2]}]}
    with pytest.raises(BadInput) as refused:
        parse_allocation(Asked(body))  # type: ignore[arg-type]
    assert refused.value.field == "jobs[0].stages"


def test_an_allocations_curve_has_the_times_that_rank() -> None:
    points = [{"gpus": 1, "time_s": 1.0}, {"gpus": 2, "feasible": False}]
    given = allocation({"points": points}).jobs[0].curve
    assert given is not None
    assert [(p.gpus, p.time_s) for p in given.counts()] == [(1, 1.0)]
    for missing in ("replayed_time_s", "time_s"):
        with pytest.raises(BadInput) as refused:
            allocation({"points": [{"gpus": 1}], "overlap": missing == "replayed_time_s"})
        assert refused.value.field == f"jobs[0].curve.points[0].{missing}"


def offer(point: CurvePoint) -> OfferRow:
    assert point.time_s is not None and point.replayed_time_s is not None
    return OfferRow(
        provider="me", instance_type="small", instances=point.gpus, gpus=point.gpus,
        gpu_kind="V100", region="here", spot=False, usd_per_hour=1.0, price_as_of="",
        price_source="", stale=False, hardware="x", time_s=point.time_s,
        replayed_time_s=point.replayed_time_s, peak_bytes=1, plan_id="", compute_shares=None,
        confidence="",
    )  # fmt: skip


def quote(overlap: bool) -> Quote:
    return Quote(
        graph="", graph_name="a model", batch_size=1, steps=None, deadline_s=None, budget_usd=None,
        offers=[offer(point) for point in replayed_curve().points], not_offered=[], minimum_gpus=1,
        stale=False, overlap=overlap,
    )  # fmt: skip


@pytest.mark.parametrize("overlap", [True, False])
def test_quotes(overlap: bool) -> None:
    shown = re.findall(r'<td class="n">([\d.]+ m?s)</td>', rendered("quote", quote(overlap)))
    assert shown == [f"{s:.2f} s" if s >= 1 else f"{1e3 * s:.0f} ms" for s in STEPS_S[overlap]]
    cells = re.findall(r"<td>([^<]*)</td><td>[^<]*</td></tr>", quote(overlap)._repr_html_())
    assert [float(cell) for cell in cells] == STEPS_S[overlap]


def test_the_quote_of_an_earlier_release_has_sums() -> None:
    document = quote(True).to_dict()
    del document["overlap"]
    assert documents.read(document, documents.Quote).overlap is False


@pytest.mark.parametrize(("overlap", "best"), [(True, 3), (False, 1)])
def test_train_jobs_of_kubeflow(overlap: bool, best: int) -> None:
    assert _patcher().best(curve(overlap), 0.0)["gpus"] == best


def _patcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "patch_trainjob", ROOT / "deploy/kubeflow/patch_trainjob.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
