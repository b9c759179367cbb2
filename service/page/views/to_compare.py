"""From an answer to what practitioners and other systems use for the same job on the same devices.

A curve stands for its fastest number of GPUs, a quote for its first offer. Pipelines are compared
where the question had them. What a comparison does not take is left out of the options: rules, the
method `tofu`, and by sums several numbers of micro-batches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
from fastapi import Request, Response

from service.base.problems import not_found
from service.edge.context import RequestContext, Result
from service.handlers.jobs import job_answer, limits_of
from service.page.forms import read_form
from service.page.inner import send
from service.page.render import redirect
from service.page.views.piped import piped
from service.page.views.points import devices_of_point
from service.questions.question import Question, compare_question
from service.store.jobs import find_job
from service.store.question_blobs import whole_question
from service.store.results import result_of
from service.store.tables import Job
from shardwise.cost.options import TOFU
from shardwise.documents import CompareRequest
from shardwise.documents.frontier import axes_of
from shardwise.hardware import hardware_from_document

COMPARED = ("frontier", "curve", "plan", "pricing", "quote")
"""Kinds of answers that lead to a comparison."""


async def take(request: Request, job_id: str) -> Response:
    """Asks for the comparison of an answer. Redirects to its page."""
    await read_form(request)
    result = await send(request, partial(_ask, job_id=job_id), "comparisons.create")
    return redirect(f"/jobs/{result.document['id']}")


def _ask(context: RequestContext, job_id: str) -> Result:
    job = find_job(context.session, context.tenant, job_id[:80])
    return job_answer(context, _question(context, job))


def _question(context: RequestContext, job: Job) -> Question:
    asked = whole_question(context.session, job)
    if job.kind in ("curve", "quote"):
        stored = result_of(context.session, context.tenant, job.content_id)
        point = None if stored is None else _stands(job.kind, msgspec.json.decode(stored.content))
        if point is None:
            raise not_found("point that fits", job.id)
        gpus, hardware = devices_of_point(job.kind, asked, point)
    elif job.kind in COMPARED:
        gpus, hardware = asked["gpus"], hardware_from_document(asked["hardware"])
    else:
        raise not_found("comparison", job.id)
    options = comparable(asked["options"])
    stages = _stages(asked.get("stages"), gpus)
    schedules = asked.get("schedules", []) if stages else []
    ask = CompareRequest(
        job.graph_id, "", gpus, options=options, stages=stages, schedules=schedules
    )
    return compare_question(ask, job.graph_id, hardware, limits_of(context))


def _stages(stages: list[int] | Literal["auto"] | None, gpus: int | str) -> Any:
    """Returns the numbers of stages of a question that these devices have too; None for none, and
    on devices of several kinds, where pipelines are not compared."""
    if not isinstance(gpus, int):
        return None
    if not isinstance(stages, list):
        return stages
    return [count for count in stages if gpus % count == 0] or None


def _stands(kind: str, result: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the point that stands for an answer of several; None where nothing fits."""
    if kind == "quote":
        return next(iter(result.get("offers", ())), None)
    _, time = axes_of(bool(result.get("overlap")))
    points = [piped(point, time) for point in result.get("points", ())]
    fitting = [point for point in points if point["feasible"]]
    return min(fitting, key=lambda point: float(point.get(time) or point["time_s"]), default=None)


def comparable(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a question that a comparison takes too."""
    left_out = {"pins"}
    if options.get("method") == TOFU:
        left_out.add("method")
    if not options.get("overlap", True) and len(options.get("micro_batches", ())) > 1:
        left_out.add("micro_batches")
    return {name: value for name, value in options.items() if name not in left_out}
