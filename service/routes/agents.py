"""/v1/agents: calls about agents, and calls of agents."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import agents as handlers
from service.handlers.agent_calls import assignment, enrol_agent, from_agent
from service.openapi import launch_openapi as doc

router = APIRouter(prefix="/v1/agents", tags=["agents"])


@router.post("/tokens", **doc.post_token)
async def post_token(request: Request) -> Response:
    """A token that enrols as many agents as it has uses. It is shown only once.

    A repeat with the same Idempotency-Key gets another token and invalidates the first.
    """
    parse = handlers.parse_token
    return await write(
        request, handlers.post_token, "agents.token", "admin", parse=parse, secret=True
    )


@router.post("", **doc.enrol)
async def post_agent(request: Request) -> Response:
    """Enrol an agent with a token, which is used up. The agent's key is shown only once.

    The token may also be sent as `Authorization: Bearer TOKEN`, where it is checked before the body
    is read. Without that header the body may have at most 64 KiB and no encoding.
    """
    return await enrol_agent(request)


@router.get("", **doc.list_agents)
async def get_agents(request: Request) -> Response:
    """The agents, newest first."""
    return await read(request, handlers.get_agents)


@router.get("/{agent_id}", **doc.get_agent)
async def get_agent(request: Request, agent_id: str) -> Response:
    """One agent: its state, inventory and jobs."""
    return await read(request, partial(handlers.get_agent, agent_id=agent_id))


@router.delete("/{agent_id}", **doc.delete_agent)
async def delete_agent(request: Request, agent_id: str) -> Response:
    """Forget an agent: its key is revoked, its jobs are lost."""
    handler = partial(handlers.remove_agent, agent_id=agent_id)
    return await write(request, handler, "agents.delete", "admin")


@router.post("/{agent_id}/drain", **doc.drain_agent)
async def drain(request: Request, agent_id: str) -> Response:
    """Give an agent no more work; running jobs continue."""
    return await _drain(request, agent_id, True)


@router.post("/{agent_id}/undrain", **doc.drain_agent)
async def undrain(request: Request, agent_id: str) -> Response:
    """Give an agent work again."""
    return await _drain(request, agent_id, False)


async def _drain(request: Request, agent_id: str, drained: bool) -> Response:
    handler = partial(handlers.drain_agent, agent_id=agent_id, drained=drained)
    action = "agents.drain" if drained else "agents.undrain"
    return await write(request, handler, action, "admin", parse=handlers.parse_drain)


@router.post("/{agent_id}/heartbeat", **doc.heartbeat)
async def heartbeat(request: Request, agent_id: str) -> Response:
    """Report that the agent is alive; the answer names the jobs to stop."""
    return await from_agent(request, agent_id, handlers.post_heartbeat, handlers.parse_heartbeat)


@router.get("/{agent_id}/assignments", **doc.assignments)
async def assignments(request: Request, agent_id: str) -> Response:
    """Wait for the agent's next assignment, which this call claims."""
    return await assignment(request, agent_id)


@router.post("/{agent_id}/reports", **doc.reports)
async def reports(request: Request, agent_id: str) -> Response:
    """States, lines of output and results of the agent's jobs, each counted once."""
    return await from_agent(request, agent_id, handlers.post_reports, handlers.parse_reports)
