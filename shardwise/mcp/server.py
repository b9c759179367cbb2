"""The protocol's server: lists the tools, and answers calls with documents or tool errors.

Tools and what computes their answers are given: this process (`shardwise.mcp.tools`) or a service.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import anyio.to_thread
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from shardwise import __version__
from shardwise.errors import ShardwiseError, defect_text
from shardwise.mcp.calls import Report
from shardwise.mcp.texts import text_of
from shardwise.mcp.tool import Tool

INSTRUCTIONS = (
    "Shardwise advises on parallelism for training neural networks: how fast a model trains on a "
    "number of GPUs and by which strategy (plan), how it scales (curve), where it is cheapest "
    "(quote), what a trainer's configuration takes (price_configuration). Begin with list_graphs "
    "and list_hardware. Sizes are in bytes, times in seconds, prices in USD. Times are predicted "
    "by a cost model unless the document says that they were measured. Each answer has the whole "
    "document and a short text."
)
Context: TypeAlias = ServerRequestContext[Any, Any]
A = TypeVar("A")
Compute: TypeAlias = Callable[[Tool[A], Mapping[str, Any], Report, Context], Awaitable[Any]]
"""Returns the document of a tool for these arguments; raises `ShardwiseError`."""

InThread: TypeAlias = Callable[[Context, Callable[[Any], Any], Any], Awaitable[Any]]
"""Returns the result of a function of one argument, called in a thread."""


async def in_any_thread(context: Context, act: Callable[[Any], Any], argument: Any) -> Any:
    """Returns the result of `act`, whoever asks."""
    return await anyio.to_thread.run_sync(act, argument)


def make_server(
    tools: Mapping[str, Tool[A]], compute: Compute[A], in_thread: InThread = in_any_thread
) -> Server[Any]:
    """Returns a server of these tools, by name, which `compute` answers.

    `in_thread` runs what takes a while for the caller of `context`.
    """
    schemas = {tool.name: tool.input_schema() for tool in tools.values()}
    listed = types.ListToolsResult(tools=[_listed(tool) for tool in tools.values()])

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return listed

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS,
                f"unknown tool {params.name[:80]!r} (expected {', '.join(tools)})",
            )

        async def report(done: float, stage: str) -> None:
            await context.session.report_progress(done, message=stage)

        try:
            document = await compute(tool, params.arguments or {}, report, context)
            # The words of a large plan take a while.
            answer: types.CallToolResult = await in_thread(context, _answered, document)
            return answer
        except Exception as error:
            return _refused(error)

    return Server(
        "shardwise",
        version=__version__,
        title="Shardwise",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,
    )


def _listed(tool: Tool[A]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.output_schema(),
        annotations=types.ToolAnnotations(
            read_only_hint=True, idempotent_hint=True, open_world_hint=False
        ),
    )


def _answered(document: Any) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=text_of(document))],
        # As it is published: JSON has no infinities and no tuples.
        structured_content=msgspec.json.decode(msgspec.json.encode(document)),
    )


def _refused(error: Exception) -> types.CallToolResult:
    """Returns an error of the tool, which the model that called it can read and act on."""
    return types.CallToolResult(content=[types.TextContent(text=error_text(error))], is_error=True)


def error_text(error: Exception) -> str:
    """Returns an error in one line; a defect's traceback goes to standard error if
    `SHARDWISE_DEBUG` is 1."""
    if isinstance(error, ShardwiseError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'file'}: {error.strerror.lower()}"
    if os.environ.get("SHARDWISE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    return defect_text(error)
