"""Every command by name; its module is imported when it is called.

A command of an app is an entry point in the group `shardwise.commands`, since the library imports
no app; without the app's extra the command says what to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import click

from shardwise.errors import BadInput

GROUP = "shardwise.commands"
OWN: Mapping[str, tuple[str, str]] = {
    "agents": ("launches", "The agents of a service."),
    "calibrate": ("calibrate", "Fit a profile to a step that you have measured."),
    "capture": (
        "graphs",
        "Capture a model: package.module:callable, hf:, diffusers:, timm:, zoo:, .onnx.",
    ),
    "compare": ("compare", "Other systems' strategies and our frontier on one cost model."),
    "curve": ("advice", "The shortest iteration time for every GPU count."),
    "explain": ("explain", "Which operator is split how, and what it costs."),
    "export": ("export", "Write what starts a plan's hosts, in a scheduler's form."),
    "frontier": ("advice", "Every strategy that no other beats in both memory and time."),
    "hardware": ("lists", "Hardware profiles."),
    "inspect": ("graphs", "Operators, parameters, activations, flops, and what is not described."),
    "launch": ("launches", "Run a plan on a service's agents."),
    "launches": ("launches", "The launches of a service."),
    "mcp": ("mcp", "Answer an assistant over standard input and output, as its tools."),
    "measure": (
        "measure",
        "Measure this machine; under torchrun or srun, all machines of the job.",
    ),
    "offers": ("lists", "Prices of cloud instances."),
    "plan": ("plan", "The strategy that an objective picks, spelled out to be executed."),
    "policy": ("policy", "Train and evaluate the learned strategy maker for mixed devices."),
    "quote": ("advice", "The fewest GPUs on which the job fits; offers ranked by price."),
    "run": ("run", "Train a few steps by a plan."),
    "schema": ("schema", "JSON Schemas of the documents."),
    "simulate-cluster": ("cluster", "Compare policies of sharing a cluster, on a simulated one."),
    "solve": ("solving", "Track the frontier of a problem file."),
}
"""Commands of the library: the module below `shardwise.cli`, and one line of help."""

APPS: Mapping[str, tuple[str, str]] = {
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
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns every name, without importing a command."""
        return sorted({*OWN, *APPS, *_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command of the library or of an app; None if no command has that name."""
        return _own(cmd_name) if cmd_name in OWN else _of_an_app(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list as click does, with the lines of help from here."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _line(name)) for name in self.list_commands(ctx)])


def _line(name: str) -> str:
    known = OWN.get(name) or APPS.get(name)
    return known[1] if known else "A command of another package."


def _own(name: str) -> click.Command:
    module = import_module(f"shardwise.cli.{OWN[name][0]}")
    command: click.Command = getattr(module, name.replace("-", "_"))
    return command


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _of_an_app(name: str) -> click.Command | None:
    point = _points().get(name)
    if point is None:
        if name in APPS:
            raise BadInput(
                "this installation has no such entry point", field=name, expected="a reinstall"
            )
        return None
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        raise not_installed(name, error) from None
    if not isinstance(command, click.Command):
        raise BadInput(
            f"{point.value} is not a command",
            field=name,
            expected="MODULE:COMMAND, where that is a click command",
        )
    return command


def not_installed(name: str, error: ModuleNotFoundError) -> BadInput:
    """Returns the error of a command whose extra is not installed, or not all of it."""
    extra = APPS.get(name, ("", ""))[0]
    return BadInput(
        f"needs {error.name}, which is not installed",
        field=name,
        expected=f"pip install 'shardwise[{extra}]'" if extra else None,
    )
