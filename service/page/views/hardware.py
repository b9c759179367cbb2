"""`/hardware`: built-in profiles and uploaded ones."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response

from service.handlers import hardware as handlers
from service.page.forms import file_of, read_form
from service.page.inner import read, send
from service.page.render import redirect, respond
from service.problems import Problem, problem_of
from shardwise.errors import ShardwiseError

PAGE = "200"


async def show(request: Request) -> Response:
    """The list, with the form to upload."""
    return await _list(request)


async def take(request: Request) -> Response:
    """Upload a profile. The list again, with the reason, when it is refused."""
    form = await read_form(request)
    try:
        chosen = await file_of(form, "file")
        if chosen is None:
            raise Problem("invalid", "file: no file was chosen", field="file")
        await send(
            request,
            handlers.post_hardware,
            "hardware.create",
            body=chosen[1],
            content_type="application/json",
            parse=handlers.parse_hardware,
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status not in (400, 413, 422, 429):
            raise
        return await _list(request, problem)
    return redirect("/hardware")


async def delete(request: Request, hardware_id: str) -> Response:
    """Forget an uploaded profile."""
    handler = partial(handlers.remove_hardware, hardware_id=hardware_id)
    await send(request, handler, "hardware.delete")
    return redirect("/hardware")


async def _list(request: Request, problem: Problem | None = None) -> Response:
    found = await read(request, handlers.get_hardware_list, {"limit": PAGE})
    return await respond(
        request,
        "hardware.html",
        status=200 if problem is None else problem.status,
        own=found["items"],
        builtin=found["builtin"],
        problem=problem,
    )
