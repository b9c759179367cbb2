"""Responses that are sent for long, and count as open for as long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Streamed(StreamingResponse):
    """A response that holds what is in `held` until sending has ended, however it ends.

    Its place is taken before anything is read or written for it, since a refusal has to be the
    cheapest answer:

        with ExitStack() as held:
            held.enter_context(places.one(lane))
            ...
            return Streamed(held.pop_all(), ...)
    """

    def __init__(
        self,
        held: ExitStack,
        content: AsyncIterator[bytes],
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        self._held = held
        super().__init__(content, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the content, then gives back what is held."""
        with self._held:
            await super().__call__(scope, receive, send)
