"""Requests to the provider: bounded in time, bytes and number, without redirects."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import httpx
import msgspec

from service.base.login_required import is_safe
from service.base.problems import Problem

log = logging.getLogger(__name__)
MAX_ANSWER_BYTES = 2**20
CONNECT_S = 5.0
WITHIN_S = 10.0
"""Longest time of a whole request, answer included."""

AT_ONCE = 16
"""Requests at once of one process; outsiders can cause them, so that more are refused."""


def unreachable(reason: str) -> Problem:
    """Returns the problem of a provider that does not respond as it should.

    The reason goes only to the log.
    """
    log.warning("the identity provider: %s", reason)
    headers = {"Retry-After": "5"}
    return Problem("unavailable", "the identity provider cannot be used just now", headers=headers)


class Fetcher:
    """Sends requests to the provider."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None
        self._running = 0

    async def __call__(
        self,
        url: Any,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON object of the answer to a GET, or to a POST of a form.

        Raises a problem `unavailable` if there is no such answer in time.
        """
        if not (isinstance(url, str) and is_safe(url)):
            raise unreachable("it names an address without https")
        if self._running >= AT_ONCE:
            raise unreachable("too many requests to it at once")
        self._running += 1
        try:
            async with asyncio.timeout(WITHIN_S):
                status, body = await self._ask(url, form, headers or {}, auth)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise unreachable(f"{type(error).__name__} at {url}") from None
        finally:
            self._running -= 1
        try:
            return status, msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise unreachable(f"no JSON object at {url}, status {status}") from None

    async def _ask(
        self,
        url: str,
        form: dict[str, str] | None,
        headers: dict[str, str],
        auth: tuple[str, str] | None,
    ) -> tuple[int, bytes]:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        timeout = httpx.Timeout(WITHIN_S, connect=CONNECT_S)
        # Uncompressed, so that the bytes counted are the bytes read.
        asked = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        method = "GET" if form is None else "POST"
        async with (
            httpx.AsyncClient(verify=self._tls, timeout=timeout, follow_redirects=False) as client,
            client.stream(method, url, data=form, headers=asked, auth=auth) as answer,
        ):
            body = bytearray()
            async for part in answer.aiter_raw():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise unreachable(f"more than {MAX_ANSWER_BYTES} bytes at {url}")
            return answer.status_code, bytes(body)
