"""Changes of agents and launches as time passes: made by the worker's sweeper and by every service
process that is asked about them, each launch in a transaction of its own."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from service.cluster.gangs import ASSIGNMENT_HELD
from service.store.database import Database, now
from service.store.gangs import (
    Rules,
    abandoned,
    end,
    expired,
    launches_of,
    lock_launches,
    lose,
    overdue,
    put_back,
    unclaimed,
)
from service.store.launch_tables import Agent, Assignment, Launch
from service.store.placement import place, waiting_tenants


def sweep(database: Database, rules: Rules) -> list[str]:
    """Ends what has run out and places what can be placed. Returns agents with new work."""
    with database.read() as session:
        silent = session.scalar(select(Agent.id).where(_silent()).limit(1))
        due = _due(session, rules)
    if silent is not None:
        with database.write() as session:
            session.execute(update(Agent).where(_silent()).values(state="lost"))
        with database.read() as session:
            due = _due(session, rules)
    for launch_id in due:
        with database.write() as session:
            _sweep_launch(session, launch_id, rules)
    return place_all(database, rules)


def place_all(database: Database, rules: Rules) -> list[str]:
    """Places what can be placed, tenant by tenant. Returns the agents with new work."""
    with database.read() as session:
        tenants = waiting_tenants(session)
    agents: list[str] = []
    for tenant in tenants:
        with database.write() as session:
            agents += place(session, tenant, rules)
    return agents


def _silent() -> ColumnElement[bool]:
    return and_(Agent.state == "live", Agent.lease_expires_at < now())


def _due(session: Session, rules: Rules) -> list[str]:
    late = select(Launch.id).where(or_(unclaimed(rules.claim_s), overdue()))
    due = {*launches_of(session, or_(expired(), abandoned())), *session.scalars(late)}
    return sorted(due)


def _sweep_launch(session: Session, launch_id: str, rules: Rules) -> None:
    launch = lock_launches(session, [launch_id]).get(launch_id)
    if launch is None:
        return
    lose(session, launch, expired(), "its lease ran out", rules)
    lose(session, launch, abandoned(), "the agent is lost", rules)
    still = select(Launch.id).where(Launch.id == launch_id)
    if session.scalar(still.where(overdue())):
        end(session, launch, "failed", f"more than its {launch.time_limit_s:g} s")
    elif session.scalar(still.where(unclaimed(rules.claim_s))):
        claimed = Assignment.state.in_((*ASSIGNMENT_HELD, "done"))
        late = session.scalars(
            select(Assignment.agent_name).where(
                Assignment.launch_id == launch_id, Assignment.attempt == launch.attempt, ~claimed
            )
        ).all()
        put_back(session, launch, f"not claimed in time by {', '.join(late)[:300]}", rules)
