"""mcp: the answers as tools for assistants."""

from __future__ import annotations

import click

from shardwise.errors import BadInput


@click.command()
def mcp() -> None:
    """Serve plans, curves, quotes and more as tools of the Model Context Protocol.

    An assistant starts this command and speaks with it over standard input and output
    (docs/how-to/assistants.md).
    """
    try:
        from shardwise.mcp.stdio import serve
    except ModuleNotFoundError as error:
        raise BadInput(
            f"needs {error.name}, which is not installed",
            field="mcp",
            expected="pip install 'shardwise[mcp]'",
        ) from None
    serve()
