"""Requests as every call of the client builds them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from shardwise.client.exchange import Request

REQUEST_ID = "X-Request-Id"
IDEMPOTENCY_KEY = "Idempotency-Key"


def post(
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    query: tuple[tuple[str, str], ...] = (),
) -> Request:
    """Returns a POST that may be sent again: a repeat is answered as the first one was."""
    once = secrets.token_hex(16)
    return Request(
        "POST",
        path,
        query,
        {IDEMPOTENCY_KEY: once, REQUEST_ID: once, **(headers or {})},
        body,
    )


def post_json(path: str, document: Any) -> Request:
    """Returns a POST of a JSON document."""
    return post(path, msgspec.json.encode(document), {"Content-Type": "application/json"})


def path_of(*parts: str) -> str:
    """Returns the path `/v1/…` of names that others chose."""
    return "/".join(["/v1", *(quote(part, safe=":*") for part in parts)])
