"""When to ask again: what `Retry-After` says of jobs that are queued or running."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

from service.edge.context import RequestContext
from service.store.database import clock
from service.store.tables import Job

LEAST_S, MOST_S = 1.0, 60.0


def ends_in_s(context: RequestContext, job: Job, queue: Mapping[str, Any] | None) -> float:
    """Returns the seconds until a job is expected to end, by its place in the queue; without one
    its estimate."""
    ends_at = queue["ends_at"] if queue else None
    if ends_at is None:
        return job.cost_s
    return datetime.datetime.fromisoformat(ends_at).timestamp() - clock(context.session)


def retry_after(seconds: Iterable[float]) -> str:
    """Returns when to ask again for the first of these, between `LEAST_S` and `MOST_S`."""
    return str(math.ceil(min(max(min(seconds, default=LEAST_S), LEAST_S), MOST_S)))
