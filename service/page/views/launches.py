"""`/launches`: the list; one launch with its agents, output and measurements; stopping."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request, Response

from service.cluster.gangs import LAUNCH_ACTIVE, LAUNCH_STATES
from service.edge.events import launch_events
from service.edge.state import state_of
from service.handlers import held_runs
from service.handlers import launches as handlers
from service.handlers.agents import see_time
from service.page.inner import as_json, page_call, read, read_and_rights, send
from service.page.render import redirect, respond
from service.page.units import short
from service.page.views.measured import compared

PAGE = "50"
LINES = 200
"""Lines of output on a page."""


async def show_all(request: Request) -> Response:
    """Returns the launches, newest first.

    `part=table` gives the table alone, to be put in its place.
    """
    query = {
        name: value for name in ("cursor", "state") if (value := request.query_params.get(name))
    }
    page, rights = await read_and_rights(
        request, handlers.get_launches, {"limit": PAGE, **query}, see_time
    )
    part = request.query_params.get("part") == "table"
    return await respond(
        request,
        "launches_table.html" if part else "launches.html",
        launches=[row_of(launch) for launch in page["items"]],
        next=page["next"],
        state=query.get("state", ""),
        states=LAUNCH_STATES,
        rights=rights,
    )


async def show(request: Request, launch_id: str) -> Response:
    """Returns one launch; `part=live` gives what changes while it runs, without its output.

    Without `after` or `rank` the newest lines are shown, else those after a number.
    """
    handler = partial(handlers.get_launch, launch_id=launch_id)
    launch, rights = await read_and_rights(request, handler, before=see_time)
    shared: dict[str, Any] = {
        "launch": row_of(launch),
        "runs": [compared(run) for run in launch["runs"]],
        "rights": rights,
    }
    if request.query_params.get("part") == "live":
        return await respond(request, "launch_live.html", **shared)
    asked = {name: value for name in ("after", "rank") if (value := request.query_params.get(name))}
    newest = max(launch["log"]["lines"] - LINES, 0)
    query = asked or {"after": str(newest)}
    logs = partial(handlers.get_logs, launch_id=launch_id)
    log = await read(request, logs, {"limit": str(LINES), **query})
    # A full page does not mean that more follow; after the newest lines nothing follows.
    log["more"] = bool(asked) and log["more"] and log["next"] < launch["log"]["lines"]
    first = log["lines"][0]["number"] if log["lines"] else 1
    return await respond(
        request,
        "launch.html",
        log=log,
        asked=bool(asked),
        rank=query.get("rank", ""),
        ranks=_ranks(launch),
        before=max(first - 1 - LINES, 0) if first > 1 else None,
        **shared,
    )


async def events(request: Request, launch_id: str) -> Response:
    """Returns the launch's events, for the signed-in user."""
    return await launch_events(state_of(request), page_call(request), launch_id)


async def lines(request: Request, launch_id: str) -> Response:
    """Returns lines of the launch's output as JSON, for scripts that follow it."""
    query = {
        name: value
        for name in ("after", "rank", "limit")
        if (value := request.query_params.get(name))
    }
    return await as_json(request, partial(handlers.get_logs, launch_id=launch_id), query)


async def stop(request: Request, launch_id: str) -> Response:
    """Stops a launch."""
    handler = partial(handlers.remove_launch, launch_id=launch_id)
    await send(request, handler, "launches.stop")
    return redirect(f"/launches/{launch_id}")


async def accept(request: Request, launch_id: str, run_id: str) -> Response:
    """Counts a run that is held."""
    handler = partial(held_runs.accept_run, launch_id=launch_id, run_id=run_id)
    await send(request, handler, "runs.accept", "admin")
    return redirect(f"/launches/{launch_id}")


async def reject(request: Request, launch_id: str, run_id: str) -> Response:
    """Leaves out a run that is held."""
    handler = partial(held_runs.reject_run, launch_id=launch_id, run_id=run_id)
    await send(request, handler, "runs.reject", "admin")
    return redirect(f"/launches/{launch_id}")


def row_of(launch: dict[str, Any]) -> dict[str, Any]:
    """Returns a launch as lists show it."""
    return {**launch, "about": _about(launch), "active": launch["state"] in LAUNCH_ACTIVE}


def _about(launch: dict[str, Any]) -> str:
    """Returns a launch's program and hosts in a few words."""
    request, summary = launch["request"], launch["summary"]
    agents = request["agents"] if isinstance(request["agents"], int) else len(request["agents"])
    ranks = request["ranks_per_agent"]
    where = f"{agents} agent{'' if agents == 1 else 's'} × {ranks} rank{'' if ranks == 1 else 's'}"
    if launch["kind"] == "measure":
        return f"{request.get('hardware') or 'hardware'} on {where}"
    graph = summary.get("graph_name") or short(summary.get("graph", ""), 8)
    return f"{graph or request['entry_point']} on {where}"


def _ranks(launch: dict[str, Any]) -> int:
    """Returns the number of ranks, each with its own output."""
    return sum(part["ranks"] for part in launch["assignments"])
