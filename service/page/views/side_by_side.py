"""`/compare`: two answers side by side, and the form that picks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup

from service.handlers import graphs as graph_handlers
from service.handlers import jobs as handlers
from service.page import units
from service.page.inner import read
from service.page.render import in_thread, respond
from service.page.views.job_rows import about, graph_names, rows_of
from service.page.views.piped import figures, piped
from service.questions.pipelines import PIPELINE_SCHEMA
from service.questions.question import INFEASIBLE_SCHEMA
from shardwise import validation
from shardwise.documents.frontier import axes_of
from shardwise.documents.timeline import Timeline
from shardwise.errors import BadInput
from shardwise.peers.document import ALL, OUR_PIPELINES, OURS
from shardwise.pictures.gantt import gantt_svg

MOST = "200"
Strategy = dict[str, Any]

FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("step_s", "Time of a step", units.seconds),
    ("peak_bytes", "Peak of one GPU", units.size),
    ("samples_per_s", "Samples per second", units.count),
    ("tokens_per_s", "Tokens per second", units.count),
    ("compute_s", "Compute", units.seconds),
    ("exposed_s", "Exposed communication", units.seconds),
    ("model_flops_utilisation", "Model flops utilisation", units.percent),
    ("gap", "From the best possible, at most", units.percent),
    ("usd_per_hour", "USD an hour", units.usd),
)
"""Member, name and unit of the figures; numbers of both answers are compared."""

WORDS = (
    ("label", "Parallelism"), ("micro_batches", "Micro-batches"), ("bound_by", "Bound by"),
    ("gpus", "GPUs"),
)  # fmt: skip


async def show(request: Request) -> Response:
    """Returns two answers side by side, `a` and `b` of the query; without them the form alone."""
    given = [request.query_params.get(name, "")[:80] for name in ("a", "b")]
    done = {"limit": MOST, "state": "done"}
    page = await read(request, partial(handlers.get_jobs, kind=None), done)
    graphs = await read(request, graph_handlers.get_graphs, {"limit": MOST})
    names = graph_names(graphs["items"])
    jobs = [await _job(request, one) for one in given if one]
    answers = [await in_thread(request, _answer, job, names) for job in jobs]
    both = len(answers) == 2
    if both:
        _draw(answers)
    return await respond(
        request,
        "compare.html",
        choices=rows_of(page["items"], names),
        given=given,
        answers=answers,
        figures=_figures(*answers) if both else [],
        words=_words(*answers) if both else [],
        differences=_differences(*jobs) if both else [],
    )


def _draw(answers: list[dict[str, Any]]) -> None:
    """Adds the charts of the steps of two plans, with one axis of time."""
    steps = [answer["timeline"] for answer in answers]
    if not all(steps):
        return
    timelines = [validation.convert(step, Timeline) for step in steps]
    across_s = max(one.step_s for one in timelines)
    most_bytes = max(one.peak_bytes for one in timelines)
    for answer, timeline in zip(answers, timelines, strict=True):
        answer["gantt"] = Markup(gantt_svg(timeline, answer["limit_bytes"], across_s, most_bytes))


async def _job(request: Request, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = await read(request, partial(handlers.get_job, job_id=job_id, kind=None))
    if job["state"] != "done":
        raise BadInput(f"{job_id} is {job['state']}", field="a, b", expected="jobs that are done")
    return job


def _answer(job: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Returns a job in a few words, and the strategy that stands for its answer."""
    result = job["result"]
    plan = result.get("plan", result)
    pipeline = result["schema"] == PIPELINE_SCHEMA
    of_kind = _of_pipeline if pipeline else _OF_KIND[job["kind"]]
    strategy = None if result["schema"] == INFEASIBLE_SCHEMA else of_kind(result)
    drawn = job["kind"] in ("plan", "pricing") and not pipeline
    return {
        "job": job,
        "about": about(job, names),
        "which": "the pipeline" if pipeline else _WHICH[job["kind"]],
        "reason": result.get("reason", "nothing fits"),
        "strategy": strategy or {},
        "timeline": plan.get("timeline") if drawn else None,
        "limit_bytes": plan.get("memory_limit_bytes"),
        "gantt": None,
    }


def _of_plan(result: dict[str, Any]) -> Strategy:
    predicted = result["predicted"]
    replayed = predicted.get("replayed_time_s") if result.get("overlap") else None
    exposed = predicted.get("exposed_communication_s")
    return {
        **predicted,
        "step_s": predicted["time_s"] if replayed is None else replayed,
        "peak_bytes": predicted.get("peak_bytes", predicted["memory_bytes"]),
        "exposed_s": exposed,
        "micro_batches": result.get("micro_batches", 1),
        "gpus": _devices(result),
    }


def _of_pipeline(result: dict[str, Any]) -> Strategy:
    return {
        **result["predicted"],
        "gap": result["certificate"].get("epsilon"),
        "label": f"{len(result['stages'])} stages, {result['schedule']}",
        "micro_batches": result["micro_batches"],
        "gpus": _devices(result),
    }


def _of_frontier(result: dict[str, Any]) -> Strategy | None:
    _, time = axes_of(bool(result.get("overlap")))
    pipelines = [{**figures(one), time: one["step_s"]} for one in result.get("pipelines", ())]
    fastest = _fastest([*result["points"], *pipelines], time)
    return _of_point(fastest, time, _devices(result))


def _of_curve(result: dict[str, Any]) -> Strategy | None:
    time = "replayed_time_s" if result.get("overlap") else "time_s"
    point = _fastest([piped(one, time) for one in result["points"]], time)
    return point and _of_point(point, time, point.get("bundle", point["gpus"]))


def _of_quote(result: dict[str, Any]) -> Strategy | None:
    if not result["offers"]:
        return None
    time = "replayed_time_s" if result.get("overlap") else "time_s"
    offer = piped(result["offers"][0], time)
    devices = offer.get("bundle") or f"{offer['gpus']} × {offer.get('gpu_kind', 'GPU')}"
    return _of_point(offer, time, devices)


def _of_comparison(result: dict[str, Any]) -> Strategy | None:
    time = "replayed_time_s" if result.get("overlap") else "time_s"
    ours = [
        one["points"][one["best"]]
        for one in result["methods"]
        if one["method"] in (OURS[ALL], OUR_PIPELINES) and one["best"] is not None
    ]
    return _of_point(_fastest(ours, time), time, result.get("bundle") or _devices(result))


def _of_point(point: dict[str, Any] | None, time: str, devices: object) -> Strategy | None:
    if point is None:
        return None
    step_s = point.get(time) or point["time_s"]
    peak = point.get("replayed_peak_bytes", point.get("peak_bytes"))
    compute = None if point.get("pipeline") else point.get("compute_s")
    exposed = point.get("exposed_communication_s")
    if exposed is None and compute is not None:
        exposed = max(step_s - compute, 0.0)
    return {**point, "step_s": step_s, "peak_bytes": peak, "exposed_s": exposed, "gpus": devices}


def _fastest(points: list[dict[str, Any]], time: str) -> dict[str, Any] | None:
    fitting = [point for point in points if point.get("feasible", True)]
    fastest: dict[str, Any] | None = min(
        fitting, key=lambda point: float(point.get(time) or point["time_s"]), default=None
    )
    return fastest


def _devices(result: dict[str, Any]) -> str:
    return f"{result['gpus']} of {result['hardware']}"


_OF_KIND: Mapping[str, Callable[[dict[str, Any]], Strategy | None]] = {
    "plan": _of_plan,
    "frontier": _of_frontier,
    "curve": _of_curve,
    "quote": _of_quote,
    "compare": _of_comparison,
    "pricing": lambda result: _of_plan(result["plan"]),
}
_WHICH = {
    "plan": "the plan", "frontier": "the fastest that fits", "curve": "the fastest number of GPUs",
    "quote": "the cheapest offer", "pricing": "the configuration as given",
    "compare": "the best that was found",
}  # fmt: skip


def _figures(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the figures that either answer has, with how the second differs."""
    rows = []
    for member, name, unit in FIGURES:
        left, right = a["strategy"].get(member), b["strategy"].get(member)
        if left is not None or right is not None:
            change = right / left - 1.0 if left and right is not None else None
            change = None if member == "gap" else change
            rows.append({"name": name, "a": unit(left), "b": unit(right), "change": change})
    return rows


def _words(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = ((name, a["strategy"].get(key), b["strategy"].get(key)) for key, name in WORDS)
    return [{"name": name, "a": x, "b": y} for name, x, y in pairs if x or y]


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the differences of two questions, options by their names."""
    asked = [{"question": job["kind"], **_flat(job["question"])} for job in (a, b)]
    names = list(dict.fromkeys([*asked[0], *asked[1]]))
    return [
        {
            "name": name.removesuffix("_bytes").replace("_", " "),
            "a": _text(name, asked[0].get(name)),
            "b": _text(name, asked[1].get(name)),
        }
        for name in names
        if asked[0].get(name) != asked[1].get(name)
    ]


def _flat(question: dict[str, Any]) -> dict[str, Any]:
    left_out = ("options", "hardware_id", "point", "configuration")
    members = {name: value for name, value in question.items() if name not in left_out}
    return {**members, **question.get("options", {})}


def _text(name: str, value: Any) -> str:
    if value is None or value == []:
        return units.MISSING
    if name.endswith("_bytes"):
        return units.size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
