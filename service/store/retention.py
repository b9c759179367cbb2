"""Deletes by age and by size, and never what something living refers to (ADR 0033).

Rows go in batches, each in a transaction of its own, so that nothing is locked for long. A tenant's
rows go under the tenant's row lock: code that begins to refer to such a row (a watch, a launch)
holds that lock too.

Living are queued and running jobs, watches, launches that have not ended. A job that is done goes
with its answer and never without it; a run keeps its launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    cast,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session, aliased

from service.base.settings import Settings
from service.cluster.gangs import ASSIGNMENT_ACTIVE, LAUNCH_ACTIVE, LAUNCH_ENDED
from service.store.blobs import drop_blobs
from service.store.curve_points import drop_points, due_points
from service.store.database import Database, now
from service.store.deliveries import throw_away_deliveries
from service.store.launch_tables import Assignment, Enrolment, Launch, LogLine, Report, Run
from service.store.launches import delete_launches
from service.store.quotas import DAY_S, Room, room_of
from service.store.summaries import size_of, summary_of_document
from service.store.tables import (
    ACTIVE,
    ENDED,
    AcceptedBytes,
    Audit,
    Base,
    GraphBlob,
    HardwareProfile,
    Idempotency,
    Job,
    LoginSession,
    OwnedGraph,
    QuestionBlob,
    Result,
    Tenant,
    Watch,
    WorkerRow,
)
from service.store.tenants import lock_tenant
from shardwise.errors import ShardwiseError

log = logging.getLogger(__name__)
BATCH = 200
"""Rows of one transaction; of output, `LINES`."""

LINES = 5000
WORKER_FORGOTTEN_S = 3600.0
Ids = Sequence[Any]


@dataclass(frozen=True)
class Rule:
    """Selects a batch of rows that are due, and deletes it."""

    due: Callable[[Session], Ids]
    drop: Callable[[Session, Ids], None]
    tenant: str | None = None


class Retention:
    """Deletes what is due, for a bounded time at once; resumes where it stopped."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._left: Iterator[None] | None = None

    def sweep(self, within_s: float = float("inf")) -> bool:
        """Continues for `within_s` seconds. Returns whether all is done.

        Raises `StoreUnavailable`; then the next sweep begins from the start.
        """
        until = monotonic() + within_s
        left, self._left = self._left or self._steps(), None
        for _ in left:
            if monotonic() > until:
                self._left = left
                return False
        return True

    def _steps(self) -> Iterator[None]:
        """Each step is one batch."""
        with self._database.read() as session:
            tenants = session.scalars(select(Tenant.id).order_by(Tenant.id)).all()
        for tenant in tenants:
            with self._database.read() as session:
                room = room_of(session, self._settings, tenant)
            for rule in tenant_rules(room):
                yield from self._follow(rule)
        for rule in shared_rules(self._settings):
            yield from self._follow(rule)
        with self._database.write() as session:
            throw_away_deliveries(session, self._settings)
        yield

    def _follow(self, rule: Rule) -> Iterator[None]:
        before: Ids = ()
        while True:
            # Most rules have nothing to do most of the time, which needs no lock to see.
            with self._database.read() as session:
                due = rule.due(session)
            if not due or due == before:
                return
            with self._database.write() as session:
                if rule.tenant is not None:
                    lock_tenant(session, rule.tenant)
                    due = rule.due(session)
                if due:
                    rule.drop(session, due)
            before = due
            yield


def throw_away(database: Database, settings: Settings) -> None:
    """Deletes all that has outlived its time or its bound."""
    Retention(database, settings).sweep()


def tenant_rules(room: Room) -> list[Rule]:
    """Returns the rules for a tenant's rows; jobs first, which refer to the rows of later rules."""
    settings, tenant = room.settings, room.tenant

    def drop_results(session: Session, ids: Ids) -> None:
        _drop_results(session, tenant, ids)

    rules = [
        Rule(
            lambda s: due_points(s, room, settings.result_s, BATCH),
            lambda s, ids: drop_points(s, tenant, ids),
            tenant,
        ),
        Rule(lambda s: _excess_jobs(s, room), _drop_jobs, tenant),
        Rule(lambda s: _excess_results(s, room), drop_results, tenant),
    ]
    if settings.job_s:
        rules.append(Rule(lambda s: _old_jobs(s, tenant, settings.job_s), _drop_jobs, tenant))
    if settings.result_s:
        rules.append(
            Rule(lambda s: _old_results(s, tenant, settings.result_s), drop_results, tenant)
        )
    if settings.run_s:
        rules.append(Rule(lambda s: _old_runs(s, tenant, settings.run_s), _drop_runs, tenant))
    if settings.launch_s:
        old = _old_launch(tenant, settings.launch_s)
        rules += [
            Rule(lambda s: _lines_of(s, old), _drop_lines, tenant),
            Rule(lambda s: _unmeasured(s, old), delete_launches_of, tenant),
            Rule(lambda s: _with_plan(s, old), _drop_plans, tenant),
        ]
    if settings.profile_s:
        rules.append(
            Rule(
                lambda s: _old_profiles(s, tenant, settings.profile_s),
                lambda s, ids: _drop_profiles(s, tenant, ids),
                tenant,
            )
        )
    return rules


def shared_rules(settings: Settings) -> list[Rule]:
    """Returns the rules for rows that are not one tenant's, or to which nothing refers."""
    logged = and_(Launch.state.in_(LAUNCH_ENDED), Launch.ended_at < now() - settings.log_s)
    return [
        Rule(lambda s: _lines_of(s, logged), _drop_lines),
        *(
            _aged(column, age_s)
            for column, age_s in (
                (Report.received_at, settings.report_s),
                (Enrolment.expires_at, settings.audit_s),
                (Idempotency.created_at, settings.idempotency_s),
                (Audit.at, settings.audit_s),
                (WorkerRow.seen_at, WORKER_FORGOTTEN_S),
                (LoginSession.expires_at, 0.0),
            )
        ),
        _where(AcceptedBytes, AcceptedBytes.day < now() / DAY_S - 2),
        *_orphan_rules(),
        *_of_former_releases(),
    ]


# Jobs and answers: a done job and its answer go together.


def _kept_answer(answer: Any = Result) -> ColumnElement[bool]:
    """Returns the condition of an answer that a watch shows or that an unended launch runs."""
    watched = exists().where(
        Watch.tenant_id == answer.tenant_id, Watch.content_id == answer.content_id
    )
    launched = exists().where(
        Launch.tenant_id == answer.tenant_id,
        Launch.state.in_(LAUNCH_ACTIVE),
        Launch.summary["plan_id"].as_string() == answer.answer_id,
    )
    return or_(watched, launched)


def _droppable_job(tenant: str) -> ColumnElement[bool]:
    answer = aliased(Result)
    kept = exists().where(
        answer.tenant_id == Job.tenant_id,
        answer.content_id == Job.content_id,
        _kept_answer(answer),
    )
    return and_(Job.tenant_id == tenant, Job.state.in_(ENDED), or_(Job.state != "done", ~kept))


def _old_jobs(session: Session, tenant: str, age_s: float) -> Ids:
    due = select(Job.id).where(_droppable_job(tenant), Job.ended_at < now() - age_s)
    return session.scalars(due.order_by(Job.ended_at).limit(BATCH)).all()


def _excess_jobs(session: Session, room: Room) -> Ids:
    excess = room.used(session, "max_stored_jobs") - room.limit("max_stored_jobs")
    if excess < 1:
        return []
    due = select(Job.id).where(_droppable_job(room.tenant)).order_by(Job.ended_at, Job.id)
    return session.scalars(due.limit(min(excess, BATCH))).all()


def _drop_jobs(session: Session, ids: Ids) -> None:
    done = select(Job.tenant_id, Job.content_id).where(Job.id.in_(ids), Job.state == "done")
    answers = [tuple(row) for row in session.execute(done)]
    key = tuple_(Result.tenant_id, Result.content_id)
    session.execute(delete(Result).where(key.in_(answers)))
    session.execute(delete(Job).where(Job.id.in_(ids)))


def _old_results(session: Session, tenant: str, age_s: float) -> Ids:
    due = select(Result.content_id).where(
        Result.tenant_id == tenant, Result.created_at < now() - age_s, ~_kept_answer()
    )
    return session.scalars(due.order_by(Result.created_at).limit(BATCH)).all()


def _excess_results(session: Session, room: Room) -> Ids:
    excess = room.used(session, "max_result_bytes") - room.limit("max_result_bytes")
    if excess < 1:
        return []
    oldest = select(Result.content_id, Result.size_bytes).where(
        Result.tenant_id == room.tenant, ~_kept_answer()
    )
    due = []
    for content_id, size in session.execute(oldest.order_by(Result.created_at).limit(BATCH)):
        due.append(content_id)
        excess -= size
        if excess < 1:
            break
    return due


def _drop_results(session: Session, tenant: str, ids: Ids) -> None:
    """Deletes the answers and the jobs that have computed them."""
    done = (Job.tenant_id == tenant, Job.content_id.in_(ids), Job.state == "done")
    session.execute(delete(Job).where(*done))
    session.execute(delete(Result).where(Result.tenant_id == tenant, Result.content_id.in_(ids)))


# Launches, what they wrote and measured.


def _old_runs(session: Session, tenant: str, age_s: float) -> Ids:
    active = exists().where(Launch.id == Run.launch_id, Launch.state.in_(LAUNCH_ACTIVE))
    due = select(Run.id).where(Run.tenant_id == tenant, Run.created_at < now() - age_s, ~active)
    return session.scalars(due.order_by(Run.created_at).limit(BATCH)).all()


def _drop_runs(session: Session, ids: Ids) -> None:
    session.execute(delete(Run).where(Run.id.in_(ids)))


def _old_launch(tenant: str, age_s: float) -> ColumnElement[bool]:
    active = exists().where(
        Assignment.launch_id == Launch.id, Assignment.state.in_(ASSIGNMENT_ACTIVE)
    )
    return and_(
        Launch.tenant_id == tenant,
        Launch.state.in_(LAUNCH_ENDED),
        Launch.ended_at < now() - age_s,
        ~active,
    )


def _lines_of(session: Session, launches: ColumnElement[bool]) -> Ids:
    due = select(LogLine.launch_id, LogLine.number).join(Launch, Launch.id == LogLine.launch_id)
    return [tuple(row) for row in session.execute(due.where(launches).limit(LINES))]


def _drop_lines(session: Session, ids: Ids) -> None:
    # By ranges, not one by one: a batch has few launches, whose lines are numbered.
    by_launch: dict[str, list[int]] = {}
    for launch_id, number in ids:
        by_launch.setdefault(launch_id, []).append(number)
    for launch_id, numbers in by_launch.items():
        between = LogLine.number.between(min(numbers), max(numbers))
        session.execute(delete(LogLine).where(LogLine.launch_id == launch_id, between))


def _unmeasured(session: Session, old: ColumnElement[bool]) -> Ids:
    """Returns old launches without runs."""
    measured = exists().where(Run.launch_id == Launch.id)
    due = select(Launch.id).where(old, ~measured).order_by(Launch.ended_at)
    return session.scalars(due.limit(BATCH)).all()


def delete_launches_of(session: Session, ids: Ids) -> None:
    """Deletes these launches."""
    delete_launches(session, list(ids))


def _with_plan(session: Session, old: ColumnElement[bool]) -> Ids:
    """Returns old launches that stay for their runs, which do not need the plan."""
    due = select(Launch.id).where(old, Launch.plan.is_not(None)).order_by(Launch.ended_at)
    return session.scalars(due.limit(BATCH)).all()


def _drop_plans(session: Session, ids: Ids) -> None:
    for launch_id, request in session.execute(
        select(Launch.id, Launch.request).where(Launch.id.in_(ids))
    ).all():
        session.execute(
            update(Launch)
            .where(Launch.id == launch_id)
            .values(plan=None, size_bytes=size_of(request))
        )


# Profiles that the service itself created, once there is a newer version.


def _old_profiles(session: Session, tenant: str, age_s: float) -> Ids:
    profile, other = HardwareProfile, aliased(HardwareProfile)
    mine = other.tenant_id == profile.tenant_id
    newer = exists().where(mine, other.name == profile.name, other.version > profile.version)
    refitted = exists().where(mine, other.previous_id == profile.hardware_id)
    measured_on = exists().where(
        Run.tenant_id == profile.tenant_id, Run.hardware_id == profile.hardware_id
    )
    watched = exists().where(
        Watch.tenant_id == profile.tenant_id,
        or_(
            Watch.hardware == profile.hardware_id,
            Watch.hardware.like(profile.hardware_id + literal("*%")),
        ),
    )
    launched = exists().where(
        Launch.tenant_id == profile.tenant_id,
        Launch.state.in_(LAUNCH_ACTIVE),
        Launch.summary["hardware_id"].as_string() == profile.hardware_id,
    )
    due = select(profile.hardware_id).where(
        profile.tenant_id == tenant,
        or_(profile.origin.in_(("measured", "refit")), profile.previous_id.is_not(None)),
        profile.created_at < now() - age_s,
        newer,
        ~or_(refitted, measured_on, watched, launched),
    )
    return session.scalars(due.order_by(profile.created_at).limit(BATCH)).all()


def _drop_profiles(session: Session, tenant: str, ids: Ids) -> None:
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.hardware_id.in_(ids))
    session.execute(delete(HardwareProfile).where(*mine))


# What nothing refers to.


def _aged(column: Any, age_s: float) -> Rule:
    """Returns the rule for rows whose time in `column` is more than `age_s` ago."""
    return _where(column.class_, column < now() - age_s)


def _where(table: type[Base], condition: ColumnElement[bool]) -> Rule:
    keys = list(table.__table__.primary_key)

    def due(session: Session) -> Ids:
        query = select(*keys).where(condition).order_by(*keys).limit(BATCH)
        return [tuple(row) for row in session.execute(query)]

    def drop(session: Session, ids: Ids) -> None:
        session.execute(delete(table).where(tuple_(*keys).in_(ids), condition))

    return Rule(due, drop)


def _graph_is_needed() -> ColumnElement[bool]:
    return or_(
        exists().where(OwnedGraph.graph_id == GraphBlob.id),
        exists().where(Job.graph_id == GraphBlob.id, Job.state.in_(ACTIVE)),
        exists().where(Launch.graph_id == GraphBlob.id, Launch.state.in_(LAUNCH_ACTIVE)),
    )


def _orphan_rules() -> list[Rule]:
    return [
        _orphans(QuestionBlob, exists().where(Job.blob_id == QuestionBlob.id)),
        _orphans(GraphBlob, _graph_is_needed()),
    ]


def drop_orphans(session: Session) -> bool:
    """Deletes a batch of contents that no row refers to. Returns True if there were any."""
    for rule in _orphan_rules():
        if ids := rule.due(session):
            rule.drop(session, ids)
            return True
    return False


def _orphans(table: type[GraphBlob] | type[QuestionBlob], needed: ColumnElement[bool]) -> Rule:
    """Returns the rule for blobs that are not needed."""

    def due(session: Session) -> Ids:
        return session.scalars(select(table.id).where(~needed).limit(BATCH)).all()

    return Rule(due, lambda session, ids: drop_blobs(session, table, ids, needed))


# Rows that a release before schema 0006 stores while both run: sizes and summaries are filled in.


def _of_former_releases() -> list[Rule]:
    return [
        _sized(Result, func.length(Result.content)),
        _sized(Run, func.length(cast(Run.document, Text))),
        _sized(
            Launch,
            func.length(cast(Launch.request, Text)) + func.coalesce(func.length(Launch.plan), 0),
        ),
        Rule(_unsummarised, _summarise),
    ]


def _sized(table: Any, size: ColumnElement[int]) -> Rule:
    keys = list(table.__table__.primary_key)

    def due(session: Session) -> Ids:
        query = select(*keys).where(table.size_bytes == 0, size > 0)
        return [tuple(row) for row in session.execute(query.limit(BATCH))]

    def fill(session: Session, ids: Ids) -> None:
        session.execute(
            update(table)
            .where(tuple_(*keys).in_(ids))
            .values(size_bytes=size)
            .execution_options(synchronize_session=False)
        )

    return Rule(due, fill)


_FEW = 10


def _unsummarised(session: Session) -> Ids:
    key = (HardwareProfile.tenant_id, HardwareProfile.hardware_id)
    query = select(*key).where(HardwareProfile.summary.is_(None)).order_by(*key)
    return [tuple(row) for row in session.execute(query.limit(_FEW))]


def _summarise(session: Session, ids: Ids) -> None:
    for key in ids:
        row = session.get(HardwareProfile, key)
        if row is None:
            continue
        try:
            row.summary = summary_of_document(row.document)
        except ShardwiseError as error:
            log.warning("the profile %s cannot be read: %s", row.hardware_id, error)
        row.size_bytes = size_of(row.document)
