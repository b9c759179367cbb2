"""The estimated cost of a question: the model's, corrected by the times of past jobs.

    cost_s = model_s · median of took_s / model_s

over the tenant's own newest jobs of this kind on this graph; without any, over all tenants' newest
jobs of the kind, which shows how fast the workers are. Another tenant's jobs on the same graph do
not count: an estimate would reveal that they exist.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.questions.cost_model import seconds_of
from service.questions.question import Question
from service.store.tables import Job

OF_A_GRAPH = 9
OF_A_KIND = 50
"""Newest jobs whose median counts."""

LEAST_OF_A_KIND = 3
FRESH_S = 60.0
"""How long the ratio of a kind is remembered."""

RATIOS = (0.02, 50.0)
"""Bounds of a correction: a ratio beyond them has another cause."""

LEAST_S = 0.1


@dataclass(frozen=True)
class Estimate:
    """Seconds of solving: by the model alone, and corrected."""

    model_s: float
    cost_s: float


class Estimates:
    """Estimates of one process, which remembers the ratios of kinds for a minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_kinds: dict[str, tuple[float, float]] = {}

    def of(
        self,
        session: Session,
        tenant: str,
        question: Question,
        summary: Mapping[str, Any],
        longest_s: float,
    ) -> Estimate:
        """Returns the estimate for a question on a graph with this summary; at most `longest_s`."""
        model_s = seconds_of(question.document, summary)
        own = (Job.tenant_id == tenant, Job.graph_id == question.graph_id)
        ratio = _ratio(session, question.kind, OF_A_GRAPH, 1, *own)
        if ratio is None:
            ratio = self._of_kind(session, question.kind)
        return Estimate(model_s, min(max(model_s * ratio, LEAST_S), longest_s))

    def _of_kind(self, session: Session, kind: str) -> float:
        with self._lock:
            known = self._of_kinds.get(kind)
        if known is not None and monotonic() - known[0] < FRESH_S:
            return known[1]
        ratio = _ratio(session, kind, OF_A_KIND, LEAST_OF_A_KIND) or 1.0
        with self._lock:
            self._of_kinds[kind] = (monotonic(), ratio)
        return ratio


def _ratio(
    session: Session, kind: str, newest: int, least: int, *which: ColumnElement[bool]
) -> float | None:
    """Returns the median of took over model of the newest done jobs.

    Returns None if there are not enough of them.
    """
    rows = session.execute(
        select(Job.took_s, Job.model_s)
        .where(Job.kind == kind, Job.took_s.is_not(None), Job.state == "done", *which)
        .order_by(Job.ended_at.desc())
        .limit(newest)
    )
    ratios = [took / model for took, model in rows if took and model]
    if len(ratios) < least:
        return None
    low, high = RATIOS
    return min(max(median(ratios), low), high)
