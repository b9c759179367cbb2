"""The points of a curve that a stream of events has not sent yet."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from service.base.problems import Problem
from service.base.store_failures import StoreUnavailable
from service.edge.state import State
from service.questions.curves import point_ids
from service.store.curve_answers import CURVE
from service.store.curve_points import contents_of
from service.store.question_blobs import whole_question
from service.store.tables import Job
from shardwise import validation
from shardwise.documents.questions import Devices

log = logging.getLogger(__name__)


class _Part(msgspec.Struct):
    """The curve of one point; its other members are skipped."""

    points: list[msgspec.Raw]


class NewPoints:
    """What one stream of a job has sent of its curve."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._left: dict[Devices, str] | None = None

    async def of(self, lane: str, job: Job) -> dict[str, Any]:
        """Returns the member of the job's event that has its new points; none without any, and
        while they cannot be read: a later event has them."""
        if job.kind != CURVE or self._left == {}:
            return {}
        try:
            points = await self._state.pools.reads.run(lane, self._read, job)
        except (Problem, StoreUnavailable) as error:
            log.info("points are sent later: %s", error)
            return {}
        return {"points": points} if points else {}

    def _read(self, job: Job) -> list[msgspec.Raw]:
        with self._state.database.read() as session:
            if self._left is None:
                self._left = point_ids(whole_question(session, job))
            contents = contents_of(session, job.tenant_id, self._left)
        self._left = {place: of for place, of in self._left.items() if place not in contents}
        return [
            point
            for content in contents.values()
            for point in validation.decode(content, _Part).points
        ]
