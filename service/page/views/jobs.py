"""`/jobs`: the list; one job with its progress and then its answer; cancelling."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.edge.events import job_events
from service.edge.state import state_of
from service.handlers import graphs as graph_handlers
from service.handlers import hardware as hardware_handlers
from service.handlers import jobs as handlers
from service.page.elsewhere import elsewhere, file_of_question, server_of
from service.page.inner import as_json, page_call, read, send
from service.page.render import in_thread, redirect, respond
from service.page.views.answers import growing_curve, shown_as
from service.page.views.job_rows import (
    ACTIVE,
    about,
    choices,
    form_address,
    graph_names,
    rows_of,
    waiting,
)
from service.page.views.nothing_fits import attempts
from service.questions.question import INFEASIBLE_SCHEMA
from shardwise.documents.questions import COLLECTIONS

PAGE = "50"
MOST = "200"
FILTERS = ("state", "kind", "graph", "hardware", "text")


async def show_all(request: Request) -> Response:
    """Returns the jobs, newest first.

    `part=table` gives the table alone, to be put in its place.
    """
    wanted = {name: value for name in FILTERS if (value := request.query_params.get(name, ""))}
    cursor = request.query_params.get("cursor")
    query = {"limit": PAGE, **wanted, **({"cursor": cursor} if cursor else {})}
    page = await read(request, partial(handlers.get_jobs, kind=None), query)
    names = await _graph_names(request)
    shared: dict[str, Any] = {"jobs": rows_of(page["items"], names), "wanted": wanted}
    if request.query_params.get("part") == "table":
        return await respond(request, "jobs_table.html", **shared)
    own = await read(request, hardware_handlers.get_hardware_list, {"limit": MOST})
    profiles = {profile["name"] for profile in (*own["items"], *own["builtin"])}
    return await respond(
        request,
        "jobs.html",
        **shared,
        next=page["next"],
        address=partial(_address, wanted),
        kinds=[(kind, kind) for kind in COLLECTIONS],
        graphs=list(names.items()),
        profiles=[(name, name) for name in sorted(profiles)],
    )


def _address(wanted: dict[str, str], **other: str) -> str:
    """Returns the list's address with these filters, some replaced by `other`."""
    left = {name: value for name, value in {**wanted, **other}.items() if value}
    return f"/jobs?{urlencode(left)}" if left else "/jobs"


async def show(request: Request, job_id: str) -> Response:
    """Returns one job: its progress while it is computed, then its answer or the error."""
    job = await read(request, partial(handlers.get_job, job_id=job_id, kind=None))
    names = await _graph_names(request, job["question"]["graph"])
    shared = {
        "job": job,
        "about": about(job, names),
        "again": form_address(job),
        "choices": choices(job),
    }
    if job["state"] != "done":
        if job["kind"] == "curve" and job["state"] in ACTIVE:
            shared["growing"] = await in_thread(request, growing_curve, job)
        return await respond(request, "job.html", waiting=waiting(job), **shared)
    result = job.pop("result")
    ask = partial(elsewhere, job_id=job_id, server=server_of(request))
    shared["elsewhere"] = await read(request, ask)
    if result["schema"] == INFEASIBLE_SCHEMA:
        return await respond(
            request, "infeasible.html", result=result, attempts=attempts(job), **shared
        )
    template, prepare = shown_as(job["kind"], result)
    context = await in_thread(request, prepare, result)
    return await respond(request, template, result=result, **context, **shared)


async def events(request: Request, job_id: str) -> Response:
    """Returns the job's events, for the signed-in user."""
    return await job_events(state_of(request), page_call(request), job_id, None)


async def document(request: Request, job_id: str) -> Response:
    """Returns the answer as the JSON document of the HTTP calls."""
    handler = partial(_result, job_id=job_id)
    return await as_json(request, handler)


async def file(request: Request, job_id: str, name: str) -> Response:
    """Returns a file that the question needs when it is asked elsewhere."""
    return await as_json(request, partial(file_of_question, job_id=job_id, name=name))


async def cancel(request: Request, job_id: str) -> Response:
    """Cancels a job."""
    await send(request, partial(handlers.remove_job, job_id=job_id, kind=None), "jobs.cancel")
    return redirect(f"/jobs/{job_id}")


def _result(context: RequestContext, job_id: str) -> Result:
    result = handlers.get_job(context, job_id, None)
    raw: Any = result.document.get("result")
    if raw is None:
        raise Problem("not-found", f"{job_id[:80]} has no answer")
    name = f"{result.document['kind']}-{job_id.rpartition('_')[2][:8]}.json"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "private, no-cache",
    }
    return Result(content=bytes(msgspec.json.encode(raw)), headers=headers)


async def _graph_names(request: Request, graph_id: str | None = None) -> dict[str, str]:
    """Returns names of graphs by id: of this one, or of the newest."""
    if graph_id is not None:
        try:
            graph = await read(request, partial(graph_handlers.get_graph, graph_id=graph_id))
        except Problem:
            return {}
        return {graph_id: graph["name"]}
    page = await read(request, graph_handlers.get_graphs, {"limit": MOST})
    return graph_names(page["items"])
