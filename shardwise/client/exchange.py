"""Requests and replies without a network: flows yield steps, a driver runs them.

A flow is a generator: it yields a `Step` and gets its outcome sent, or its error thrown. So each
call is written once for `Client`, which blocks, and for `AsyncClient`, which awaits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from shardwise.client.errors import MEDIA_TYPE, Unreachable, error_of

T = TypeVar("T")
RETRIED = (429, 502, 503, 504)
"""Statuses that may change at the next try."""


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
    """A whole answer; names of `headers` are in lower case.

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
    """Outcome: None, after `seconds`."""

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

    The file exists only once all of it has come.
    """

    request: Request
    file: Path


@dataclass(frozen=True)
class Close:
    """Outcome: None; the stream is closed."""

    stream: Stream


@dataclass(frozen=True)
class Work:
    """Outcome: what `call` returns, or what it raises; it may take seconds."""

    call: Callable[[], Any]


Step = Send | Sleep | Listen | NextLine | Download | Close | Work
Flow = Generator[Step, Any, T]


class Lost(Exception):
    """The connection was not made, broke, or was silent for too long."""


@dataclass(frozen=True)
class Policy:
    """How often and when a request is sent again.

    Every request of this client may be repeated: GET and DELETE by nature, POST because it carries
    an Idempotency-Key. Before try i + 1 it waits `first_s` · 2^i, at most `most_s`, less up to half
    of that by chance, or what Retry-After says if that is within `patience_s`.
    """

    retries: int = 3
    first_s: float = 0.2
    most_s: float = 5.0
    patience_s: float = 30.0

    def pause_s(self, tries: int) -> float:
        """Returns how long to wait after `tries` tries."""
        longest: float = min(self.first_s * 2.0 ** (tries - 1), self.most_s)
        return longest * random.uniform(0.5, 1.0)

    def retry_pause_s(self, reply: Reply, tries: int) -> float | None:
        """Returns how long to wait before asking again; None when this reply is the answer."""
        if reply.status not in RETRIED or tries > self.retries:
            return None
        after_s = reply.retry_after_s
        if after_s is None:
            # A 429 without a time is a quota: asking again does not help.
            return None if reply.status == 429 else self.pause_s(tries)
        return None if after_s > self.patience_s else max(after_s, self.pause_s(tries))


def exchange(request: Request, policy: Policy) -> Flow[Reply]:
    """Returns the reply to a request, with retries where they may help. Raises `Unreachable`."""
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
        wait_s = policy.retry_pause_s(reply, tries)
        if wait_s is None:
            return replace(reply, after_loss=lost)
        yield Sleep(wait_s)


def asked(request: Request, policy: Policy) -> Flow[Reply]:
    """Returns the reply as `exchange` does. Raises the error of `error_of` if it is one."""
    reply = yield from exchange(request, policy)
    return require_good(reply)


def deleted(request: Request, policy: Policy) -> Flow[None]:
    """Deletes, without a document in return. Raises `Missing` if it did not exist."""
    reply = yield from exchange(request, policy)
    if not (reply.status == 404 and reply.after_loss):
        require_good(reply)


def require_good(reply: Reply) -> Reply:
    """Returns the reply. Raises its error if it is one."""
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
