"""The state of one service process: settings, database, doorbell, caches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from service.base.docs_tree import DocsTree
from service.base.pools import Pools
from service.base.settings import Settings
from service.edge.auth import Gate
from service.edge.cache import AnswerCache
from service.edge.curve_key import CurveKeys
from service.edge.doorbell import Doorbell
from service.edge.gang_watch import GangWatch
from service.edge.metrics import Metrics
from service.edge.new_points import PointsOfJobs
from service.edge.readiness import Readiness
from service.edge.watch import Watch
from service.questions.graph_digest import Digests
from service.questions.preset_graphs import PresetGraphs
from service.store.database import Database
from service.store.launch_tables import Launch
from service.store.queue_view import QueueView
from service.store.tables import Job

if TYPE_CHECKING:
    from service.login.logins import Logins


@dataclass
class State:
    """Created once by the app factory and passed to handlers; nothing is global."""

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
    curves: PointsOfJobs
    pools: Pools
    readiness: Readiness
    queue: QueueView
    presets: PresetGraphs
    docs: DocsTree
    digests: Digests = field(default_factory=Digests)
    logins: Logins | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def state_of(request: Request) -> State:
    """Returns the process's state."""
    state: State = request.app.state.shardwise
    return state
