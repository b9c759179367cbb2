"""`/hardware`: built-in and own profiles; one of them in detail; refitting it."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.handlers import accuracy as accuracy_handlers
from service.handlers import hardware as handlers
from service.page.forms import file_of, read_form
from service.page.inner import as_json, read, read_and_rights, send
from service.page.render import in_thread, redirect, respond
from service.page.views.profile import profile_context
from shardwise.errors import ShardwiseError

PAGE = "200"


async def show(request: Request) -> Response:
    """Returns the list, with the form to upload."""
    return await _list(request)


async def take(request: Request) -> Response:
    """Uploads a profile. Returns the list, with the reason if it is refused."""
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


async def show_one(request: Request, hardware_id: str) -> Response:
    """Returns a profile: its facts, measurements, versions, and the accuracy of predictions."""
    return await _one(request, hardware_id)


async def document(request: Request, hardware_id: str) -> Response:
    """Returns the profile as the JSON document of the HTTP calls."""
    response = await as_json(request, partial(handlers.get_hardware, spec=hardware_id))
    response.headers["Content-Disposition"] = 'attachment; filename="hardware.json"'
    return response


async def refit(request: Request, hardware_id: str) -> Response:
    """Fits a new version to the runs on this profile; its page follows, or why there is none."""
    try:
        result = await send(
            request,
            partial(accuracy_handlers.post_refit, hardware_id=hardware_id),
            "hardware.refit",
            parse=accuracy_handlers.parse_refit,
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status != 422:
            raise
        return await _one(request, hardware_id, problem)
    return redirect(f"/hardware/{result.document['id']}")


async def delete(request: Request, hardware_id: str) -> Response:
    """Deletes an uploaded profile."""
    handler = partial(handlers.remove_hardware, hardware_id=hardware_id)
    await send(request, handler, "hardware.delete")
    return redirect("/hardware")


async def _one(request: Request, hardware_id: str, problem: Problem | None = None) -> Response:
    handler = partial(handlers.get_hardware, spec=hardware_id)
    profile, rights = await read_and_rights(request, handler)
    context = await in_thread(request, profile_context, profile)
    versions = partial(accuracy_handlers.get_versions, hardware_id=hardware_id)
    known = await read(request, versions, {"limit": PAGE})
    query = {"hardware": context["id"]}
    return await respond(
        request,
        "profile.html",
        status=200 if problem is None else problem.status,
        **context,
        spec=hardware_id,
        versions=[*known["items"], *known.get("builtin", [])],
        groups=(await read(request, accuracy_handlers.get_accuracy, query))["items"],
        rights=rights,
        problem=problem,
    )


async def _list(request: Request, problem: Problem | None = None) -> Response:
    page = await read(request, handlers.get_hardware_list, {"limit": PAGE})
    return await respond(
        request,
        "hardware.html",
        status=200 if problem is None else problem.status,
        own=page["items"],
        builtin=page["builtin"],
        problem=problem,
    )
