"""`/agents`: hosts that run launches: listed, shown, drained, removed; tokens to enrol them."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.handlers import agents as handlers
from service.page.forms import number, read_form, texts
from service.page.inner import listed, read_and_rights, send
from service.page.render import redirect, respond
from service.page.views.inventory import devices_in_short, inventory_context
from shardwise.errors import ShardwiseError

PAGE = "50"


async def show_all(request: Request) -> Response:
    """Returns the agents, newest first.

    `part=table` gives the table alone, to be put in its place.
    """
    return await _list(request)


async def show(request: Request, agent_id: str) -> Response:
    """Returns one agent: its state, what it has, what it runs."""
    return await _one(request, agent_id)


async def make_token(request: Request) -> Response:
    """Returns a token to enrol an agent with, shown on this page and never again."""
    values = texts(await read_form(request, "admin"))
    try:
        body: dict[str, Any] = {"name": values.get("name", "")}
        if "expires_h" in values:
            body["expires_s"] = 3600 * number(values["expires_h"], "expires_h")
        result = await send(
            request,
            handlers.post_token,
            "agents.token",
            "admin",
            body=msgspec.json.encode(body),
            content_type="application/json",
            parse=handlers.parse_token,
            secret=True,
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status != 422:
            raise
        return await _list(request, problem, values)
    return await respond(request, "agent_token.html", made=result.document)


async def drain(request: Request, agent_id: str) -> Response:
    """Gives the agent no more work; the form may name a reason."""
    return await _set_drained(request, agent_id, True)


async def undrain(request: Request, agent_id: str) -> Response:
    """Gives the agent work again."""
    return await _set_drained(request, agent_id, False)


async def remove(request: Request, agent_id: str) -> Response:
    """Removes the agent: its key is revoked, its jobs are lost."""
    handler = partial(handlers.remove_agent, agent_id=agent_id)
    await send(request, handler, "agents.delete", "admin")
    return redirect("/agents")


async def _set_drained(request: Request, agent_id: str, drained: bool) -> Response:
    values = texts(await read_form(request, "admin"))
    body = {"reason": values["reason"]} if drained and "reason" in values else {}
    await send(
        request,
        partial(handlers.drain_agent, agent_id=agent_id, drained=drained),
        "agents.drain" if drained else "agents.undrain",
        "admin",
        body=msgspec.json.encode(body),
        content_type="application/json",
        parse=handlers.parse_drain,
    )
    return redirect(f"/agents/{agent_id}")


async def _list(
    request: Request, problem: Problem | None = None, values: dict[str, str] | None = None
) -> Response:
    page, rights = await read_and_rights(request, handlers.get_agents, listed(request, PAGE))
    part = request.query_params.get("part") == "table"
    return await respond(
        request,
        "agents_table.html" if part else "agents.html",
        status=200 if problem is None else problem.status,
        agents=[_row(agent) for agent in page["items"]],
        next=page["next"],
        rights=rights,
        problem=problem,
        values=values or {},
    )


async def _one(request: Request, agent_id: str) -> Response:
    handler = partial(handlers.get_agent, agent_id=agent_id)
    agent, rights = await read_and_rights(request, handler)
    return await respond(
        request,
        "agent.html",
        agent=_row(agent),
        rights=rights,
        **inventory_context(agent["inventory"]),
    )


def _row(agent: dict[str, Any]) -> dict[str, Any]:
    """Returns an agent as lists show it.

    A live one is `busy` when it runs something, else `ready`.
    """
    state = agent["state"]
    if state == "live":
        state = "busy" if agent["jobs"] else "ready"
    return {
        **agent,
        "state": state,
        "devices": devices_in_short(agent["inventory"]),
        "launches": list(dict.fromkeys(job["launch"] for job in agent["jobs"])),
    }
