"""From a point of a frontier, a curve or a quote to its plan.

The plan of a frontier's point is requested by its id: the same search finds it again. A count of a
curve and an offer of a quote gave the shortest time within the memory, so that is asked again; of a
pipeline with its number of stages, its schedule and its micro-batches. The pipelines of a frontier
are numbered after its points, and all but the fastest are asked for within their own peak.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem, not_found
from service.edge.context import RequestContext, Result
from service.handlers.jobs import job_answer, limits_of
from service.page.forms import read_form, texts
from service.page.inner import send
from service.page.render import redirect
from service.page.views.piped import questions
from service.questions.question import Question, plan_question
from service.store.jobs import find_job
from service.store.question_blobs import whole_question
from service.store.results import result_of
from service.store.tables import Job
from shardwise import validation
from shardwise.answers.combined_offers import profile_of_row
from shardwise.documents import PlanRequest
from shardwise.documents.quote import OfferRow
from shardwise.errors import BadInput
from shardwise.hardware import Hardware, Offer, hardware_from_document


async def take(request: Request, job_id: str) -> Response:
    """Asks for the plan of a point. Redirects to its page."""
    point = texts(await read_form(request)).get("point", "")
    if not (point.isascii() and point.isdigit() and len(point) < 7):
        raise BadInput(f"got {point[:40]!r}", field="point", expected="the number of a point")
    handler = partial(_ask, job_id=job_id, point=int(point))
    result = await send(request, handler, "plans.create")
    return redirect(f"/jobs/{result.document['id']}")


def _ask(context: RequestContext, job_id: str, point: int) -> Result:
    job = find_job(context.session, context.tenant, job_id[:80])
    stored = result_of(context.session, context.tenant, job.content_id)
    points = _points(job.kind, msgspec.json.decode(stored.content)) if stored else []
    if point >= len(points):
        raise not_found("point", f"{point} of {job_id[:80]}")
    return job_answer(context, _question(context, job, points[point]))


def _points(kind: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the points of an answer in the order of their numbers."""
    if kind == "frontier":
        pipelines = result.get("pipelines", [])
        last = len(pipelines) - 1
        of_pipelines = [
            {"pipeline": one, "limit_bytes": None if i == last else one["peak_bytes"] + 1}
            for i, one in enumerate(pipelines)
        ]
        return [*result["points"], *of_pipelines]
    return [*result.get({"curve": "points", "quote": "offers"}.get(kind, ""), [])]


def _question(context: RequestContext, job: Job, point: dict[str, Any]) -> Question:
    asked = whole_question(context.session, job)
    pipeline = point.get("pipeline")
    if pipeline is None and point.get("feasible") is False and job.kind == "curve":
        raise Problem("invalid", f"{point['gpus']} GPUs: {point.get('reason', 'nothing fits')}")
    gpus, hardware = devices_of_point(job.kind, asked, point)
    of_point: dict[str, Any] = {"options": asked["options"]}
    if pipeline is not None:
        of_point = questions(pipeline, asked["options"], point.get("limit_bytes"))
    elif job.kind == "frontier":
        of_point["point"] = point["plan_id"]
    return plan_question(
        PlanRequest(job.graph_id, "", gpus, **of_point),
        job.graph_id,
        hardware,
        limits_of(context),
    )


def devices_of_point(
    kind: str, asked: dict[str, Any], point: dict[str, Any]
) -> tuple[int | str, Hardware]:
    """Returns on which devices a point of an answer is, and their profile."""
    offered = kind == "quote" and "hardware" not in asked
    hardware = _offered(asked, point) if offered else hardware_from_document(asked["hardware"])
    if kind == "frontier":
        return asked["gpus"], hardware
    # Devices that stay idle are in no plan.
    return point.get("bundle", point["gpus"] - point.get("idle", 0)), hardware


def _offered(asked: dict[str, Any], row: dict[str, Any]) -> Hardware:
    """Returns the profile of an offer's instances, of several kinds together that of all."""
    offers = [validation.convert(document, Offer) for document in asked["offers"]]
    if "parts" in row:
        return profile_of_row(offers, validation.convert(row, OfferRow))
    names = ("provider", "instance_type", "region", "spot", "hardware")
    for offer in offers:
        if all(getattr(offer, name) == row[name] for name in names):
            return offer.profile()
    raise not_found("offer", f"{row['provider']} {row['instance_type']}")
