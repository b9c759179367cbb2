"""`/graphs`: uploaded graphs."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.edge.state import state_of
from service.handlers import graphs as handlers
from service.page.forms import file_of, read_form, texts
from service.page.inner import listed, read, send
from service.page.render import redirect, respond
from shardwise.capture.shipped import shipped_names
from shardwise.errors import ShardwiseError

PAGE = "100"


async def show(request: Request) -> Response:
    """Returns the list, with the form to upload."""
    return await _list(request)


async def take(request: Request) -> Response:
    """Uploads a graph; the page to ask about it follows, or the list with the reason."""
    form = await read_form(request)
    values = texts(form)
    try:
        chosen = await file_of(form, "file")
        if chosen is None:
            raise Problem("invalid", "file: no file was chosen", field="file")
        filename, content = chosen
        onnx = filename.lower().endswith(".onnx")
        sizes = ("batch", "seq") if onnx else ()
        query = {name: values[name] for name in sizes if name in values}
        result = await send(
            request,
            handlers.post_graph,
            "graphs.create",
            body=content,
            content_type="application/onnx" if onnx else "application/json",
            query={**query, "name": filename[:200]},
            parse=handlers.parse_upload,
            upload=True,
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status not in (400, 413, 415, 422, 429):
            raise
        return await _list(request, problem)
    return redirect(f"/?graph={result.document['id']}&new={result.status}")


async def delete(request: Request, graph_id: str) -> Response:
    """Deletes a graph with all answers about it."""
    await send(request, partial(handlers.remove_graph, graph_id=graph_id), "graphs.delete")
    return redirect("/graphs")


async def _list(request: Request, problem: Problem | None = None) -> Response:
    page = await read(request, handlers.get_graphs, listed(request, PAGE))
    return await respond(
        request,
        "graphs.html",
        status=200 if problem is None else problem.status,
        graphs=page["items"],
        next=page["next"],
        shipped=shipped_names(),
        presets=state_of(request).presets.names(),
        problem=problem,
    )
