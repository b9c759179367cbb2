"""Responses that are sent for long, and count as open for as long."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.base.fair_slots import Places


class Streamed(StreamingResponse):
    """A response that holds a place of its caller's lane until sending has ended, however it ends.

    Raises `Problem` if the lane has none left.
    """

    def __init__(
        self,
        places: Places,
        lane: str,
        content: AsyncIterator[bytes],
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        places.take(lane)
        self._places = places
        self._lane = lane
        super().__init__(content, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the content, then gives the place back."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.give(self._lane)
