"""uvicorn's HTTP/1.1 protocol with limits, which apply before any key is checked.

A connection is in one of these states, and in each a timer runs or the application works:

    head      waits for a request, or for the rest of its line and headers (`head_s`, and uvicorn's
              keep-alive if nothing of the next request has come)
    body      the head is complete, the body is arriving (`body_silence_s` between two pieces)
    answer    the request is complete, the application works; what comes after it is not read
    linger    the answer is sent, and the rest of the body is discarded for a moment: closing at
              once could lose the answer of a client that is still sending

The parser's input is cut so that it never holds more than `max_head_bytes` of a head, of
trailers or of chunk extensions, and never sees a request after one that is not answered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.base.problems import MEDIA_TYPE, Problem, encode
from service.handlers.tenants import CONFIRM_HEADER
from service.host.connections import Connections, Slot
from service.login.signed_in import TENANT_HEADER

log = logging.getLogger(__name__)
MAX_HEADERS = 200
"""Fields of one request. A field of four bytes costs fifty times as much once it is read."""

_ONCE = ("host", "authorization", "origin", "content-type", "content-encoding", "idempotency-key",
         TENANT_HEADER, CONFIRM_HEADER)  # fmt: skip
ONCE = {name.lower().encode(): name.title() for name in _ONCE}
"""Headers of which there is one: who reads the first of two and who reads the last, such as a proxy
and this service, would disagree (RFC 9112, 3.2, of Host)."""

MAX_PIPELINED = 16
"""Requests after one that is being answered, in the piece that has its end."""

LINGER_S = 2.0
LINGER_BYTES = 4 * 2**20
SEND_S = 60.0
"""A client that takes nothing of its answer for this long has gone."""

_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Bounds:
    """The settings of the same names."""

    max_head_bytes: int
    head_s: float
    body_silence_s: float


class Flow(FlowControl):
    """Flow control that reads nothing while a request is held back."""

    held_back = False

    def resume_reading(self) -> None:
        """Resumes as uvicorn does, unless a request is held back."""
        if not self.held_back:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. After a TLS handshake it has its place, `slot`, before it begins."""

    def __init__(
        self,
        *,
        bounds: Bounds,
        connections: Connections,
        on_refusal: Callable[[str], None],
        **of_uvicorn: Any,
    ) -> None:
        super().__init__(**of_uvicorn)
        self._bounds = bounds
        self._places = connections
        self._on_refusal = on_refusal
        self.slot: Slot | None = None
        self.url = b""
        self.headers = []
        self._in_body = False
        self._unread = 0
        """Bytes since the parser's last event."""
        self._backlog = b""
        """Data after a request that is not answered, from `_backlog_at` on."""
        self._backlog_at = 0
        self._deaf = False
        """Whether incoming data is thrown away."""
        self._linger_left = LINGER_BYTES
        self._heard = 0.0
        self._timer: TimerHandle | None = None
        self._send_timer: TimerHandle | None = None
        self._unsent = 0
        self._client_name: str | None = None
        self._running: RequestResponseCycle | None = None
        """The request being answered: uvicorn's `cycle` is the newest of a pipeline."""

    @property
    def begun(self) -> bool:
        """Whether there is, or was, a connection."""
        return self.transport is not None

    # Events of the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, or answers 503 if there is none."""
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        if self.scheme == "https":
            self._client_name = _client_name(transport)
        if self.slot is None:
            address = self.client[0] if self.client is not None else ""
            self.slot = self._places.admit(address, self._evict)
        else:
            self.slot.evict = self._evict
        if self.slot is None:
            self._turn_away()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the place and the stored data."""
        self._clear_timer()
        self._unset_keepalive_if_required()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        if self.slot is not None:
            self._places.leave(self.slot)
        self._backlog = b""
        self._deaf = True
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what may be parsed now, keeps or throws away the rest."""
        self._unset_keepalive_if_required()
        self._heard = self.loop.time()
        if self._deaf or (self._in_body and not self._active):
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self._close()
                return
        if self._deaf:
            return
        if self._backlog:
            self._backlog, self._backlog_at = self._backlog[self._backlog_at :] + data, 0
            return
        self._feed(data)

    def pause_writing(self) -> None:
        """Watches whether a slow client keeps reading."""
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        """Stops the watch: the client has read."""
        super().resume_writing()
        if self._send_timer is not None and not self.transport.is_closing():
            self._send_timer.cancel()
            self._send_timer = None

    # Reading.

    @property
    def _active(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _feed(self, data: bytes, at: int = 0) -> None:
        while at < len(data) and not self._deaf:
            if self._active and not self._in_body:
                self._hold(data, at)
                return
            end = self._piece_end(data, at)
            piece = data if end - at == len(data) else memoryview(data)[at:end]
            at = end
            self._unread += len(piece)
            self._parse(piece)
            if self._unread >= self._bounds.max_head_bytes and not self._deaf:
                self._refuse_head()
        self._watch()

    def _piece_end(self, data: bytes, at: int) -> int:
        """Returns the end of the head if it is there, within the rest of the bound."""
        most = at + self._bounds.max_head_bytes - self._unread
        if not self._in_body:
            head_end = data.find(_END, at, most)
            if head_end >= 0:
                return head_end + len(_END)
        return min(most, len(data))

    def _parse(self, piece: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # No other protocol is supported, and the end of this request is not known: it is
            # answered, and nothing after it is read.
            if not self._deaf:
                self.cycle.keep_alive = False
                self._deaf = True
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(Problem("bad-request", "this is not an HTTP/1.1 request"), "malformed")

    def _hold(self, data: bytes, at: int) -> None:
        """Keeps data after a request until that is answered, and pauses reading."""
        self._backlog, self._backlog_at = data, at
        self.flow.held_back = True
        self.flow.pause_reading()

    def _release(self) -> None:
        if self._backlog:
            data, self._backlog = self._backlog, b""
            self._unset_keepalive_if_required()
            self.flow.held_back = False
            self.flow.resume_reading()
            self._feed(data, self._backlog_at)

    # Events of the parser.

    def on_message_begin(self) -> None:
        """Begins a request."""
        if not self._deaf:
            super().on_message_begin()
            if self.scheme == "https":
                self.scope["extensions"] = {"tls": {"client_cert_name": self._client_name}}

    def on_url(self, url: bytes) -> None:
        """Takes a part of the URL."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; ignores trailers after a body."""
        if not (self._deaf or self._in_body or len(self.headers) > MAX_HEADERS):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Gives the request to the application."""
        if self._deaf:
            return
        self._clear_timer()
        self._unread = 0
        if len(self.headers) > MAX_HEADERS:
            self._refuse(
                Problem("headers-too-large", f"at most {MAX_HEADERS} headers are read"), "head"
            )
            return
        once = [name for name, _ in self.headers if name in ONCE]
        wrong = next((name for name in once if once.count(name) > 1), None)
        if b"host" not in once and self.parser.get_http_version() != "1.0":
            wrong = b"host"
        if wrong is not None:
            detail = f"a request has one {ONCE[wrong]} header, this one has {once.count(wrong)}"
            self._refuse(Problem("bad-request", detail), "malformed")
            return
        self._in_body = True
        if self.slot is not None:
            self._places.works(self.slot)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        if not self._deaf:
            self._unread = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the request, which is complete."""
        if self._deaf:
            return
        self._clear_timer()
        self._unread = 0
        self._in_body = False
        super().on_message_complete()
        if not self._active:
            self._rest()
        elif len(self.pipeline) >= MAX_PIPELINED:
            self.cycle.keep_alive = False
            self._deaf = True

    def on_response_complete(self) -> None:
        """Goes on after the answer was given to the transport."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._clear_timer()
            self._watch_sending()
        elif self._active or self._deaf:
            pass
        elif self._in_body:
            self._linger()
        else:
            if self.slot is not None:
                self._places.waits(self.slot)
            self._release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _disconnect(self) -> None:
        """Tells the application that the client no longer waits for its answer."""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _rest(self) -> None:
        """Waits for the next request if the answer was sent before the body was read."""
        self._linger_left = LINGER_BYTES
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if self.slot is not None:
            self._places.waits(self.slot)

    # Time.

    def _watch(self) -> None:
        """Starts the timer of a head or a body that is incomplete."""
        if self._timer is not None or self._deaf or (self._active and not self._in_body):
            return
        if self._in_body:
            self._timer = self.loop.call_later(self._bounds.body_silence_s, self._look_for_silence)
        else:
            self._timer = self.loop.call_later(self._bounds.head_s, self._head_is_late)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        if self._unread:
            within = f"{self._bounds.head_s:g} s"
            self._refuse(Problem("timeout", f"the head was not there within {within}"), "time")
        else:
            self._on_refusal("time")
            self._close()

    def _look_for_silence(self) -> None:
        """Refuses a body that was awaited too long without data."""
        self._timer = None
        most_s = self._bounds.body_silence_s
        not_asked = self.flow.read_paused or self.cycle.waiting_for_100_continue
        left_s = most_s if not_asked else self._heard + most_s - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._look_for_silence)
            return
        detail = f"nothing of the body came for {most_s:g} s"
        self._refuse(Problem("timeout", detail), "time")

    def _linger(self) -> None:
        """Throws away incoming data for a moment, then closes."""
        self._clear_timer()
        self._linger_left = LINGER_BYTES
        self.flow.held_back = False
        self.flow.resume_reading()
        self._timer = self.loop.call_later(LINGER_S, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """Closes without a further request; the rest of the last answer is still sent."""
        self._deaf = True
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_sending()

    def _watch_sending(self) -> None:
        if self._send_timer is None:
            self._unsent = self.transport.get_write_buffer_size()
            self._send_timer = self.loop.call_later(SEND_S, self._look_for_progress)

    def _look_for_progress(self) -> None:
        self._send_timer = None
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if self._unsent < before:
            self._send_timer = self.loop.call_later(SEND_S, self._look_for_progress)
        elif self._unsent or self.transport.is_closing():
            self.transport.abort()

    # Ends.

    def send_400_response(self, msg: str) -> None:
        """Sends a problem document where uvicorn would send text."""
        self._refuse(Problem("bad-request", msg), "malformed")

    def _refuse_head(self) -> None:
        most = self._bounds.max_head_bytes
        # The cause is the address or the headers, whichever takes the larger part of the bound.
        if not self._in_body and 2 * len(self.url or b"") > most:
            problem = Problem("uri-too-long", f"at most {most} bytes are read of line and headers")
        else:
            detail = f"at most {most} bytes of headers, of trailers or of chunks' heads are read"
            problem = Problem("headers-too-large", detail)
        self._refuse(problem, "head")

    def _refuse(self, problem: Problem, reason: str) -> None:
        """Answers with a problem unless an answer has begun, and ends the connection."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self._backlog = b""
        self._on_refusal(reason)
        log.debug("refused", extra={"reason": reason, "status": problem.status})
        begun = bool(self.pipeline)
        if self._active:
            begun = begun or self.cycle.response_started
        self._disconnect()
        if begun:
            self.transport.abort()
            return
        self.transport.write(_sent(problem, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger()

    def _turn_away(self) -> None:
        """Answers 503 and closes at once: a connection without a place must not stay."""
        self._deaf = True
        self._on_refusal("connections")
        problem = Problem("unavailable", "too many connections", headers={"Retry-After": "1"})
        self.transport.write(_sent(problem, self.server_state.default_headers))
        self._close()

    def _close(self) -> None:
        """Closes when all data is sent, or after `LINGER_S` at the latest."""
        self._deaf = True
        self._clear_timer()
        if not self.transport.is_closing():
            self.transport.close()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _evict(self) -> None:
        self._on_refusal("evicted")
        self._deaf = True
        self._clear_timer()
        self.transport.abort()


def _client_name(transport: asyncio.Transport) -> str | None:
    """Returns the subject of the client's certificate, if it presented a verified one."""
    shown = transport.get_extra_info("ssl_object").getpeercert()
    if not shown:
        return None
    return ",".join(f"{key}={value}" for part in shown.get("subject", ()) for key, value in part)


def _sent(problem: Problem, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Returns a problem as the bytes of a response."""
    request_id = secrets.token_hex(16)
    body = encode(problem.document(request_id))
    headers = [
        *default_headers,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
        (b"connection", b"close"),
    ]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[problem.status] + lines + b"\r\n" + body
