"""The route of `/mcp`, with the packages that it needs or without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.base.problems import Problem
from service.edge.http import caller_of
from service.edge.state import State

PATH = "/mcp"


def mcp_route(state: State) -> tuple[Route, Callable[[], AbstractAsyncContextManager[None]]]:
    """Returns the route, and what has to be entered while it is served."""
    try:
        from service.mcp.endpoint import Endpoint
    except ModuleNotFoundError as error:
        return _without(state, str(error.name)), _nothing
    endpoint = Endpoint(state)
    return Route(PATH, endpoint, methods=["POST"]), endpoint.running


def _without(state: State, package: str) -> Route:
    """Returns the route of a service that lacks a package: it says which extra has it."""

    async def refuse(request: Request) -> Response:
        await state.gate.admit_anyone(caller_of(request))
        raise Problem(
            "not-found",
            f"{PATH} needs {package}, which is not installed here",
            expected="pip install 'shardwise[service,mcp]'",
        )

    return Route(PATH, refuse, methods=["POST"])


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
