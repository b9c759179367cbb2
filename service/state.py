"""What one service process holds: settings, database, doorbell, caches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.requests import Request

from service.auth import Gate
from service.cache import AnswerCache
from service.doorbell import Doorbell
from service.gang_watch import GangWatch
from service.metrics import Metrics
from service.settings import Settings
from service.store.database import Database
from service.store.launch_tables import Launch
from service.store.tables import Job
from service.watch import Watch


@dataclass
class State:
    """Made once by the app factory; handlers get it, nothing is global."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    gate: Gate
    answers: AnswerCache
    metrics: Metrics
    watch: Watch[Job]
    launches: Watch[Launch]
    gangs: GangWatch
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def state_of(request: Request) -> State:
    """The process's state."""
    state: State = request.app.state.shardwise
    return state
