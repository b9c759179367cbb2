"""Calls of assistants' tools with the SDK's own client, over any transport."""

from __future__ import annotations

from typing import Any

from mcp.client.client import Client
from mcp_types import CallToolResult


def text_of(result: CallToolResult) -> str:
    """Returns the one text of a result."""
    (content,) = result.content
    assert content.type == "text"
    return content.text


async def document_of(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Returns the document of a call, which has to succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content
