"""Request bodies: read and decompressed within a limit, in one pass and off the event loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from starlette.requests import ClientDisconnect, Request

from service.base.problems import Problem
from service.edge.state import State

MAX_MEMBERS = 2048
"""Members of one gzip body. Blocked gzip has one for each 64 KiB: 1,025 for the largest body."""

_WINDOW = 2**14
"""Bytes of input given to zlib at once, so that it never copies the whole unread rest."""

_CHUNK = 2**16
_FREE = 2**20
_GZIP = b"\x1f\x8b"


async def read_body(request: Request, state: State, lane: str, limit: int | None = None) -> bytes:
    """Returns the body, decompressed in a thread of the caller's lane.

    `limit`: bytes, where that is not the settings' `max_body_bytes`. Raises `Problem` of type
    too-large, bad-encoding, unsupported-media-type, or bad-request when the client went away.
    """
    most = state.settings.max_body_bytes
    limit = min(limit or most, most)
    body = await _received(request, limit)
    return await decoded(body, _encoding(request), limit, state, lane)


async def decoded(body: bytes, encoding: str, limit: int, state: State, lane: str) -> bytes:
    """Returns a body without its encoding, `identity` or `gzip`; raises as `read_body` does."""
    if encoding in ("gzip", "x-gzip") or (encoding == "identity" and body[:2] == _GZIP):
        # A file that is gzip itself (graph.json.gz) may be sent as it is.
        ratio = state.settings.max_gzip_ratio
        return await state.pools.unpacking.run(lane, gunzip, body, limit, ratio)
    if encoding == "identity":
        return body
    raise Problem(
        "unsupported-media-type",
        f"the encoding {encoding[:40]!r} is not supported",
        headers={"Accept-Encoding": "gzip"},
    )


async def read_plain_body(request: Request, limit: int, within_s: float) -> bytes:
    """Returns a small body that contains the caller's credential, which is not known yet.

    Nothing is decompressed. Raises `Problem` of type unsupported-media-type for an encoding,
    too-large beyond `limit` bytes, timeout if it has not arrived within `within_s` seconds.
    """
    if _encoding(request) != "identity":
        raise Problem(
            "unsupported-media-type",
            "a body without a key or token in the headers must not be encoded",
            expected="no Content-Encoding",
        )
    try:
        async with asyncio.timeout(within_s):
            return await _received(request, limit)
    except TimeoutError:
        raise Problem(
            "timeout", f"the body did not arrive within {within_s:g} s", headers=CLOSE
        ) from None


CLOSE = {"Connection": "close"}
"""For responses after which nothing more of the request is read."""


def _encoding(request: Request) -> str:
    return request.headers.get("content-encoding", "").strip().lower() or "identity"


async def _received(request: Request, limit: int) -> bytes:
    """Returns the bytes as they were sent, at most `limit`."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    # Grows in place: a body may come in pieces of one byte.
    body = bytearray()
    try:
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise _too_large(limit)
            body += chunk
    except ClientDisconnect:
        raise Problem("bad-request", "the client went away before its body ended") from None
    return bytes(body)


def gunzip(data: bytes, limit: int, max_ratio: int) -> bytes:
    """Returns the content of gzip data, of one or more members, in time linear in its length.

    Holds at most `limit` bytes. Raises `Problem` of type too-large beyond it or beyond `max_ratio`,
    bad-encoding for data that is corrupt, truncated, or of more than `MAX_MEMBERS` members.
    """
    most = min(limit, _FREE + max_ratio * len(data))
    parts: list[bytes] = []
    total = 0
    try:
        for part in _inflated(memoryview(data)):
            total += len(part)
            if total > most:
                raise _too_large(limit)
            parts.append(part)
    except zlib.error as error:
        raise Problem("bad-encoding", f"broken gzip data: {error}") from None
    return b"".join(parts)


def _inflated(data: memoryview) -> Iterator[bytes]:
    """Yields the content of all members in parts of at most `_CHUNK` bytes."""
    at = members = 0
    while at < len(data):
        members += 1
        if members > MAX_MEMBERS:
            raise Problem("bad-encoding", f"the gzip data has more than {MAX_MEMBERS} members")
        inflate = zlib.decompressobj(wbits=31)
        while not inflate.eof:
            window = data[at : at + _WINDOW]
            part = inflate.decompress(window, _CHUNK)
            at += len(window) - len(inflate.unconsumed_tail) - len(inflate.unused_data)
            if not (part or window or inflate.eof):
                raise Problem("bad-encoding", "the gzip data ends early")
            yield part


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"at most {limit} bytes are read", limit_bytes=limit)
