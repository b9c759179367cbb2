"""Requests and replies without a network: flows yield steps, a driver takes them.

A flow is a generator: it yields a `Step` and gets its outcome sent, or its error thrown. So each
call is written once for `Client`, which blocks, and for `AsyncClient`, which awaits.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from shardwise.client.errors import MEDIA_TYPE, Unreachable, error_of

T = TypeVar("T")
AGAIN = (429, 502, 503, 504)
"""Statuses that may be another at the next try."""


@dataclass(frozen=True)
class Request:
    """One HTTP request; `read_s` is how long its answer may be silent, None: the client's own."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    read_s: float | None = None


@dataclass(frozen=True)
class Reply:
    """A whole answer; names of `headers` are in small letters.

    `after_loss`: the answer to an earlier try, which may have done the work, was lost.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    after_loss: bool = False

    @property
    def retry_after_s(self) -> float | None:
        """Retry-After in seconds; None where there is none, or a date."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


class Stream(Protocol):
    """An answer that comes line by line."""

    status: int


@dataclass(frozen=True)
class Send:
    """Outcome: a `Reply`. Throws `Lost`."""

    request: Request


@dataclass(frozen=True)
class Sleep:
    """Outcome: None, after so long."""

    seconds: float


@dataclass(frozen=True)
class Listen:
    """Outcome: a `Stream`, its headers read. Throws `Lost`."""

    request: Request


@dataclass(frozen=True)
class NextLine:
    """Outcome: the stream's next line, None at its end. Throws `Lost`."""

    stream: Stream


@dataclass(frozen=True)
class Download:
    """Outcome: a `Reply`; the body of a good one is in the file, not in the reply. Throws `Lost`.

    The file is there only once all of it has come.
    """

    request: Request
    file: Path


@dataclass(frozen=True)
class Close:
    """Outcome: None; the stream is closed."""

    stream: Stream


Step = Send | Sleep | Listen | NextLine | Download | Close
Flow = Generator[Step, Any, T]


class Lost(Exception):
    """The connection was not made, broke, or was silent for too long."""


@dataclass(frozen=True)
class Policy:
    """How often and when a request is sent again.

    Every request of this client may be: GET and DELETE by nature, POST because it carries an
    Idempotency-Key. Before try i + 1 it waits `first_s` · 2^i, at most `most_s`, less up to half
    of that by chance, or what Retry-After says if that is within `patience_s`.
    """

    retries: int = 3
    first_s: float = 0.2
    most_s: float = 5.0
    patience_s: float = 30.0

    def pause_s(self, tries: int) -> float:
        """Returns how long to wait after so many tries."""
        longest: float = min(self.first_s * 2.0 ** (tries - 1), self.most_s)
        return longest * random.uniform(0.5, 1.0)

    def again_after_s(self, reply: Reply, tries: int) -> float | None:
        """Returns how long to wait before asking again; None when this reply is the answer."""
        if reply.status not in AGAIN or tries > self.retries:
            return None
        told = reply.retry_after_s
        if told is None:
            # A 429 that names no time is a quota: asking again does not help.
            return None if reply.status == 429 else self.pause_s(tries)
        return None if told > self.patience_s else max(told, self.pause_s(tries))


def exchange(request: Request, policy: Policy) -> Flow[Reply]:
    """Returns the reply to a request, sent again where that may help. Raises `Unreachable`."""
    tries, lost = 0, False
    while True:
        tries += 1
        try:
            reply: Reply = yield Send(request)
        except Lost as error:
            if tries > policy.retries:
                raise Unreachable(str(error)) from None
            lost = True
            yield Sleep(policy.pause_s(tries))
            continue
        wait_s = policy.again_after_s(reply, tries)
        if wait_s is None:
            return replace(reply, after_loss=lost)
        yield Sleep(wait_s)


def asked(request: Request, policy: Policy) -> Flow[Reply]:
    """As `exchange`, for a reply that is no error: else what `error_of` gives is raised."""
    reply = yield from exchange(request, policy)
    return require_good(reply)


def deleted(request: Request, policy: Policy) -> Flow[None]:
    """A DELETE that is answered with nothing. Raises `Missing` for what was not there."""
    reply = yield from exchange(request, policy)
    if not (reply.status == 404 and reply.after_loss):
        require_good(reply)


def require_good(reply: Reply) -> Reply:
    """Returns the reply, if it is not an error."""
    if reply.status < 400 and reply.status not in (301, 302, 303, 307, 308):
        return reply
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise Unreachable(f"status {reply.status}, but not from a Shardwise service")
    raise error_of(reply.status, document_of(reply), reply.retry_after_s)


def document_of(reply: Reply) -> dict[str, Any]:
    """Returns the JSON object of a reply."""
    try:
        document = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise Unreachable(
            "what answers is not a Shardwise service: its answer is not a JSON object"
        )
    return document
