"""HTTP/1.1 within bounds, before anybody is asked for a key: uvicorn's protocol with limits.

A connection is in one of these states, and in each a timer runs or the application works:

    head      a request is waited for, or its line and headers are arriving (`head_s`, and uvicorn's
              keep-alive where nothing of the next request has come)
    body      the head is there, the body is arriving (`body_silence_s` between two pieces)
    answer    the request is there, the application works; what comes behind it is not read
    linger    it is answered, and the rest of its body is thrown away for a moment: closing at once
              could take the answer away from a client that still sends

What the parser is given is cut so that it never holds more than `max_head_bytes` of a head, of
trailers or of chunk extensions, and never sees a request behind one that is not answered.
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
from service.host.connections import Connections, Slot

log = logging.getLogger(__name__)
MAX_HEADERS = 200
"""Fields of one request. A field of four bytes costs fifty times as much once it is read."""

MAX_PIPELINED = 16
"""Requests behind one that is being answered, of those that share a piece with its end."""

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

    held = False

    def resume_reading(self) -> None:
        """As uvicorn's, unless something is held."""
        if not self.held:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Behind a TLS handshake it has its place, `slot`, before it begins."""

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
        """Bytes since the parser last had something to tell."""
        self._held = b""
        """What came behind a request that is not answered, from `_held_at` on."""
        self._held_at = 0
        self._deaf = False
        """Whether what comes is thrown away."""
        self._linger_left = LINGER_BYTES
        self._heard = 0.0
        self._timer: TimerHandle | None = None
        self._send_timer: TimerHandle | None = None
        self._unsent = 0
        self._client_name: str | None = None
        self._running: RequestResponseCycle | None = None
        """The request that is answered: uvicorn's `cycle` is the newest of a pipeline."""

    @property
    def begun(self) -> bool:
        """Whether there is, or was, a connection."""
        return self.transport is not None

    # What the transport tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, or answers 503 where there is none."""
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
        """Frees the place and what was kept."""
        self._clear_timer()
        self._unset_keepalive_if_required()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        if self.slot is not None:
            self._places.leave(self.slot)
        self._held = b""
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
        if self._held:
            self._held, self._held_at = self._held[self._held_at :] + data, 0
            return
        self._feed(data)

    def pause_writing(self) -> None:
        """Watches that a client which is slow to read does read."""
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        """The client has read."""
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
        """Behind the head if its end is there; never more than what is left of the bound."""
        most = at + self._bounds.max_head_bytes - self._unread
        if not self._in_body:
            found = data.find(_END, at, most)
            if found >= 0:
                return found + len(_END)
        return min(most, len(data))

    def _parse(self, piece: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # No other protocol is spoken here, and where this request ends is not known: it is
            # answered, and nothing behind it is read.
            if not self._deaf:
                self.cycle.keep_alive = False
                self._deaf = True
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(Problem("bad-request", "this is not an HTTP/1.1 request"), "malformed")

    def _hold(self, data: bytes, at: int) -> None:
        """Keeps what came behind a request until that is answered, and reads no more."""
        self._held, self._held_at = data, at
        self.flow.held = True
        self.flow.pause_reading()

    def _release(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._unset_keepalive_if_required()
            self.flow.held = False
            self.flow.resume_reading()
            self._feed(data, self._held_at)

    # What the parser tells.

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._deaf:
            super().on_message_begin()
            if self.scheme == "https":
                self.scope["extensions"] = {"tls": {"client_cert_name": self._client_name}}

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers behind a body are not wanted."""
        if not (self._deaf or self._in_body or len(self.headers) > MAX_HEADERS):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application gets the request."""
        if self._deaf:
            return
        self._clear_timer()
        self._unread = 0
        if len(self.headers) > MAX_HEADERS:
            self._refuse(
                Problem("headers-too-large", f"at most {MAX_HEADERS} headers are read"), "head"
            )
            return
        self._in_body = True
        if self.slot is not None:
            self._places.works(self.slot)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._deaf:
            self._unread = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there in full."""
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
        """The answer is given to the transport."""
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
        """Tells the application that nobody waits for its answer."""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _rest(self) -> None:
        """Between two requests, where the answer was out before the body was in."""
        self._linger_left = LINGER_BYTES
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if self.slot is not None:
            self._places.waits(self.slot)

    # Time.

    def _watch(self) -> None:
        """Starts the timer of a head or a body that is not all there."""
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
        """Ends a body of which nothing has come for too long, though it is waited for."""
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
        """Throws away what comes for a moment, then closes."""
        self._clear_timer()
        self._linger_left = LINGER_BYTES
        self.flow.held = False
        self.flow.resume_reading()
        self._timer = self.loop.call_later(LINGER_S, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come; what is left of the last answer is still sent."""
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
        """A problem document where uvicorn would send text."""
        self._refuse(Problem("bad-request", msg), "malformed")

    def _refuse_head(self) -> None:
        most = self._bounds.max_head_bytes
        # What is long is the address or the headers: whichever has the larger part of the bound.
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
        self._held = b""
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
        """Answers 503 and closes at once: what has no place must not stay."""
        self._deaf = True
        self._on_refusal("connections")
        problem = Problem("unavailable", "too many connections", headers={"Retry-After": "1"})
        self.transport.write(_sent(problem, self.server_state.default_headers))
        self._close()

    def _close(self) -> None:
        """Closes when what was written is sent; soon at any rate."""
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
    """Returns the subject of the client's certificate, if it showed one that was verified."""
    shown = transport.get_extra_info("ssl_object").getpeercert()
    if not shown:
        return None
    return ",".join(f"{key}={value}" for part in shown.get("subject", ()) for key, value in part)


def _sent(problem: Problem, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Returns a problem as the bytes of an answer."""
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
