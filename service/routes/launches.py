"""/v1/launches."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.events import launch_events
from service.edge.http import call_of, read, write
from service.edge.state import state_of
from service.handlers import held_runs
from service.handlers import launches as handlers
from service.handlers.agents import see_time
from service.openapi import launch_openapi as doc

router = APIRouter(prefix="/v1/launches", tags=["launches"])


@router.post("", **doc.post_launch)
async def post_launch(request: Request) -> Response:
    """Run a plan, or measure, on agents. It waits until all of them are free."""
    parse = handlers.parse_launch
    return await write(request, handlers.post_launch, "launches.create", parse=parse)


@router.get("", **doc.list_launches)
async def get_launches(request: Request) -> Response:
    """The launches, newest first."""
    return await read(request, handlers.get_launches, before=see_time)


@router.get("/{launch_id}", **doc.get_launch)
async def get_launch(request: Request, launch_id: str) -> Response:
    """One launch: its state and why, its ranks, what it measured."""
    handler = partial(handlers.get_launch, launch_id=launch_id)
    return await read(request, handler, before=see_time)


@router.delete("/{launch_id}", **doc.delete_launch)
async def delete_launch(request: Request, launch_id: str) -> Response:
    """Stop a launch; an ended one stays as it is, or is deleted with `forget=true`."""
    handler = partial(handlers.remove_launch, launch_id=launch_id)
    return await write(request, handler, "launches.stop")


@router.post("/{launch_id}/runs/{run_id}/accept", **doc.judge_run)
async def accept_run(request: Request, launch_id: str, run_id: str) -> Response:
    """Count a run that is held: it enters accuracy, alerts and refits."""
    handler = partial(held_runs.accept_run, launch_id=launch_id, run_id=run_id)
    return await write(request, handler, "runs.accept", "admin")


@router.post("/{launch_id}/runs/{run_id}/reject", **doc.judge_run)
async def reject_run(request: Request, launch_id: str, run_id: str) -> Response:
    """Leave out a run that is held, for good or until it is accepted."""
    handler = partial(held_runs.reject_run, launch_id=launch_id, run_id=run_id)
    return await write(request, handler, "runs.reject", "admin")


@router.get("/{launch_id}/logs", **doc.get_logs)
async def get_logs(request: Request, launch_id: str) -> Response:
    """Lines of the launch's output."""
    return await read(request, partial(handlers.get_logs, launch_id=launch_id))


@router.get("/{launch_id}/events", **doc.launch_events)
async def events(request: Request, launch_id: str) -> Response:
    """Its document whenever it changes, to its end."""
    return await launch_events(state_of(request), call_of(request), launch_id)
