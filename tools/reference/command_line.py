"""docs/reference/cli.md: every command with its arguments and options, read from the click tree.

It needs the extras of the apps whose commands it lists (service, worker, agent).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc

import click

from shardwise.cli.advisor import KEY_VARIABLE, SERVER_VARIABLE, server_options
from shardwise.cli.arguments import search_options
from shardwise.cli.main import EXIT_CODES, cli
from shardwise.cli.run import RUN_DIR_VARIABLE
from shardwise.files import LIMIT_VARIABLE

VARIABLES: Mapping[str, str] = {
    "SHARDWISE_DEBUG": "`1`: show where an error came from.",
    LIMIT_VARIABLE: "The largest file that is read; 256 MiB otherwise.",
    SERVER_VARIABLE: "The service that is asked; `--server` says the same.",
    KEY_VARIABLE: "The service's key; `--key-file` names a file that holds it.",
    RUN_DIR_VARIABLE: "The folder of an agent's launch: `plan.json`, `graph.json`, `report/`.",
    "SHARDWISE_CONFIG": "A TOML file with the service's [settings](settings.md); each of them "
    "is a variable too.",
    "SHARDWISE_ENROL_TOKEN": "The one-time token with which an agent enrols.",
}
ARGUMENTS: Mapping[str, str] = {
    "agent_id": "An agent's id, as `agents list` shows it.",
    "arguments": "After `--`: what goes to the entry point.",
    "file": "The backup or archive file.",
    "files": "What the other program wrote.",
    "graph": "A file that `capture` wrote (`.json`, `.json.gz`), `shipped:NAME` or a "
    "[preset](../presets.md).",
    "key_id": "A key's id, as `keys list` shows it.",
    "kind": "The word of a document's `schema` member, as `schema` lists them; `plan`, for one.",
    "launch_id": "A launch's id, as `launches list` shows it.",
    "launcher": "After `--`: arguments of torchrun.",
    "limit": "The name of a setting of which a tenant may have its own value.",
    "name": "A built-in name or a profile file, with or without `*NODES`.",
    "plan": "A file that `plan` wrote; of a service also a plan's id (`sha256:…`).",
    "plan_file": "A file that `plan` wrote; without it the plan of the agent's launch.",
    "problem": "A `shardwise.problem/1` file.",
    "source": "A [preset](../presets.md), `package.module:callable`, `hf:CONFIG[:key=value,…]`, "
    "`hf:./config.json`, `diffusers:CLASS`, `timm:NAME`, `zoo:NAME` "
    "([models](../models.md)) or `FILE.onnx[:dimension=size,…]` ([ONNX files](../onnx.md)).",
    "subject": "A person, by the identity provider's `sub`, as the audit shows it behind `oidc:`.",
    "tenant": "A tenant's name.",
    "value": "A number or a size; without it the settings' own value applies.",
    "weights": "A file that `policy train` wrote.",
}
"""What each argument is, by its name: older releases of click have no help for arguments."""


def page() -> str:
    """Returns the whole page."""
    parts = [
        "# Command line",
        "",
        "Made by `make reference`. An [overview](../commands.md) with what belongs together.",
        "",
        "| exit code | means |",
        "|---|---|",
        *(f"| {code} | {text} |" for code, text in EXIT_CODES.items()),
        "",
        "| variable | what it is |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in VARIABLES.items()),
        "",
    ]
    shared = _shared()
    for name, command in commands():
        parts += _command(name, command, shared)
    for title, options in shared.items():
        parts += [f"## {title}", "", *_options(options), ""]
    return "\n".join(parts)


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Yields every command that is not a group, with its words after `shardwise`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None and not command.hidden:
            yield " ".join((*path, name)), command


def _shared() -> dict[str, list[click.Option]]:
    """Returns options that many commands have, by the title of their own part of the page."""

    def nothing() -> None:
        """Takes the options."""

    apps = dict(commands())["migrate"]
    return {
        "Options of every search": _own(click.command()(search_options(nothing))),
        "Options that ask a service": _own(click.command()(server_options(nothing))),
        "Options of the service programs": _own(apps),
    }


def _own(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def _command(
    name: str, command: click.Command, shared: Mapping[str, list[click.Option]]
) -> Iterator[str]:
    """Yields a command's part of the page."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    usage = command.collect_usage_pieces(click.Context(command, info_name=name))
    yield from (f"## {name}", "", f"`shardwise {' '.join([name, *usage])}`", "")
    yield from (linked(cleandoc(command.help or "")), "")
    if arguments:
        yield from ("| argument | what it is |", "|---|---|")
        for argument in arguments:
            yield f"| `{argument.human_readable_name}` | {ARGUMENTS[argument.name or '']} |"
        yield ""
    options = _own(command)
    also = []
    for title, group in shared.items():
        known = {_same(option) for option in group}
        if known <= {_same(option) for option in options}:
            options = [option for option in options if _same(option) not in known]
            also.append(f"[{title[0].lower()}{title[1:]}](#{title.lower().replace(' ', '-')})")
    if options:
        yield from (*_options(options), "")
    if also:
        yield from (f"Also {' and '.join(also)}.", "")


def _same(option: click.Option) -> tuple[object, ...]:
    return (*option.opts, option.help)


def _options(options: Iterable[click.Option]) -> list[str]:
    """Returns a table of options."""
    rows = ["| option | default | what it is |", "|---|---|---|"]
    for option in options:
        value = "" if option.is_flag else f" {_metavar(option)}"
        *short, long = option.opts
        flags = ", ".join(f"`{flag}`" for flag in (*short, f"{long}{value}"))
        default = _default(option)
        rows.append(f"| {flags} |{f' {default} ' if default else ' '}| {_text(option)} |")
    return rows


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.types.IntParamType):
        return "N"
    return "X" if isinstance(option.type, click.types.FloatParamType) else "TEXT"


def _default(option: click.Option) -> str:
    """Returns the value that applies without the option, or an empty string."""
    value = option.default
    if option.required:
        return "needed"
    if option.is_flag or not isinstance(value, str | int | float | tuple) or value in ("", ()):
        return ""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"`{v:g}`" if isinstance(v, float) else f"`{v}`" for v in values)


def _text(option: click.Option) -> str:
    """Returns an option's help with its choices, repetition and environment variable."""
    text = linked((option.help or "").replace("|", "\\|")).rstrip(".")
    text = re.sub(r"\.? \[(SHARDWISE_\w+)\]$", r". Variable: `\1`", text)
    if isinstance(option.type, click.Choice) and any(c not in text for c in option.type.choices):
        text += ". One of " + ", ".join(f"`{choice}`" for choice in option.type.choices)
    if option.multiple:
        text += ". May be given several times"
    if option.envvar:
        text += f". Variable: `{option.envvar}`"
    return text if text.endswith("…") else f"{text}."


def linked(text: str) -> str:
    """Turns pages that a help text names into links."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](../\1.md)", text)
