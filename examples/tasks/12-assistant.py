"""Asks as an assistant does, over the Model Context Protocol: starts `shardwise mcp`, calls a tool.

Needs: the extra mcp.
"""

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def main() -> None:
    server = StdioServerParameters(command="shardwise", args=["mcp"])
    async with Client(stdio_client(server)) as client:
        tools = await client.list_tools()
        print("tools:", ", ".join(sorted(tool.name for tool in tools.tools)))
        question = {"graph": "shipped:gpt2", "hardware": "dgx-h100", "gpus": 8}
        answer = await client.call_tool("plan", {**question, "space": "deepspeed"})
        print(answer.content[0].text)


anyio.run(main)
