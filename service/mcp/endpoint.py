"""`POST /mcp`: the protocol over streamable HTTP, one request at a time, without sessions.

Any process of a service answers any request. A caller is admitted, and the body read within limits,
before the protocol sees anything of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.base.fair_slots import Gone
from service.base.pools import expected_bytes, gone_of
from service.base.problems import Problem, problem_of
from service.edge.body import read_body
from service.edge.http import caller_of, lane_of
from service.edge.perform import ingested
from service.edge.state import State
from service.mcp.asking import Answer, Asking
from service.mcp.tools import TOOLS
from service.questions.ingest import check_call
from service.questions.ingest_process import Reading
from shardwise import validation
from shardwise.errors import InternalError, ShardwiseError
from shardwise.mcp.calls import Report
from shardwise.mcp.server import Context, make_server
from shardwise.mcp.tool import Tool

log = logging.getLogger(__name__)
MOST_BYTES = 4 * 2**20
"""Largest body of a request: the arguments of one call, with a long text."""
MOST_PLAIN_BYTES = 2**16
"""Largest body without that text: the protocol reads it on the event loop."""
LONG_TEXTS = {"quote": "offers_csv", "price_configuration": "configuration"}
"""Tools with an argument that may be a long text. Such a body is checked in the ingest child
first, so that it is one long string, which is read in no time, and little else."""


class Endpoint:
    """The ASGI application of `/mcp`; `running` has to be entered once, around all requests."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._manager = StreamableHTTPSessionManager(
            make_server(TOOLS, self._compute, self._in_thread),
            stateless=True,
            max_request_body_size=MOST_BYTES,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers requests until the block ends."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. Raises `Problem` if its caller or its body is refused."""
        request, state = Request(scope, receive), self._state
        settings = state.settings
        principal = await state.gate.admit(caller_of(request), "read")
        most = expected_bytes(request, MOST_BYTES, settings.max_gzip_ratio)
        with state.pools.bodies.take(principal.lane, most) as resize:
            body = await read_body(request, state, principal.lane, MOST_BYTES)
            resize(len(body))
            if len(body) > MOST_PLAIN_BYTES:
                await self._check(principal.lane, body, gone_of(request))
            await self._manager.handle_request(_plain(scope), _replayed(body, receive), send)

    async def _check(self, lane: str, body: bytes, gone: Gone) -> None:
        """Raises `Problem` for a large body that is more than a call with a long text."""
        settings, reading = self._state.settings, Reading()
        check = partial(check_call, body, LONG_TEXTS, MOST_PLAIN_BYTES, settings, reading)
        await ingested(self._state.pools, lane, gone, reading, check)

    async def _in_thread(self, context: Context, act: Callable[[Any], Any], argument: Any) -> Any:
        lane = lane_of(_request_of(context))
        return await self._state.pools.pages.run(lane, act, argument)

    async def _compute(
        self, tool: Tool[Answer], values: Mapping[str, Any], report: Report, context: Context
    ) -> Any:
        try:
            request = _request_of(context)
            arguments = validation.convert(values, tool.arguments)
            return await tool.answer(Asking(self._state, request, report), arguments)
        except ShardwiseError as error:
            raise problem_of(error) from None
        except Exception as error:
            log.exception("a defect in the tool %s", tool.name)
            self._state.metrics.defects.inc()
            raise Problem("defect", "a defect of the service, please report it") from error


def _request_of(context: Context) -> Request:
    request: Request | None = context.request
    if request is None:
        raise InternalError("a tool is called without a request of HTTP")
    return request


def _plain(scope: Scope) -> Scope:
    """Returns a request's scope without what its body was encoded and measured by."""
    ours = (b"content-encoding", b"content-length", b"transfer-encoding")
    return {**scope, "headers": [(k, v) for k, v in scope["headers"] if k not in ours]}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a receiver that first replays a body that was already read."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()

    return replay
