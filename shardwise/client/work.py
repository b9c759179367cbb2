"""Work of the client's own that takes seconds: in a thread, or for the blocking client at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def off_loop(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, made in a thread."""
    return await asyncio.to_thread(call)


def at_once(call: Callable[[], Any]) -> Any:
    """Returns what a call returns."""
    return call()
