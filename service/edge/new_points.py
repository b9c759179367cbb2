"""The points of a curve that a stream of events has not sent yet."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from service.base.fair_pool import FairPool
from service.base.problems import Problem
from service.base.store_failures import StoreUnavailable
from service.questions.curves import point_ids
from service.store.curve_answers import CURVE
from service.store.curve_points import contents_of
from service.store.database import Database
from service.store.question_blobs import whole_question
from service.store.tables import Job
from shardwise import validation
from shardwise.documents.questions import Gpus

log = logging.getLogger(__name__)

Left = dict[Gpus, str]
"""The ids of the points of a curve that are not known yet."""


class _Part(msgspec.Struct):
    """The curve of one point; its other members are skipped."""

    points: list[msgspec.Raw]


class KnownPoints:
    """What is known of the curve of one job, in the order in which it was seen: read once for all
    of its streams whenever the job has changed."""

    def __init__(self, database: Database, reads: FairPool) -> None:
        self._database = database
        self._reads = reads
        self._left: Left | None = None
        self._as_of: Any = None
        self._reading = asyncio.Lock()
        self.points: list[msgspec.Raw] = []

    async def read(self, lane: str, job: Job) -> None:
        """Reads what has become known; what cannot be read now is there with a later change."""
        async with self._reading:
            as_of = (job.state, job.stage, job.progress)
            if as_of == self._as_of or self._left == {}:
                return
            try:
                left, points = await self._reads.run(lane, self._read, job, self._left)
            except (Problem, StoreUnavailable) as error:
                log.info("points are sent later: %s", error)
                return
            self._left, self._as_of = left, as_of
            self.points += points

    def _read(self, job: Job, left: Left | None) -> tuple[Left, list[msgspec.Raw]]:
        with self._database.read() as session:
            if left is None:
                left = point_ids(whole_question(session, job))
            contents = contents_of(session, job.tenant_id, left)
        points = [
            point
            for content in contents.values()
            for point in validation.decode(content, _Part).points
        ]
        return {place: of for place, of in left.items() if place not in contents}, points


class PointsOfJobs:
    """The known points of jobs, as long as they have streams."""

    def __init__(self, database: Database, reads: FairPool) -> None:
        self._database = database
        self._reads = reads
        self._of: WeakValueDictionary[str, KnownPoints] = WeakValueDictionary()

    def of(self, job_id: str) -> KnownPoints:
        """Returns the known points of a job's curve."""
        known = self._of.get(job_id)
        if known is None:
            known = self._of[job_id] = KnownPoints(self._database, self._reads)
        return known


class NewPoints:
    """The points of a curve already sent by one stream of a job."""

    def __init__(self, curves: PointsOfJobs) -> None:
        self._curves = curves
        self._known: KnownPoints | None = None
        self._sent = 0

    async def of(self, lane: str, job: Job) -> dict[str, Any]:
        """Returns the member of the job's event that has its new points; none without any, and
        while they cannot be read: a later event has them."""
        if job.kind != CURVE:
            return {}
        self._known = self._known or self._curves.of(job.id)
        await self._known.read(lane, job)
        points = self._known.points[self._sent :]
        self._sent += len(points)
        return {"points": points} if points else {}
