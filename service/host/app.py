"""The application factory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from service.base.docs_tree import DocsTree
from service.base.logs import REQUEST_ID
from service.base.pools import Pools
from service.base.problems import MEDIA_TYPE, Problem, encode, problem_of
from service.base.settings import Settings
from service.edge.auth import Gate
from service.edge.cache import AnswerCache
from service.edge.curve_key import PART, CurveKeys
from service.edge.doorbell import Doorbell
from service.edge.gang_watch import GangWatch
from service.edge.http import caller_of
from service.edge.metrics import Metrics
from service.edge.new_points import PointsOfJobs
from service.edge.pool_metrics import PoolCollector
from service.edge.readiness import PROBE_S, Readiness
from service.edge.state import State
from service.edge.watch import Watch
from service.handlers.curve_query import KnownCurves
from service.host.asgi import Charged, Outermost
from service.mcp.route import mcp_route
from service.openapi.document import allowed_methods, complete
from service.page.routes import router as page
from service.questions.preset_graphs import PresetGraphs
from service.routes import (
    accuracy,
    administration,
    agents,
    allocations,
    graphs,
    hardware,
    health,
    jobs,
    launches,
    reference,
    skypilot,
    usage,
    watches,
    webhooks,
)
from service.store.database import Database, database_of_calls
from service.store.gangs import rules_of
from service.store.jobs import has_ended
from service.store.launches import launch_has_ended, look_at_launches
from service.store.queue_view import QueueView
from shardwise import __version__
from shardwise.errors import BadInput, ShardwiseError

if TYPE_CHECKING:
    from service.login.logins import Logins


class Service(FastAPI):
    """FastAPI with our layers around it, outside even the handler of defects."""

    def build_middleware_stack(self) -> ASGIApp:
        """Returns the stack, wrapped in ours."""
        state: State = self.state.shardwise
        charged = Charged(super().build_middleware_stack(), state.pools.times)
        return Outermost(KnownCurves(charged, state), state.metrics)

    def openapi(self) -> dict[str, Any]:
        """Returns the document, built once."""
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi())
        return self.openapi_schema


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """Returns the service as an ASGI application.

    The database must have the schema (service/store/schema.py).
    """
    database = database or database_of_calls(settings)
    # Probes do not wait for the connections of calls, and not as long as calls do.
    probed = Database(database.url, 2, deadline_s=min(PROBE_S, settings.database_s))
    pools = Pools(settings)
    doorbell = Doorbell(settings)
    metrics = Metrics(probed, settings.lease_s)
    metrics.registry.register(PoolCollector(pools))
    gate = Gate(settings, database, metrics.limits, pools)
    gate.logins = logins = make_logins(settings, database, pools)
    for_keys = settings.cache_bytes // PART
    queue = QueueView(settings.lease_s, settings.short_job_s, settings.max_running)
    state = State(
        settings=settings,
        database=database,
        doorbell=doorbell,
        gate=gate,
        logins=logins,
        answers=AnswerCache(settings.cache_bytes - for_keys),
        curve_keys=CurveKeys(for_keys),
        metrics=metrics,
        watch=Watch("jobs", database, settings.watch_s, pools.watching, queue.look_at, has_ended),
        launches=Watch(
            "launches",
            database,
            settings.watch_s,
            pools.watching,
            look_at_launches,
            launch_has_ended,
        ),
        gangs=GangWatch(
            database, rules_of(settings), settings.watch_s, pools.polls, pools.watching
        ),
        curves=PointsOfJobs(database, pools.reads),
        pools=pools,
        readiness=Readiness(settings, database, probed, doorbell, pools.probes),
        queue=queue,
        presets=PresetGraphs(settings.graphs_dir, settings.max_operators),
        docs=DocsTree(settings.docs_dir),
    )

    tools_route, serving_tools = mcp_route(state)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if database.ballast is not None:
            database.ballast.lay()
        state.gate.uses.start()
        metrics.lag.start()
        async with serving_tools():
            yield
        metrics.lag.stop()
        state.gate.uses.stop()
        await state.gate.close()
        state.pools.close()
        state.doorbell.close()
        database.close()
        probed.close()

    app = Service(
        title="Shardwise",
        version=__version__,
        summary="Advice on parallelism for training neural networks",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Its spans would contain raw paths; ours are in service/host/asgi.py.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.shardwise = state
    for router in (
        graphs.router,
        hardware.router,
        *jobs.ROUTERS,
        allocations.router,
        skypilot.router,
        watches.router,
        agents.router,
        launches.router,
        accuracy.router,
        usage.router,
        *administration.ROUTERS,
        webhooks.router,
        health.router,
        reference.router,
    ):
        app.include_router(router)
    app.router.routes.append(tools_route)
    app.include_router(page)
    app.exception_handler(ShardwiseError)(_on_error)
    app.exception_handler(Exception)(_on_defect)
    app.exception_handler(HTTPException)(_on_http)
    app.exception_handler(RequestValidationError)(_on_invalid)
    return app


def make_logins(settings: Settings, database: Database, pools: Pools) -> Logins | None:
    """Returns the login configuration, if there is a provider. Raises BadInput if its setup is
    wrong.

    Its packages are imported here, so that a service without logins needs none of them.
    """
    if not settings.oidc_issuer:
        return None
    try:
        from service.login.logins import Logins
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{error.name} is not installed",
            field="oidc_issuer",
            expected="pip install 'shardwise[oidc]'",
        ) from None
    return Logins(settings, database, pools)


def problem_response(problem: Problem) -> Response:
    """Returns a problem as it is sent."""
    body = encode(problem.document(REQUEST_ID.get()))
    return Response(body, problem.status, problem.headers, MEDIA_TYPE)


async def _on_error(request: Request, error: ShardwiseError) -> Response:
    return problem_response(problem_of(error))


async def _on_defect(request: Request, error: Exception) -> Response:
    # The server logs the traceback when starlette re-raises it after this answer.
    request.app.state.shardwise.metrics.defects.inc()
    return problem_response(Problem("defect", "please report it with the request id"))


async def _on_http(request: Request, error: HTTPException) -> Response:
    try:
        # A request without a route costs as much as one with a route, and needs no key.
        await request.app.state.shardwise.gate.admit_anyone(caller_of(request))
    except Problem as problem:
        return problem_response(problem)
    if error.status_code == 404:
        return problem_response(Problem("not-found", f"there is no {request.url.path[:200]}"))
    if error.status_code == 405:
        known = allowed_methods(request.app.openapi(), request.url.path)
        allowed = ", ".join(known) or (error.headers or {}).get("Allow", "")
        detail = f"{request.method[:20]} is not among {allowed}"
        return problem_response(Problem("method-not-allowed", detail, headers={"Allow": allowed}))
    return problem_response(Problem("bad-request", str(error.detail), headers=error.headers))


async def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return problem_response(Problem("invalid", f"{field}: {first['msg']}", field=field))
