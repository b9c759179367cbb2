"""Launches under leases: changes of their assignments and the resulting states (ADR 0015).

Every change of an assignment's state holds the launch's row lock, so that two agents that report
at once cannot both believe that the other still runs. Locks are taken in one order: agent, tenant,
launches by id, assignments. Every UPDATE names the state (and, where an agent speaks, the token)
that it expects, and all times are the database's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from service.base.settings import Settings
from service.cluster.gangs import (
    ASSIGNMENT_ACTIVE,
    ASSIGNMENT_ENDED,
    ASSIGNMENT_HELD,
    LAUNCH_ACTIVE,
    LAUNCH_ENDED,
    launch_state,
    may_become,
)
from service.store.database import now
from service.store.launch_tables import Agent, Assignment, Launch
from service.store.outbox import launch_ended

MAX_REASON = 500


@dataclass(frozen=True)
class Rules:
    """The settings that decide about gangs; `_s` are seconds."""

    lease_s: float
    heartbeat_s: float
    claim_s: float
    max_placements: int
    ports: tuple[int, int]


def rules_of(settings: Settings) -> Rules:
    """Returns the settings that decide about gangs."""
    return Rules(
        settings.agent_lease_s,
        settings.agent_heartbeat_s,
        settings.claim_s,
        settings.max_placements,
        settings.rendezvous_range(),
    )


@dataclass(frozen=True)
class ReportedState:
    """The state of an assignment as its agent reports it."""

    state: str
    reason: str = ""
    exit_code: int | None = None
    peak_rss_bytes: float | None = None


def lock_launches(session: Session, ids: Iterable[str]) -> dict[str, Launch]:
    """Locks these launches. Returns their current rows by id."""
    query = select(Launch).where(Launch.id.in_(sorted(set(ids)))).order_by(Launch.id)
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    return {launch.id: launch for launch in session.scalars(locked)}


def lock_agent(session: Session, agent_id: str) -> Agent | None:
    """Returns an agent, locked: its own calls come one after another."""
    query = select(Agent).where(Agent.id == agent_id).with_for_update(key_share=True)
    return session.scalar(query.execution_options(populate_existing=True))


def launches_of(session: Session, *of: ColumnElement[bool]) -> list[str]:
    """Returns the launches of these assignments."""
    return list(session.scalars(select(Assignment.launch_id).where(*of).distinct()))


def claim(session: Session, agent_id: str, rules: Rules) -> Assignment | None:
    """Returns the agent's next assignment, with a token of its own; None if there is none.

    An assignment that was handed out and never heard of is handed out again: the answer may have
    been lost. Its token stays the same: an agent that has it and was slow is still believed.
    """
    due = (Assignment.agent_id == agent_id, claimable(rules))
    if lock_agent(session, agent_id) is None:
        return None
    first = select(Assignment.id, Assignment.launch_id).where(*due)
    row = session.execute(first.order_by(Assignment.created_at, Assignment.id).limit(1)).first()
    if row is None:
        return None
    assignment_id, launch_id = row
    launch = lock_launches(session, [launch_id])[launch_id]
    taken = session.execute(
        update(Assignment)
        .where(Assignment.id == assignment_id, *due)
        .values(
            state="assigned",
            token=func.coalesce(Assignment.token, secrets.token_hex(16)),
            lease_expires_at=now() + rules.lease_s,
            claimed_at=now(),
        )
        .returning(Assignment.id)
    ).first()
    if taken is None:
        return None
    settle(session, launch)
    return session.scalar(
        select(Assignment)
        .where(Assignment.id == assignment_id)
        .execution_options(populate_existing=True)
    )


def claimable(rules: Rules) -> ColumnElement[bool]:
    """Returns the condition of an assignment that its agent may claim now."""
    unheard = and_(
        Assignment.state == "assigned",
        Assignment.heard.is_(False),
        Assignment.claimed_at < now() - 2 * rules.heartbeat_s,
    )
    return and_(Assignment.stopping.is_(False), or_(Assignment.state == "waiting", unheard))


def report_state(
    session: Session,
    launch: Launch,
    row: Assignment,
    token: str,
    state_report: ReportedState,
    rules: Rules,
) -> str | None:
    """Records the state that an agent reports. Returns why it is refused, or None.

    The launch is locked. States only go forward, and only under the assignment's token.
    """
    before = row.state
    if before in ASSIGNMENT_ENDED:
        return None if before == state_report.state else f"the assignment has ended: {before}"
    if not may_become(before, state_report.state):
        return None if before == state_report.state else f"the assignment is {before}"
    values: dict[str, object] = {
        "state": state_report.state,
        "heard": True,
        "lease_expires_at": now() + rules.lease_s,
    }
    if state_report.state in ASSIGNMENT_ENDED:
        values |= {
            "reason": state_report.reason[:MAX_REASON],
            "exit_code": state_report.exit_code,
            "peak_rss_bytes": state_report.peak_rss_bytes,
            "ended_at": now(),
            "lease_expires_at": None,
        }
    changed = session.execute(
        update(Assignment)
        .where(Assignment.id == row.id, Assignment.token == token, Assignment.state == before)
        .values(**values)
        .returning(Assignment.id)
    ).first()
    if changed is None:
        return "the token is not the assignment's"
    if state_report.state in ASSIGNMENT_ENDED:
        _has_ended(session, launch, row, state_report.state, state_report.reason, rules)
    settle(session, launch)
    session.refresh(row)
    return None


def lose(
    session: Session, launch: Launch, which: ColumnElement[bool], why: str, rules: Rules
) -> None:
    """Ends these assignments of a locked launch as lost."""
    rows = session.scalars(
        select(Assignment).where(
            Assignment.launch_id == launch.id, Assignment.state.in_(ASSIGNMENT_ACTIVE), which
        )
    ).all()
    for row in rows:
        gone = session.execute(
            update(Assignment)
            .where(Assignment.id == row.id, Assignment.state.in_(ASSIGNMENT_ACTIVE), which)
            .values(state="lost", reason=why[:MAX_REASON], ended_at=now(), lease_expires_at=None)
            .returning(Assignment.id)
        ).first()
        if gone is not None:
            _has_ended(session, launch, row, "lost", why, rules)
    settle(session, launch)


def _has_ended(
    session: Session, launch: Launch, row: Assignment, state: str, why: str, rules: Rules
) -> None:
    """Applies the end of one assignment to its gang, unless it was asked to stop."""
    current = row.attempt == launch.attempt and launch.placed_at is not None
    if state == "done" or row.stopping or not current or launch.ending is not None:
        return
    text = f"agent {row.agent_name}: {state}" + (f": {why}" if why else "")
    if launch.state == "queued" and state in ("lost", "stopped"):
        put_back(session, launch, text, rules)
    else:
        end(session, launch, state, text)


def end(session: Session, launch: Launch, ending: str, why: str) -> None:
    """Sets how a locked launch ends, unless that is set already, and stops its running parts."""
    decided = session.execute(
        update(Launch)
        .where(Launch.id == launch.id, Launch.ending.is_(None), Launch.state.in_(LAUNCH_ACTIVE))
        .values(ending=ending, reason=why[:MAX_REASON])
        .returning(Launch.id)
    ).first()
    if decided is not None:
        session.refresh(launch)
        _stop_all(session, launch, "the launch ends")
    settle(session, launch)


def put_back(session: Session, launch: Launch, why: str, rules: Rules) -> None:
    """Removes a locked launch's placement, and fails the launch if it may have no other."""
    void = session.execute(
        update(Launch)
        .where(Launch.id == launch.id, Launch.state == "queued", Launch.placed_at.is_not(None))
        .values(placed_at=None, rendezvous_host=None, rendezvous_port=None, reason=why[:MAX_REASON])
        .returning(Launch.id)
    ).first()
    if void is None:
        return
    session.refresh(launch)
    _stop_all(session, launch, "put back")
    if launch.attempt >= rules.max_placements:
        end(session, launch, "failed", f"placed {launch.attempt} times, at last {why}")


def _stop_all(session: Session, launch: Launch, why: str) -> None:
    """Ends unclaimed assignments at once; marks the others for their agents to stop."""
    mine = Assignment.launch_id == launch.id
    session.execute(
        update(Assignment)
        .where(mine, Assignment.state == "waiting")
        .values(state="stopped", stopping=True, reason=why, ended_at=now())
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(Assignment)
        .where(mine, Assignment.state.in_(ASSIGNMENT_HELD))
        .values(stopping=True)
        .execution_options(synchronize_session=False)
    )


def settle(session: Session, launch: Launch) -> None:
    """Updates a locked launch's state from its assignments' states."""
    query = select(Assignment.state).where(Assignment.launch_id == launch.id).distinct()
    if launch.placed_at is not None:
        query = query.where(Assignment.attempt == launch.attempt)
    elif launch.ending is not None:
        query = query.where(Assignment.state.in_(ASSIGNMENT_ACTIVE))
    else:
        return
    after = launch_state(launch.state, launch.ending, session.scalars(query).all())
    if after == launch.state:
        return
    values: dict[str, object] = {"state": after}
    if launch.started_at is None and after in ("starting", "running", "done"):
        values["started_at"] = now()
    if after in LAUNCH_ENDED:
        values["ended_at"] = now()
    if launch.ending is None:
        values["reason"] = ""
    session.execute(
        update(Launch).where(Launch.id == launch.id, Launch.state == launch.state).values(**values)
    )
    session.refresh(launch)
    if after in LAUNCH_ENDED:
        launch_ended(session, launch)


def expired() -> ColumnElement[bool]:
    """Returns the condition of an assignment whose lease has run out."""
    return and_(Assignment.state.in_(ASSIGNMENT_HELD), Assignment.lease_expires_at < now())


def abandoned() -> ColumnElement[bool]:
    """Returns the condition of an assignment whose agent is lost or was deleted."""
    living = select(Agent.id).where(Agent.id == Assignment.agent_id, Agent.state == "live")
    return and_(Assignment.state.in_(ASSIGNMENT_ACTIVE), ~living.exists())


def unclaimed(claim_s: float) -> ColumnElement[bool]:
    """Returns the condition of a launch that not all of its agents have claimed in time."""
    return and_(Launch.state == "queued", Launch.placed_at < now() - claim_s)


def overdue() -> ColumnElement[bool]:
    """Returns the condition of a launch that has exceeded its time limit."""
    return and_(
        Launch.state.in_(("starting", "running")),
        Launch.ending.is_(None),
        Launch.time_limit_s.is_not(None),
        Launch.started_at + Launch.time_limit_s < now(),
    )
