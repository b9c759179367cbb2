"""Commands that the apps bring: found by entry point, loaded when they are called.

The library imports no app (ARCHITECTURE.md, Rooms). An app registers its commands in the group
`shardwise.commands`; without the app's extra the command says what to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

import click

from shardwise.errors import BadInput

GROUP = "shardwise.commands"
HELP: Mapping[str, tuple[str, str]] = {
    "serve": ("service", "Run the service; without a Redis, with its own broker and worker."),
    "worker": ("worker", "Compute what the service is asked."),
    "migrate": ("service", "Bring the service's database schema to this release's."),
    "backup": ("service", "Write all that a service has stored to a file."),
    "restore": ("service", "Bring a backup into an empty database."),
    "agent": ("agent", "Lend this host to the service: measure, launch, report."),
    "keys": ("service", "Make, list, rotate and revoke the service's keys."),
    "tenants": ("service", "List, make, limit, export and delete the service's tenants."),
    "audit": ("service", "Say who changed what on the service."),
}
"""Commands of the apps in this package: the extra that each needs, and one line of help."""


class Commands(click.Group):
    """The group of all commands; the apps' are loaded only when one of them is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, without loading an app."""
        return sorted({*super().list_commands(ctx), *HELP, *_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command of the library, or an app's."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        return _load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, but with the apps' help from here: loading them takes a second."""
        rows = []
        for name in self.list_commands(ctx):
            own = super().get_command(ctx, name)
            if own is not None and not own.hidden:
                rows.append((name, own.get_short_help_str(limit=78)))
            elif own is None:
                rows.append((name, HELP.get(name, ("", "A command of another package."))[1]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(name: str) -> click.Command | None:
    point = _points().get(name)
    if point is None:
        if name in HELP:
            raise BadInput(
                "this installation has no such entry point", field=name, expected="a reinstall"
            )
        return None
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        extra = HELP.get(name, ("", ""))[0]
        raise BadInput(
            f"needs {error.name}, which is not installed",
            field=name,
            expected=f"pip install 'shardwise[{extra}]'" if extra else None,
        ) from None
    if not isinstance(command, click.Command):
        raise BadInput(f"{point.value} is no command", field=name)
    return command
