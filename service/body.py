"""Request bodies: read within a limit, gzip undone within it too."""

from __future__ import annotations

import zlib

from starlette.requests import ClientDisconnect, Request

from service.problems import Problem
from service.settings import Settings

_CHUNK = 2**16
_FREE = 2**20


async def read_body(request: Request, settings: Settings, limit: int | None = None) -> bytes:
    """The body, decompressed; problems too-large, bad-encoding, unsupported-media-type.

    `limit`: bytes, where that is not the settings' `max_body_bytes`.
    """
    limit = min(limit or settings.max_body_bytes, settings.max_body_bytes)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            parts.append(chunk)
    except ClientDisconnect:
        raise Problem("bad-request", "the client went away before its body ended") from None
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        # A file that is gzip itself (graph.json.gz) may be sent as it is.
        return gunzip(body, limit, settings.max_gzip_ratio) if body[:2] == b"\x1f\x8b" else body
    if encoding in ("gzip", "x-gzip"):
        return gunzip(body, limit, settings.max_gzip_ratio)
    raise Problem(
        "unsupported-media-type",
        f"the encoding {encoding[:40]!r} is not understood",
        headers={"Accept-Encoding": "gzip"},
    )


def gunzip(data: bytes, limit: int, max_ratio: int) -> bytes:
    """The content of gzip data, of one or more members, never holding more than `limit`."""
    most = min(limit, _FREE + max_ratio * len(data))
    parts: list[bytes] = []
    total = 0
    rest = data
    try:
        while rest:
            inflate = zlib.decompressobj(wbits=31)
            while not inflate.eof:
                part = inflate.decompress(rest, _CHUNK)
                total += len(part)
                if total > most:
                    raise _too_large(limit)
                parts.append(part)
                rest = inflate.unconsumed_tail
                if not part and not rest and not inflate.eof:
                    raise Problem("bad-encoding", "the gzip data ends early")
            rest = inflate.unused_data
    except zlib.error as error:
        raise Problem("bad-encoding", f"broken gzip data: {error}") from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"at most {limit} bytes are read", limit_bytes=limit)
