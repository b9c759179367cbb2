"""A curve's job: its child computes point after point, and each is stored when it is known."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from service.base.problems import failure
from service.base.store_failures import StoreUnavailable
from service.questions.curves import assembled_curve, point_ids
from service.store.curve_points import (
    Next,
    begin_next,
    contents_of,
    hand_back,
    keep,
    leave_out,
    points_of,
    reasons_of,
)
from service.store.database import Database
from service.store.leases import Claim
from shardwise.answers.counts import place_text
from shardwise.documents.questions import Gpus
from worker.solving import (
    Answered,
    Child,
    End,
    Event,
    Failed,
    PointKnown,
    PointUnknown,
    Progress,
    Stopped,
)

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.5
"""How often a job looks whether the points that others compute are known."""

COUNT_SHARE = 0.25
"""The part of a job's time that one point may take, where no setting says otherwise."""

INVALID = failure("invalid", "")["type"]
NOTHING_KNOWN = "no count became known"
WAITING = "waiting for counts that another question computes"


def count_limit_s(job_s: float, setting_s: float) -> float:
    """Returns the time limit of one point in seconds; `setting_s` is 0 if there is no setting."""
    return min(setting_s or COUNT_SHARE * job_s, job_s)


class CurveChild:
    """What `Child` is to other jobs: gives progress, and at the end the curve.

    It begins one point after another, stores what the child says of each, and leaves alone what
    another job computes. A point that cannot be stored now is stored later: the database may be
    away for a while. `start` starts the child once there is something to compute. The last of
    `max_attempts` in vain computes nothing, if anything is known: it ends with that.
    """

    def __init__(
        self, database: Database, claim: Claim, start: Callable[[], Child], max_attempts: int
    ) -> None:
        self._database = database
        self._is_last = 0 < claim.in_vain >= max_attempts - 1
        self._claim = claim
        self._ids = point_ids(claim.question)
        self._start = start
        self._child: Child | None = None
        self._tried: set[Gpus] = set()
        self._place: Gpus | None = None
        self._said: PointKnown | PointUnknown | None = None
        self._failure = failure("worker-lost", NOTHING_KNOWN)
        self._look_at = 0.0
        self._cancelled = False

    def next(self, timeout_s: float) -> Event | None:
        """Returns the next event, None if there is none within `timeout_s`."""
        if self._child is not None and self._place is not None and self._said is None:
            event = self._child.next(timeout_s)
            self._said = self._of_point(event)
            if self._said is None:
                return event
        if monotonic() < self._look_at:
            sleep(timeout_s)
            return None
        try:
            return self._take_turn()
        except StoreUnavailable as error:
            log.warning("the point cannot be stored yet: %s", error)
            self._look_at = monotonic() + LOOK_AGAIN_S
            return None

    def cancel(self) -> None:
        """Asks for the end; `Stopped` follows."""
        self._cancelled = True
        if self._child is not None:
            self._child.cancel()

    def over(self, error: dict[str, Any]) -> End | None:
        """Returns the curve of what is known when the job has met a limit, the error if that is
        nothing, and None while the database is away."""
        try:
            with self._database.write() as session:
                hand_back(session, self._claim)
            return self._answer(error)
        except StoreUnavailable as away:
            log.warning("the curve cannot be read yet: %s", away)
            return None

    def kill(self) -> None:
        """Ends the child, if there is one."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _of_point(self, event: Event | None) -> PointKnown | PointUnknown | None:
        """Returns what an event says of the point that is being computed."""
        if isinstance(event, PointKnown | PointUnknown):
            return event
        # What is wrong with the question fails the job; any other failure is of this point.
        if isinstance(event, Failed) and event.error["type"] != INVALID:
            self.kill()
            return PointUnknown(event.error)
        return None

    def _take_turn(self) -> Event | None:
        """Stores what was said of the last point, and has the next one computed."""
        with self._database.write() as session:
            if not self._store(session):
                return Stopped()  # the lease is lost, and nothing will be recorded
            points = points_of(session, self._claim.tenant_id, self._ids)
            following = Next(None)
            hopeless = self._is_last and any(point.is_known for point in points.values())
            if not (self._cancelled or hopeless):
                following = begin_next(session, self._claim, self._ids, self._tried)
        self._said, self._place = None, following.place
        if self._cancelled:
            return Stopped()
        done, of = sum(point.is_known for point in points.values()), len(self._ids)
        if following.place is not None:
            self._tried.add(following.place)
            self._child = self._child or self._start()
            self._child.compute(following.place, done, of)
            return Progress(place_text(following.place, done, of), done / of)
        if following.others:
            self._look_at = monotonic() + LOOK_AGAIN_S
            return Progress(WAITING, done / of)
        if hopeless:
            text = f"{self._claim.in_vain} workers ended before another count was known"
            return self._answer(failure("worker-lost", text))
        return self._answer(self._failure)

    def _store(self, session: Session) -> bool:
        """Returns False if the lease is lost."""
        if self._said is None or self._place is None:
            return True
        point_id = self._ids[self._place]
        if isinstance(self._said, PointKnown):
            return keep(session, self._claim, point_id, self._said.content)
        self._failure = self._said.error
        leave_out(session, self._claim, point_id, str(self._said.error["detail"]))
        return True

    def _answer(self, error: dict[str, Any]) -> End:
        """Returns the curve of what is known; `error` is why it ends here."""
        with self._database.read() as session:
            reasons = reasons_of(points_of(session, self._claim.tenant_id, self._ids))
            contents = contents_of(session, self._claim.tenant_id, self._ids)
        if not contents:
            return Failed(error)
        missing = dict.fromkeys(self._ids, str(error["detail"])) | reasons
        curve = assembled_curve(self._claim.question, contents, missing)
        return Answered(msgspec.json.encode(curve), None)
