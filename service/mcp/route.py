"""The route of `/mcp`, with the packages that it needs or without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup, TaskStatus
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import State
from shardwise.errors import InternalError

if TYPE_CHECKING:
    from service.mcp.endpoint import Endpoint

PATH = "/mcp"
PACKAGE = "mcp"


def mcp_route(state: State) -> tuple[Route, Callable[[], AbstractAsyncContextManager[None]]]:
    """Returns the route, and what has to be entered while it is served."""
    if find_spec(PACKAGE) is None:
        return _without(state), _nothing
    deferred = _Deferred(state)
    return Route(PATH, deferred, methods=["POST"]), deferred.running


class _Deferred:
    """The ASGI application of `/mcp`, made by its first request: a service starts a second sooner
    without the protocol's packages."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._endpoint: Endpoint | None = None
        self._tasks: TaskGroup | None = None
        self._making = anyio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers requests until the block ends."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. Raises as `Endpoint`."""
        async with self._making:
            endpoint = self._endpoint or await self._made()
        await endpoint(scope, receive, send)

    async def _made(self) -> Endpoint:
        if self._tasks is None:
            raise InternalError(f"{PATH} is asked before the service has started")
        endpoint = await anyio.to_thread.run_sync(self._make)
        await self._tasks.start(self._serve, endpoint)
        # Not before: a caller may go away while this one starts.
        self._endpoint = endpoint
        return endpoint

    def _make(self) -> Endpoint:
        from service.mcp.endpoint import Endpoint

        return Endpoint(self._state)

    async def _serve(self, endpoint: Endpoint, *, task_status: TaskStatus[None]) -> None:
        async with endpoint.running():
            task_status.started()
            await anyio.sleep_forever()


def _without(state: State) -> Route:
    """Returns the route of a service that lacks the package: it says which extra has it."""

    async def refuse(request: Request) -> Response:
        await state.gate.admit_anyone(caller_of(request))
        raise Problem(
            "not-found",
            f"{PATH} needs {PACKAGE}, which is not installed here",
            expected="pip install 'shardwise[service,mcp]'",
        )

    return Route(PATH, refuse, methods=["POST"])


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
