"""`/jobs`: the list; one job with its progress and then its answer; cancelling."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.edge.events import job_events
from service.edge.state import state_of
from service.handlers import graphs as graph_handlers
from service.handlers import jobs as handlers
from service.page.inner import as_json, page_call, read, send
from service.page.render import in_thread, redirect, respond
from service.page.views.answers import CONTEXTS
from service.page.views.job_rows import about, choices, form_address, graph_names, rows_of
from service.questions.question import INFEASIBLE_SCHEMA

PAGE = "50"


async def show_all(request: Request) -> Response:
    """Returns the jobs, newest first.

    `part=table` gives the table alone, to be put in its place.
    """
    query = {
        name: value for name in ("cursor", "state") if (value := request.query_params.get(name))
    }
    page = await read(request, partial(handlers.get_jobs, kind=None), {"limit": PAGE, **query})
    template = "jobs_table.html" if request.query_params.get("part") == "table" else "jobs.html"
    names = await _graph_names(request)
    return await respond(
        request,
        template,
        jobs=rows_of(page["items"], names),
        next=page["next"],
        state=query.get("state", ""),
    )


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
        return await respond(request, "job.html", **shared)
    result = job.pop("result")
    if result["schema"] == INFEASIBLE_SCHEMA:
        return await respond(request, "infeasible.html", result=result, **shared)
    template, prepare = CONTEXTS[job["kind"]]
    context = await in_thread(request, prepare, result)
    return await respond(request, template, result=result, **context, **shared)


async def events(request: Request, job_id: str) -> Response:
    """Returns the job's events, for the signed-in user."""
    return await job_events(state_of(request), page_call(request), job_id, None)


async def document(request: Request, job_id: str) -> Response:
    """Returns the answer as the JSON document of the HTTP calls."""
    handler = partial(_result, job_id=job_id)
    return await as_json(request, handler)


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
    page = await read(request, graph_handlers.get_graphs, {"limit": "200"})
    return graph_names(page["items"])
