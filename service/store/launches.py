"""Launches as callers see them: created, found, listed, stopped. Their states: gangs.py."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.base.problems import Problem, not_found
from service.cluster.gangs import ASSIGNMENT_ACTIVE, LAUNCH_ACTIVE, LAUNCH_ENDED, LAUNCH_STATES
from service.store.database import now
from service.store.gangs import end, lock_launches
from service.store.ids import iso, new_id
from service.store.launch_tables import Agent, Assignment, Launch, LogLine, Run
from service.store.pages import Place, after
from service.store.quotas import Room
from service.store.summaries import size_of
from service.store.tenants import lock_tenant

LAUNCH_SCHEMA = "shardwise.launch/1"
ASSIGNMENT_SCHEMA = "shardwise.assignment/1"


def make_launch(
    session: Session,
    tenant: str,
    *,
    request: dict[str, Any],
    plan: dict[str, Any] | None,
    summary: dict[str, Any],
    graph_id: str | None,
    max_launches: int,
    room: Room | None = None,
    key_id: str | None,
    request_id: str,
) -> Launch:
    """Creates a queued launch and returns it.

    Raises a problem `queue-full` if the tenant has too many, `quota` if it does not fit into
    `room`.
    """
    lock_tenant(session, tenant)
    query = select(func.count()).where(Launch.tenant_id == tenant, Launch.state.in_(LAUNCH_ACTIVE))
    if (session.scalar(query) or 0) >= max_launches:
        raise Problem(
            "queue-full",
            f"{max_launches} launches are queued or running; ask again when some are done",
            headers={"Retry-After": "5"},
        )
    content = None if plan is None else zlib.compress(msgspec.json.encode(plan), 6)
    size = size_of(request) + len(content or b"")
    if room is not None:
        room.require(session, max_stored_launches=1, max_launch_bytes=size)
    launch = Launch(
        id=new_id("launch"),
        tenant_id=tenant,
        kind=request["kind"],
        state="queued",
        reason="not looked at yet",
        request=request,
        plan=content,
        size_bytes=size,
        summary=summary,
        graph_id=graph_id,
        time_limit_s=request.get("time_limit_s"),
        created_at=now(),
        key_id=key_id,
        request_id=request_id,
    )
    session.add(launch)
    session.flush()
    session.refresh(launch)
    return launch


def plan_of_launch(session: Session, launch_id: str) -> dict[str, Any] | None:
    """Returns the plan document that a launch runs."""
    content = session.scalar(select(Launch.plan).where(Launch.id == launch_id))
    if content is None:
        return None
    document: dict[str, Any] = msgspec.json.decode(zlib.decompress(content))
    return document


def require_agents(session: Session, tenant: str, agent_ids: list[str]) -> None:
    """Raises a problem `not-found` unless all of these agents are the tenant's."""
    query = select(Agent.id).where(Agent.tenant_id == tenant, Agent.id.in_(agent_ids))
    agents = set(session.scalars(query))
    for agent_id in agent_ids:
        if agent_id not in agents:
            raise not_found("agent", agent_id[:80])


def find_launch(session: Session, tenant: str, launch_id: str) -> Launch:
    """Returns a tenant's launch. Raises a problem `not-found` if there is none."""
    launch = session.get(Launch, launch_id)
    if launch is None or launch.tenant_id != tenant:
        raise not_found("launch", launch_id)
    return launch


def list_launches(
    session: Session, tenant: str, place: Place | None, limit: int, state: str | None
) -> list[Launch]:
    """Returns the tenant's launches, newest first."""
    query = select(Launch).where(Launch.tenant_id == tenant)
    if state is not None:
        query = query.where(Launch.state == state)
    return list(session.scalars(after(query, Launch.created_at, Launch.id, place, limit)))


def forget_launch(session: Session, tenant: str, launch_id: str) -> None:
    """Deletes an ended launch with its output and measurements.

    Raises a problem `not-found`, or `in-use` for one that has not ended.
    """
    lock_tenant(session, tenant)
    launch = find_launch(session, tenant, launch_id)
    active = (Assignment.launch_id == launch_id, Assignment.state.in_(ASSIGNMENT_ACTIVE))
    if launch.state not in LAUNCH_ENDED or session.scalar(select(Assignment.id).where(*active)):
        raise Problem("in-use", f"{launch_id} has not ended: stop it first")
    session.execute(delete(Run).where(Run.launch_id == launch_id))
    delete_launches(session, [launch_id])


def delete_launches(session: Session, ids: list[str]) -> None:
    """Deletes ended launches that have no runs, with their output and assignments."""
    # Output that comes late waits here, or finds no launch.
    session.execute(select(Launch.id).where(Launch.id.in_(ids)).with_for_update())
    session.execute(delete(LogLine).where(LogLine.launch_id.in_(ids)))
    session.execute(delete(Assignment).where(Assignment.launch_id.in_(ids)))
    session.execute(delete(Launch).where(Launch.id.in_(ids)))


def stop_launch(session: Session, tenant: str, launch_id: str) -> Launch:
    """Stops a launch; leaves one that has ended as it is."""
    launch = lock_launches(session, [launch_id]).get(launch_id)
    if launch is None or launch.tenant_id != tenant:
        raise not_found("launch", launch_id)
    end(session, launch, "stopped", "asked for")
    return launch


def parts_of(session: Session, launch: Launch) -> list[Assignment]:
    """Returns the assignments of the launch's last placement, by rank."""
    query = select(Assignment).where(
        Assignment.launch_id == launch.id, Assignment.attempt == launch.attempt
    )
    return list(session.scalars(query.order_by(Assignment.node_rank)))


def count_parts(session: Session, launch: Launch) -> int:
    """Returns how many agents the launch's last placement has."""
    query = select(func.count()).where(
        Assignment.launch_id == launch.id, Assignment.attempt == launch.attempt
    )
    return int(session.scalar(query) or 0)


def runs_of(session: Session, launch: Launch) -> list[Run]:
    """Returns the launch's measurements."""
    return list(
        session.scalars(select(Run).where(Run.launch_id == launch.id).order_by(Run.created_at))
    )


def look_at_launches(session: Session, ids: list[str]) -> dict[str, Launch]:
    """Returns the launches of these ids, for their watchers."""
    rows = session.scalars(select(Launch).where(Launch.id.in_(ids)))
    return {launch.id: launch for launch in rows}


def launch_has_ended(launch: Launch) -> bool:
    """Returns whether its state will not change any more."""
    return launch.state in LAUNCH_ENDED


def launch_document(launch: Launch) -> dict[str, Any]:
    """Returns a launch as `shardwise.launch/1`, without its plan and its assignments."""
    return {
        "schema": LAUNCH_SCHEMA,
        "id": launch.id,
        "kind": launch.kind,
        "state": launch.state,
        "reason": launch.reason,
        "ending": launch.ending,
        "request": launch.request,
        "summary": launch.summary,
        "attempt": launch.attempt,
        "rendezvous": None
        if launch.rendezvous_host is None
        else {"host": launch.rendezvous_host, "port": launch.rendezvous_port},
        "log": {
            "lines": launch.log_lines,
            "bytes": launch.log_bytes,
            "dropped": launch.log_dropped,
        },
        "created_at": iso(launch.created_at),
        "started_at": iso(launch.started_at),
        "ended_at": iso(launch.ended_at),
        "request_id": launch.request_id,
        "location": f"/v1/launches/{launch.id}",
    }


def part_document(part: Assignment) -> dict[str, Any]:
    """Returns an assignment as the launch's owner sees it: without its token."""
    return {
        "id": part.id,
        "agent": part.agent_id,
        "agent_name": part.agent_name,
        "node_rank": part.node_rank,
        "ranks": part.slots,
        "state": part.state,
        "reason": part.reason,
        "stopping": part.stopping,
        "exit_code": part.exit_code,
        "peak_rss_bytes": part.peak_rss_bytes,
        "claimed_at": iso(part.claimed_at),
        "ended_at": iso(part.ended_at),
    }


def count_launches(session: Session) -> dict[str, int]:
    """Returns all launches by state, for the metrics."""
    counts = dict.fromkeys(LAUNCH_STATES, 0)
    query = select(Launch.state, func.count()).group_by(Launch.state)
    for state, count in session.execute(query):
        counts[state] = count
    return counts


def assignment_document(
    launch: Launch, part: Assignment, nodes: int, graph: Any, plan: Any, lease_s: float
) -> dict[str, Any]:
    """Returns an assignment as `shardwise.assignment/1`: all that the agent needs."""
    request = launch.request
    hosts = request.get("hosts") or ()
    before = sum(int(host["ranks"]) for host in hosts[: part.node_rank])
    return {
        "schema": ASSIGNMENT_SCHEMA,
        "id": part.id,
        "launch": launch.id,
        "token": part.token,
        "kind": launch.kind,
        "entry_point": request["entry_point"],
        "arguments": request["arguments"],
        "environment": request["environment"],
        "plan": plan,
        "graph": graph,
        "hardware": request.get("hardware"),
        "nodes": nodes,
        "node_rank": part.node_rank,
        "ranks_per_node": part.slots,
        "first_rank": before if hosts else part.node_rank * part.slots,
        "rendezvous": {
            # Unique to the placement: ranks of one that was put back never meet these.
            "id": f"{launch.id}-{part.attempt}",
            "host": launch.rendezvous_host,
            "port": launch.rendezvous_port,
        },
        "memory_limit_bytes": request.get("memory_limit_bytes"),
        "time_limit_s": launch.time_limit_s,
        "lease_s": lease_s,
    }
