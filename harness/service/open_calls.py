"""Calls of an application in this process that stay open: their clients read nothing more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message


class OpenCall:
    """A GET whose answer is not read beyond its first piece until `close` ends it."""

    def __init__(self, app: ASGIApp, key: str, path: str, **headers: str) -> None:
        parts = urlsplit(path)
        given = {"host": "127.0.0.1", "authorization": f"Bearer {key}", **headers}
        self._scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
            "path": parts.path, "raw_path": parts.path.encode(), "root_path": "",
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        self._answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._asked = False
        self._status = 0
        self._task = asyncio.ensure_future(app(self._scope, self._receive, self._send))

    async def status(self) -> int:
        """Returns the status once the first piece of the answer was there."""
        await asyncio.wait({self._task, self._answered}, return_when=asyncio.FIRST_COMPLETED)
        return await self._answered if self._answered.done() else self._status

    @property
    def waits(self) -> bool:
        """Whether nothing of an answer has come yet."""
        return not self._status and not self._task.done()

    async def close(self) -> None:
        """Goes away, as a client that disconnects."""
        self._gone.set()
        with suppress(OSError):  # as a server when it sends to a client that has gone
            await asyncio.wait_for(self._task, 30)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        if not self._answered.done():
            self._answered.set_result(self._status)
        if message.get("more_body"):
            await self._gone.wait()
            raise OSError("the client has gone")
