"""Agents: lists, look-ups, heartbeats, draining, deletion. Enrolment: enrolment.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from service.base.problems import not_found
from service.cluster.gangs import ASSIGNMENT_ACTIVE, ASSIGNMENT_HELD
from service.cluster.heartbeat import Heartbeat
from service.store.database import now
from service.store.gangs import (
    MAX_REASON,
    Rules,
    claimable,
    launches_of,
    lock_agent,
    lock_launches,
    lose,
    put_back,
)
from service.store.ids import iso
from service.store.keys import revoke_key
from service.store.launch_tables import Agent, Assignment
from service.store.pages import Place, after
from service.store.placement import busy_slots
from shardwise.documents.launches import AgentState
from shardwise.errors import NotFound

AGENT_SCHEMA = "shardwise.agent/1"
AGENT_STATES = get_args(AgentState)


@dataclass(frozen=True)
class Seen:
    """An agent with what only the database knows about it."""

    agent: Agent
    state: str
    busy: int
    jobs: list[dict[str, str]]


def find_agent(session: Session, tenant: str, agent_id: str) -> Seen:
    """Returns the tenant's agent. Raises a problem `not-found` if there is none."""
    agents = _seen(session, Agent.id == agent_id, Agent.tenant_id == tenant)
    if not agents:
        raise not_found("agent", agent_id)
    return agents[0]


def list_agents(session: Session, tenant: str, place: Place | None, limit: int) -> list[Seen]:
    """Returns the tenant's agents, newest first."""
    query = select(Agent.id).where(Agent.tenant_id == tenant)
    ids = session.scalars(after(query, Agent.created_at, Agent.id, place, limit)).all()
    agents = {seen.agent.id: seen for seen in _seen(session, Agent.id.in_(ids))}
    return [agents[agent_id] for agent_id in ids if agent_id in agents]


def _seen(session: Session, *which: Any) -> list[Seen]:
    silent = (Agent.state != "live") | (Agent.lease_expires_at < now())
    rows = session.execute(select(Agent, silent).where(*which)).all()
    ids = [agent.id for agent, _ in rows]
    busy = busy_slots(session, ids)
    jobs: dict[str, list[dict[str, str]]] = {}
    query = select(Assignment).where(
        Assignment.agent_id.in_(ids), Assignment.state.in_(ASSIGNMENT_ACTIVE)
    )
    for row in session.scalars(query.order_by(Assignment.created_at, Assignment.id)):
        job = {"assignment": row.id, "launch": row.launch_id, "state": row.state}
        jobs.setdefault(row.agent_id, []).append(job)
    return [
        Seen(agent, _state(agent, bool(lost)), busy.get(agent.id, 0), jobs.get(agent.id, []))
        for agent, lost in rows
    ]


def _state(agent: Agent, silent: bool) -> str:
    if silent:
        return "lost"
    return "drained" if agent.drained or agent.draining else "live"


def agent_document(seen: Seen) -> dict[str, Any]:
    """Returns an agent as `shardwise.agent/1`."""
    agent = seen.agent
    return {
        "schema": AGENT_SCHEMA,
        "id": agent.id,
        "name": agent.name,
        "state": seen.state,
        "drained": agent.drained,
        "draining": agent.draining,
        "reason": agent.drain_reason,
        "slots": agent.slots,
        "slots_free": max(agent.slots - seen.busy, 0),
        "jobs": seen.jobs,
        "inventory": agent.inventory,
        "created_at": iso(agent.created_at),
        "seen_at": iso(agent.seen_at),
        "location": f"/v1/agents/{agent.id}",
    }


def heartbeat(
    session: Session, agent_id: str, beat: Heartbeat, rules: Rules
) -> tuple[list[str], bool] | None:
    """Renews the agent's lease and those of its jobs.

    Returns the jobs to stop and whether its inventory is wanted; None for a deleted agent.

    A new `boot_id` means that the agent has restarted: jobs that it no longer lists are lost.
    """
    agent = lock_agent(session, agent_id)
    if agent is None:
        return None
    restarted = agent.boot_id not in ("", beat.boot_id)
    drains = beat.draining and not agent.draining
    mine = Assignment.agent_id == agent_id
    launches = {}
    if restarted or drains:
        launch_ids = launches_of(session, mine, Assignment.state.in_(ASSIGNMENT_ACTIVE))
        launches = lock_launches(session, launch_ids)
    _note(session, agent, beat, rules)
    stop = []
    for job in sorted(beat.jobs, key=lambda job: job.assignment):
        renewed = session.execute(
            update(Assignment)
            .where(Assignment.id == job.assignment, mine, Assignment.token == job.token)
            .where(Assignment.state.in_(ASSIGNMENT_HELD))
            .values(lease_expires_at=now() + rules.lease_s, heard=True)
            .returning(Assignment.stopping)
        ).first()
        if renewed is None or renewed[0]:
            stop.append(job.assignment)
    listed = [job.assignment for job in beat.jobs]
    for launch in launches.values():
        if restarted:
            gone = mine & Assignment.state.in_(ASSIGNMENT_HELD) & Assignment.id.not_in(listed)
            lose(session, launch, gone, "the agent restarted without it", rules)
    if drains:
        _take_back(session, agent, rules)
    return stop, agent.inventory_hash != beat.inventory_hash


def _note(session: Session, agent: Agent, beat: Heartbeat, rules: Rules) -> None:
    values: dict[str, Any] = {
        "state": "live",
        "seen_at": now(),
        "lease_expires_at": now() + rules.lease_s,
        "boot_id": beat.boot_id,
        "draining": beat.draining,
    }
    if beat.draining or agent.draining:
        values["drain_reason"] = beat.reason[:MAX_REASON]
    if beat.inventory is not None:
        values |= {
            "inventory": beat.inventory,
            "inventory_hash": beat.inventory_hash,
            "slots": int(beat.inventory["slots"]),
        }
    session.execute(update(Agent).where(Agent.id == agent.id).values(**values))
    session.refresh(agent)


def set_drained(
    session: Session, tenant: str, agent_id: str, drained: bool, reason: str, rules: Rules
) -> None:
    """Stops giving work to an agent, or starts again. Running work continues.

    Unclaimed work is put back. Raises a problem `not-found` if the tenant has no such agent.
    """
    changed = session.execute(
        update(Agent)
        .where(Agent.id == agent_id, Agent.tenant_id == tenant)
        .values(drained=drained, drain_reason=reason[:MAX_REASON])
        .returning(Agent.id)
    ).first()
    if changed is None:
        raise not_found("agent", agent_id)
    if drained:
        agent = lock_agent(session, agent_id)
        if agent is None:
            raise not_found("agent", agent_id)
        _take_back(session, agent, rules)


def _take_back(session: Session, agent: Agent, rules: Rules) -> None:
    unclaimed = (Assignment.agent_id == agent.id, Assignment.state == "waiting")
    for launch in lock_launches(session, launches_of(session, *unclaimed)).values():
        put_back(session, launch, f"agent {agent.name} is drained", rules)


def delete_agent(session: Session, tenant: str, agent_id: str, rules: Rules) -> None:
    """Deletes an agent: its key is revoked, its jobs are lost. Raises `not-found` without one."""
    agent = lock_agent(session, agent_id)
    if agent is None or agent.tenant_id != tenant:
        raise not_found("agent", agent_id)
    mine = Assignment.agent_id == agent_id
    launches = lock_launches(
        session, launches_of(session, mine, Assignment.state.in_(ASSIGNMENT_ACTIVE))
    )
    for launch in launches.values():
        lose(session, launch, mine, "the agent was deleted", rules)
    key_id = agent.key_id
    session.delete(agent)
    session.flush()
    try:
        revoke_key(session, key_id)
    except NotFound:
        return  # it was already revoked by hand


def agents_with_work(session: Session, agent_ids: list[str], rules: Rules) -> set[str]:
    """Returns which of these agents have an assignment that they may claim."""
    due = select(Assignment.agent_id).where(Assignment.agent_id.in_(agent_ids), claimable(rules))
    return set(session.scalars(due.distinct()))


def state_columns() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Returns the arguments of `state_named` for an agent: whether it is silent, and whether it
    drains."""
    silent = ((Agent.state != "live") | (Agent.lease_expires_at < now())).label("silent")
    return silent, (Agent.drained | Agent.draining).label("drains")


def state_named(silent: bool, drains: bool) -> str:
    """Returns an agent's state as metrics and lists have it."""
    return "lost" if silent else "drained" if drains else "live"


def count_agents(session: Session) -> dict[str, int]:
    """Returns all agents by state, for the metrics."""
    counts = dict.fromkeys(AGENT_STATES, 0)
    query = select(*state_columns(), func.count()).group_by("silent", "drains")
    for silent, drains, count in session.execute(query):
        counts[state_named(silent, drains)] += count
    return counts
