"""A job that outruns its estimate in the slot for short jobs gives way to a short one, once.

The slots of a worker are not marked: the one for short jobs is the last that is not held by a job
that has turned out long. Once all are, and a short job waits, one of those that were estimated to
be short goes back to the queue. It has no state to go on from, so it is claimed again with the
estimate that it has now, for which no slot for short jobs takes it, and it never gives way again.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from service.questions.forecast import left_s
from service.store.leases import Claim
from worker.solving import Progress

OUTRUNS = 3.0
"""How many times its estimate a job must have taken."""


@dataclass(frozen=True)
class GaveWay:
    """The job goes back to the queue with this estimate of all of its time."""

    cost_s: float


@dataclass
class HeldJob:
    """A job of this worker: when it was claimed, and what its tenant was charged for it."""

    claim: Claim
    since: float
    charged_s: float
    gives_way: bool = False

    def is_short(self, short_job_s: float) -> bool:
        """Returns whether it leaves the slot for short jobs free: it was estimated to be short, and
        has been until now, or it is giving way."""
        return self.gives_way or max(self.claim.cost_s, monotonic() - self.since) <= short_job_s

    def outruns(self, short_job_s: float) -> bool:
        """Returns whether it holds the slot for short jobs for longer than it may."""
        claim, since_s = self.claim, monotonic() - self.since
        if claim.gave_way or self.gives_way or claim.cost_s > short_job_s:
            return False
        return since_s > max(OUTRUNS * claim.cost_s, short_job_s)

    def gave_way(self, progress: Progress, short_job_s: float) -> GaveWay:
        """Returns the outcome, with an estimate above `short_job_s`."""
        claim, since_s = self.claim, monotonic() - self.since
        whole_s = since_s + left_s(claim.kind, claim.cost_s, since_s, progress.progress)
        return GaveWay(max(whole_s, OUTRUNS * short_job_s))
