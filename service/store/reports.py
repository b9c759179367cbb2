"""Reports of an agent, each taken once: its id, its changes and its answer in one transaction.

An agent keeps a report on its disk until it is accepted or refused; a repeat gets the same answer.
States are accepted only under the assignment's token and only forward; logs and results also after
the assignment has ended, since they may have waited for a broken link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.cluster.gangs import ASSIGNMENT_ENDED
from service.cluster.measurements import SCHEMA as MEASUREMENT
from service.cluster.measurements import Errors, check_measurement
from service.cluster.reports import LogReport, Report, ResultReport, StateReport, Unread
from service.cluster.tied_profiles import check_profile
from service.cluster.tied_results import tied
from service.store import hardware as profiles
from service.store.database import now
from service.store.gangs import ReportedState, Rules, lock_agent, lock_launches, report_state
from service.store.insert import insert_new
from service.store.launch_logs import add_lines
from service.store.launch_tables import Assignment, Launch
from service.store.launch_tables import Report as ReportRow
from service.store.launches import plan_of_launch
from service.store.quotas import Room
from service.store.runs import add_run
from service.store.tenants import lock_tenant
from shardwise.errors import BadInput
from shardwise.hardware import hardware_from_document
from shardwise.hardware.hardware import SCHEMA as HARDWARE

STALE = "the token is not the assignment's"


@dataclass
class Taken:
    """The outcome of a batch; `ended`: some slots are free again."""

    accepted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    measured: list[tuple[str, Errors]] = field(default_factory=list)


@dataclass(frozen=True)
class Bounds:
    """Limits on the kept output of a launch."""

    max_lines: int
    max_bytes: int


def take_reports(
    session: Session,
    agent_id: str,
    reports: Sequence[Report | Unread],
    rules: Rules,
    bounds: Bounds,
    room: Room | None = None,
    full_day: str | None = None,
) -> Taken | None:
    """Takes a batch in its order. Returns None for an agent that was deleted.

    Measurements are refused beyond the tenant's `room`; output and results for the reason
    `full_day`, if there is one. States are always accepted.
    """
    agent = lock_agent(session, agent_id)
    if agent is None:
        return None
    answered = select(ReportRow.id, ReportRow.refused).where(
        ReportRow.agent_id == agent_id, ReportRow.id.in_([report.id for report in reports])
    )
    known: dict[str, str | None] = {row.id: row.refused for row in session.execute(answered)}
    read = [report for report in reports if not isinstance(report, Unread)]
    parts = _parts(session, agent_id, [report.assignment for report in read])
    if any(isinstance(report, ResultReport) for report in read):
        lock_tenant(session, agent.tenant_id)
    launches = lock_launches(session, [part.launch_id for part in parts.values()])
    # Read again under the lock: the rows may have changed before.
    parts = _parts(session, agent_id, list(parts))
    taken = Taken()
    for report in reports:
        if report.id in known:
            reason = known[report.id]
        elif full_day is not None and not isinstance(report, StateReport):
            # Not remembered: the same report may be accepted on another day.
            reason = full_day
        else:
            if isinstance(report, Unread):
                reason = report.reason
            else:
                part = parts.get(report.assignment)
                launch = None if part is None else launches[part.launch_id]
                reason = _take(session, launch, part, report, rules, bounds, taken, room)
            known[report.id] = reason
            insert_new(
                session,
                ReportRow,
                agent_id=agent_id,
                id=report.id,
                received_at=now(),
                refused=reason,
            )
        if reason is None:
            taken.accepted.append(report.id)
        else:
            taken.refused[report.id] = reason
    return taken


def _parts(session: Session, agent_id: str, ids: list[str]) -> dict[str, Assignment]:
    query = select(Assignment).where(Assignment.agent_id == agent_id, Assignment.id.in_(ids))
    fresh = query.execution_options(populate_existing=True)
    return {part.id: part for part in session.scalars(fresh)}


def _take(
    session: Session,
    launch: Launch | None,
    part: Assignment | None,
    report: Report,
    rules: Rules,
    bounds: Bounds,
    taken: Taken,
    room: Room | None,
) -> str | None:
    """Takes one report. Returns None, or why it is refused."""
    if part is None or launch is None:
        return "this agent has no such assignment"
    if part.token is None or report.token != part.token:
        return STALE
    if isinstance(report, StateReport):
        reported = ReportedState(
            report.state, report.reason or "", report.exit_code, report.peak_rss_bytes
        )
        reason = report_state(session, launch, part, report.token, reported, rules)
        taken.ended |= reason is None and report.state in ASSIGNMENT_ENDED
        return reason
    if isinstance(report, LogReport):
        add_lines(
            session,
            launch.id,
            rank=report.rank,
            stream=report.stream,
            first_line=report.first_line,
            lines=report.lines,
            dropped=report.dropped,
            max_lines=bounds.max_lines,
            max_bytes=bounds.max_bytes,
        )
        return None
    try:
        _keep(session, launch, part, report, taken, room)
    except BadInput as error:
        return str(error)[:300]
    except Problem as problem:
        if problem.slug != "quota":
            raise
        return problem.detail[:300]
    return None


def _keep(
    session: Session,
    launch: Launch,
    part: Assignment,
    report: ResultReport,
    taken: Taken,
    room: Room | None,
) -> None:
    """Stores a document. Raises BadInput with the field for an unknown one, a problem `quota`."""
    schema = report.document.get("schema")
    if schema == MEASUREMENT:
        _keep_run(session, launch, part, report, taken, room)
    elif schema == HARDWARE:
        _keep_profile(session, launch, report, room)
    else:
        raise BadInput(
            f"unknown schema {schema!r}"[:80], field="schema", expected=f"{MEASUREMENT}, {HARDWARE}"
        )


def _keep_run(
    session: Session,
    launch: Launch,
    part: Assignment,
    report: ResultReport,
    taken: Taken,
    room: Room | None,
) -> None:
    measured = check_measurement(report.document)
    hardware = profiles.base_of(
        session,
        launch.tenant_id,
        measured.hardware,
        measured.hardware_id or launch.summary.get("hardware_id"),
        measured.nodes or launch.summary.get("nodes"),
    )
    base = profiles.known_profile(session, launch.tenant_id, *hardware)
    of_plan = tied(measured, report.document, plan_of_launch(session, launch.id), base)
    new = add_run(session, launch, part.id, report.name, measured, hardware, of_plan, room)
    if new and of_plan.held is None:
        taken.measured.append((measured.device_kind, of_plan.errors))


def _keep_profile(
    session: Session, launch: Launch, report: ResultReport, room: Room | None
) -> None:
    tenant, named = launch.tenant_id, launch.request.get("hardware")
    document = {**report.document, "name": named} if named else report.document
    profile = hardware_from_document(document)
    profiles.check_sizes(profile)
    base = profiles.uploaded_profile(session, tenant, profile.name)
    check_profile(profile, base, launch.request, launch.kind)
    profiles.add_hardware(session, tenant, profile, origin="measured", room=room)
