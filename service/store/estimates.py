"""The estimated cost of a question: by the tenant's own past jobs of like size, nearest first.

A formula (service/questions/cost_model.py) is the start value, which past jobs correct by how
similar they are (service/questions/job_size.py). Other tenants' jobs never count: their cheap
questions would shorten this tenant's estimates, and an estimate would tell of what they ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.base.problems import PREFIX
from service.questions.cost_model import seconds_of
from service.questions.job_size import Size, corrected_s, size_of
from service.questions.question import Question
from service.store.tables import Job

NEWEST = 100
"""Past jobs of a kind that are compared: the tenant's newest."""

LEAST_S = 0.1

STOPPED = (f"{PREFIX}time-limit", f"{PREFIX}worker-lost")
"""A job that failed so would have taken longer; one that failed otherwise fails after its time
again, and says nothing of other jobs."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of solving: the start value, and by past jobs; and the size that it went by."""

    model_s: float
    cost_s: float
    size: Size | None = None


def estimate_of(
    session: Session,
    tenant: str,
    question: Question,
    summary: Mapping[str, Any],
    longest_s: float,
) -> Estimate:
    """Returns the estimate for a question on a graph with this summary; at most `longest_s`."""
    model_s = seconds_of(question.document, summary)
    size = size_of(question.document, summary)
    cost_s = corrected_s(model_s, size, _past(session, tenant, question.kind))
    cost_s = _by_failure(session, tenant, question.content_id, cost_s)
    return Estimate(model_s, min(max(cost_s, LEAST_S), longest_s), size)


def _by_failure(session: Session, tenant: str, content_id: str, cost_s: float) -> float:
    """Returns the estimate of a question, by how long it took to fail if it last did."""
    took_s, error = session.execute(
        select(Job.took_s, Job.error)
        .where(Job.tenant_id == tenant, Job.content_id == content_id, Job.took_s.is_not(None))
        .order_by(Job.created_at.desc())
        .limit(1)
    ).first() or (None, None)
    if took_s is None or error is None:
        return cost_s
    return max(float(took_s), cost_s) if error["type"] in STOPPED else float(took_s)


def _past(session: Session, tenant: str, kind: str) -> list[tuple[Size, float, float]]:
    """Returns size, start value and time of the tenant's newest jobs of this kind; of one that was
    stopped its time if that is longer."""
    rows = session.execute(
        select(Job.size, Job.model_s, Job.took_s, Job.error)
        .where(Job.tenant_id == tenant, Job.kind == kind, Job.took_s.is_not(None))
        .where(or_(Job.state == "done", Job.state == "failed"))
        .order_by(Job.ended_at.desc())
        .limit(NEWEST)
    )
    return [
        (size, model_s, took_s if error is None else max(took_s, model_s))
        for size, model_s, took_s, error in rows
        if size and model_s and took_s and (error is None or error["type"] in STOPPED)
    ]
