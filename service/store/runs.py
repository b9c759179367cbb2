"""Runs: the measurements of launches and the errors of the predictions.

Errors are relative and signed, measured over predicted less 1, as the measuring rank reports them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session, defer

from service.base.problems import not_found
from service.cluster.measurements import Measured
from service.cluster.tied_results import Tied
from service.store.database import now
from service.store.ids import iso, new_id
from service.store.launch_tables import ACCEPTED, REJECTED, Launch, Run
from service.store.quotas import Room
from service.store.summaries import clipped, size_of
from shardwise.errors import BadInput

ACCURACY_SCHEMA = "shardwise.accuracy/1"
QUANTITIES = ("iteration", "compute", "communication", "peak")
MOST_RUNS = 10_000
"""Number of newest runs in an answer."""

MOST_GROUPS = 200
"""Pairs of model and hardware that an answer names: those of the newest runs."""

LAST_RUNS = 20
RECENT_S = 86400.0
"""Age of the runs whose errors are metrics."""


def add_run(
    session: Session,
    launch: Launch,
    assignment_id: str,
    name: str,
    measured: Measured,
    hardware: tuple[str, str],
    of_plan: Tied,
    room: Room | None = None,
) -> bool:
    """Stores a measurement; `hardware` is the profile's id and name. Returns whether it is new.

    A rank may write a file of the same name again: the newest counts, and has not been judged yet.
    Raises a problem `quota` if it does not fit into `room`.
    """
    document = of_plan.document
    of_run = (Run.launch_id == launch.id, Run.assignment_id == assignment_id, Run.name == name)
    run = session.scalar(select(Run).where(*of_run))
    new = run is None
    size = size_of(document)
    if room is not None:
        before = 0 if run is None else run.size_bytes
        room.require(session, max_runs=int(new), max_run_bytes=size - before)
    if run is None:
        run = Run(
            id=new_id("run"),
            tenant_id=launch.tenant_id,
            launch_id=launch.id,
            assignment_id=assignment_id,
            name=name,
            created_at=now(),
        )
        session.add(run)
    run.graph_id, run.graph_name = measured.graph, str(document.get("graph_name", ""))
    run.hardware_id, run.hardware_name = hardware
    run.device_kind, run.document = measured.device_kind, document
    run.size_bytes, run.held, run.judged = size, of_plan.held, None
    for quantity in QUANTITIES:
        setattr(run, f"{quantity}_error", getattr(of_plan.errors, quantity))
    session.flush()
    return new


def counts() -> ColumnElement[bool]:
    """Returns the condition of runs that count: not held, or accepted."""
    return or_(Run.held.is_(None), Run.judged == ACCEPTED)


def judge_run(session: Session, launch: Launch, run_id: str, *, accepted: bool) -> tuple[Run, bool]:
    """Decides whether a held run of a launch counts. Returns it, and whether it had not been judged
    before.

    Raises a problem `not-found`, or BadInput for a run that is not held.
    """
    run = session.get(Run, run_id, with_for_update=True)
    if run is None or run.launch_id != launch.id:
        raise not_found("run", run_id[:80])
    if run.held is None:
        raise BadInput(
            "the run is not held", field="run", expected="a run that waits for a verdict"
        )
    first = run.judged is None
    run.judged = ACCEPTED if accepted else REJECTED
    session.flush()
    return run, first


def accuracy(
    session: Session, tenant: str, graph_id: str | None, hardware_id: str | None
) -> dict[str, Any]:
    """Returns the errors of the tenant's runs by model and hardware, the newest first, and the
    newest runs that wait for a verdict."""
    query = select(Run).where(Run.tenant_id == tenant).options(defer(Run.document))
    if graph_id is not None:
        query = query.where(Run.graph_id == graph_id)
    if hardware_id is not None:
        query = query.where(Run.hardware_id == hardware_id)
    newest = query.order_by(Run.created_at.desc(), Run.id.desc())
    waiting = newest.where(Run.held.is_not(None), Run.judged.is_(None)).limit(LAST_RUNS)
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in session.scalars(newest.where(counts()).limit(MOST_RUNS)):
        groups[run.graph_id, run.hardware_id].append(run)
    return {
        "schema": ACCURACY_SCHEMA,
        "items": [_group(runs) for runs in list(groups.values())[:MOST_GROUPS]],
        "runs": sum(len(runs) for runs in groups.values()),
        "most_runs": MOST_RUNS,
        "held": [run_document(run) for run in session.scalars(waiting)],
    }


def recent_errors(session: Session, most_kinds: int) -> dict[tuple[str, str], list[float]]:
    """Returns the absolute relative errors of all tenants' runs of the last day, by quantity and
    device kind. Agents name their devices: kinds beyond the `most_kinds` most used are `other`.

    The increase of a counter would not do: it misses the first run on a device kind, with which
    the series begins, and most kinds have few runs a day.
    """
    errors = [getattr(Run, f"{quantity}_error") for quantity in QUANTITIES]
    query = select(Run.device_kind, *errors).where(Run.created_at > now() - RECENT_S, counts())
    rows = session.execute(query.order_by(Run.created_at.desc()).limit(MOST_RUNS)).all()
    named = {kind for kind, _ in Counter(row[0] for row in rows).most_common(most_kinds)}
    by_label: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kind, *values in rows:
        label = (kind or "unknown") if kind in named else "other"
        for quantity, value in zip(QUANTITIES, values, strict=True):
            if value is not None:
                by_label[quantity, label].append(abs(value))
    return dict(by_label)


def measurements_for(
    session: Session, tenant: str, hardware_id: str, launches: list[str] | None, most: int
) -> list[Run]:
    """Returns the newest runs on a profile, only of `launches` if given: the tenant's own."""
    query = select(Run).where(Run.tenant_id == tenant, Run.hardware_id == hardware_id, counts())
    if launches is not None:
        own = select(Launch.id).where(Launch.tenant_id == tenant, Launch.id.in_(launches))
        owned = set(session.scalars(own))
        for launch_id in launches:
            if launch_id not in owned:
                raise not_found("launch", launch_id[:80])
        query = query.where(Run.launch_id.in_(launches))
    newest = query.order_by(Run.created_at.desc(), Run.id.desc()).limit(most)
    return list(session.scalars(newest))


def run_document(run: Run) -> dict[str, Any]:
    """Returns a run as lists show it."""
    return {
        "id": run.id,
        "launch": run.launch_id,
        "name": run.name,
        "graph": run.graph_id,
        "graph_name": clipped(run.graph_name),
        "hardware": run.hardware_id,
        "hardware_name": clipped(run.hardware_name),
        "device_kind": run.device_kind,
        "errors": {name: getattr(run, f"{name}_error") for name in QUANTITIES},
        "held": run.held,
        "judged": run.judged,
        "created_at": iso(run.created_at),
    }


def _group(runs: list[Run]) -> dict[str, Any]:
    newest = runs[0]
    return {
        "graph": newest.graph_id,
        "graph_name": clipped(newest.graph_name),
        "hardware": newest.hardware_id,
        "hardware_name": clipped(newest.hardware_name),
        "count": len(runs),
        "median_absolute_error": {name: _median(runs, name) for name in QUANTITIES},
        "last_runs": [run_document(run) for run in runs[:LAST_RUNS]],
    }


def _median(runs: list[Run], quantity: str) -> float | None:
    errors = [getattr(run, f"{quantity}_error") for run in runs]
    known = [abs(error) for error in errors if error is not None]
    return median(known) if known else None
