"""What one service process holds: settings, database, doorbell, caches."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from service.auth import Gate
from service.cache import AnswerCache
from service.curve_key import CurveKeys
from service.doorbell import Doorbell
from service.estimates import Estimates
from service.gang_watch import GangWatch
from service.graph_digest import Digests
from service.metrics import Metrics
from service.pools import Pools
from service.queue_view import QueueView
from service.readiness import Readiness
from service.settings import Settings
from service.store.database import Database
from service.store.launch_tables import Launch
from service.store.tables import Job
from service.watch import Watch

if TYPE_CHECKING:
    from service.login.logins import Logins


@dataclass
class State:
    """Made once by the app factory; handlers get it, nothing is global."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    gate: Gate
    answers: AnswerCache
    curve_keys: CurveKeys
    metrics: Metrics
    watch: Watch[Job]
    launches: Watch[Launch]
    gangs: GangWatch
    exports: threading.Semaphore
    pools: Pools
    readiness: Readiness
    queue: QueueView
    estimates: Estimates = field(default_factory=Estimates)
    digests: Digests = field(default_factory=Digests)
    logins: Logins | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def state_of(request: Request) -> State:
    """The process's state."""
    state: State = request.app.state.shardwise
    return state
