"""The tools over standard input and output, for an assistant that starts `shardwise mcp`."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from shardwise import validation
from shardwise.cost.options import Progress
from shardwise.mcp.calls import Report, computed
from shardwise.mcp.local import Answer, Desk
from shardwise.mcp.server import Context, make_server
from shardwise.mcp.tool import Tool
from shardwise.mcp.tools import TOOLS

LISTS = 4
"""Calls without a search that run at the same time."""


def serve() -> None:
    """Answers calls until standard input ends.

    One search runs at a time, on all cores; further ones wait. While it serves, the SDK points
    descriptor 1 at standard error, so that nothing but the protocol is on standard output.
    """
    # The reader of standard input waits in a thread that Ctrl-C would not wake.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve)


async def _serve() -> None:
    desk = Desk()
    searching, listing = anyio.CapacityLimiter(1), anyio.CapacityLimiter(LISTS)

    async def compute(
        tool: Tool[Answer], values: Mapping[str, Any], report: Report, context: Context
    ) -> Any:
        def answer(progress: Progress) -> Any:
            return tool.answer(desk, validation.convert(values, tool.arguments), progress)

        return await computed(answer, report, searching if tool.searches else listing)

    server = make_server(TOOLS, compute)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
