"""Our layers around the framework, plain ASGI: request id, access log, metrics, the loop's time."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.logs import REQUEST_ID
from service.base.redact import redacted
from service.base.time_shares import TimeShares, charged
from service.base.traces import span
from service.edge.metrics import ANSWERED, Metrics

log = logging.getLogger("service.access")
_GIVEN = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
UNTIMED = ("/events", "/assignments", "/mcp")
"""Routes whose answers last as long as clients wait for them."""
QUIET = frozenset(("/healthz", "/readyz", "/metrics"))


class Outermost:
    """Wraps the application.

    A request id from the client is used if it is readable and contains no key.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        token = REQUEST_ID.set(request_id)
        started = monotonic()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        try:
            with span(redacted(f"{scope['method']} {scope['path']}"), _carried(scope)):
                await self.app(scope, receive, answer)
        finally:
            self._count(scope, status, monotonic() - started)
            REQUEST_ID.reset(token)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(scope.get(ANSWERED) or getattr(scope.get("route"), "path", "unmatched"))
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(method, route, str(status)).inc()
        if not route.endswith(UNTIMED):
            self.metrics.latency.labels(route).observe(seconds)
        if route not in QUIET and log.isEnabledFor(logging.INFO):
            log.info(
                "%s %s",
                scope["method"],
                scope["path"],
                extra={"status": status, "seconds": round(seconds, 6)},
            )


class Charged:
    """Charges tenants with the event loop's time of what it wraps.

    Known answers from memory lie outside of it: they are free, since who asks for them is not to
    wait for its other calls, and measuring their time would add a tenth to it.
    """

    def __init__(self, app: ASGIApp, times: TimeShares) -> None:
        self.app = app
        self._times = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await charged(self.app(scope, receive, send), self._charge(scope))

    def _charge(self, scope: Scope) -> Callable[[float], None]:
        """Returns what charges the caller's tenant as soon as it is known, so that a stream pays
        while it is open.
        """
        known = scope.setdefault("state", {})
        owed_s = 0.0

        def charge(seconds: float) -> None:
            nonlocal owed_s
            owed_s += seconds
            if (principal := known.get("principal")) is not None:
                self._times.charge(principal.lane, owed_s)
                owed_s = 0.0

        return charge


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GIVEN.match(value):
            given = str(value.decode())
            if redacted(given) == given:
                return given
    return secrets.token_hex(16)


def _carried(scope: Scope) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }
