"""The collections of answers, such as /v1/plans and /v1/comparisons, and /v1/jobs over all."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.context import Handler, Result
from service.edge.events import job_events
from service.edge.http import call_of, read, write, write_unless_cached
from service.edge.state import state_of
from service.handlers import bulk_curves
from service.handlers import jobs as handlers
from service.handlers.curve_query import get_curve
from service.handlers.plan_export import wanted
from service.openapi import document as doc
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
)
from shardwise.documents.questions import COLLECTIONS


def ask_routes(kind: str, shape: type, ask: Handler) -> APIRouter:
    """Returns the routes of one kind of question: asked, listed, read, watched, cancelled."""
    name = COLLECTIONS[kind]
    router = APIRouter(prefix=f"/v1/{name}", tags=[name])
    parse = handlers.parse_request(shape)

    @router.post("", summary=f"Ask for a {name.removesuffix('s')}", **doc.ask(kind, shape))
    async def post(request: Request) -> Response:
        return await write(request, ask, f"{name}.create", parse=parse)

    if kind == "curve":
        router.add_api_route("", get_curve, methods=["GET"], **doc.get_curve)
        _bulk_route(router)
    else:
        _list_route(router, kind)
    _job_routes(router, kind)
    if kind == "plan":
        _export_route(router)
    return router


def _bulk_route(router: APIRouter) -> None:
    @router.post("/bulk", summary="Ask for many curves", **doc.post_curves)
    async def post_curves(request: Request) -> Response:
        return await write_unless_cached(
            request,
            bulk_curves.known_curves,
            bulk_curves.start_curves,
            "curves.create",
            parse=bulk_curves.parse_curves,
        )


def _export_route(router: APIRouter) -> None:
    @router.get(
        "/{job_id}/export", summary="A plan as a scheduler or a trainer reads it", **doc.export_plan
    )
    async def get_export(request: Request, job_id: str) -> Response:
        def export(result: Result) -> None:
            wanted(request.query_params).export(result)

        handler = partial(handlers.get_job, job_id=job_id, kind="plan")
        return await read(request, handler, finish=export)


def _list_route(router: APIRouter, kind: str | None) -> None:
    @router.get("", summary="The jobs, newest first", **doc.list_jobs(kind))
    async def get_list(request: Request) -> Response:
        return await read(request, partial(handlers.get_jobs, kind=kind))


def _job_routes(router: APIRouter, kind: str | None) -> None:
    @router.get("/{job_id}", summary="One job, with its result when done", **doc.get_job(kind))
    async def get(request: Request, job_id: str) -> Response:
        return await read(request, partial(handlers.get_job, job_id=job_id, kind=kind))

    @router.get("/{job_id}/events", summary="Progress as it comes", **doc.job_events(kind))
    async def events(request: Request, job_id: str) -> Response:
        return await job_events(state_of(request), call_of(request), job_id, kind)

    @router.delete("/{job_id}", summary="Cancel a job", **doc.cancel_job(kind))
    async def delete(request: Request, job_id: str) -> Response:
        return await write(
            request, partial(handlers.remove_job, job_id=job_id, kind=kind), "jobs.cancel"
        )


def all_jobs() -> APIRouter:
    """Returns the routes of /v1/jobs."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    _list_route(router, None)
    _job_routes(router, None)
    return router


ROUTERS = (
    ask_routes("frontier", FrontierRequest, handlers.ask_frontier),
    ask_routes("curve", CurveRequest, handlers.ask_curve),
    ask_routes("plan", PlanRequest, handlers.ask_plan),
    ask_routes("pricing", PricingRequest, handlers.ask_pricing),
    ask_routes("quote", QuoteRequest, handlers.ask_quote),
    ask_routes("compare", CompareRequest, handlers.ask_comparison),
    all_jobs(),
)
