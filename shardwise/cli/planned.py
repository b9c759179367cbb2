"""Commands of the contract that are not built yet: each says so and exits with 2."""

from __future__ import annotations

import click

from shardwise.errors import BadInput

PLANNED = {
    "run": "executing a plan",
    "agent": "node agents",
}


def _command(name: str, what: str) -> click.Command:
    @click.command(
        name=name,
        help=f"Not yet: {what}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1)
    def later(arguments: tuple[str, ...]) -> None:
        raise BadInput(f"not yet: {what} comes with a later release", field=name)

    return later


COMMANDS = tuple(_command(name, what) for name, what in PLANNED.items())
