"""`python -m agent`: the command without `shardwise` before it."""

from __future__ import annotations

import sys

import click

from agent.commands import agent
from shardwise.errors import ShardwiseError

if __name__ == "__main__":
    try:
        code = agent.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        print(f"shardwise: error: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    except ShardwiseError as error:
        print(f"shardwise: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
