"""docs/reference/agent-settings.md: the fields of agent.toml, read from agent/config.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from agent.config import Config, EntryPoint, LogLimits
from shardwise.sizes import format_size

_BYTES = "_bytes"


def page() -> str:
    """Returns the whole page."""
    parts = [
        "# Settings of an agent",
        "",
        "Made by `make reference`.",
        "",
        "agent.toml, which `shardwise agent --config FILE` reads ([Agents](../agents.md) has an "
        "example; [flags and variables](cli.md#agent)). Unknown fields are refused: a misspelt "
        "limit has no effect. Sizes may be written `64MiB` or `8GB`; names that end in `_s` are "
        "in seconds.",
        "",
        *_table(_rows(fields(Config))),
        "",
        "## [logs]",
        "",
        "How much of the ranks' output is kept.",
        "",
        *_table(_rows(fields(LogLimits))),
        "",
        "## [entry_points.NAME]",
        "",
        "A program that launches may name; each has a table of its own. `shardwise.run` and "
        "`shardwise.measure` are always there.",
        "",
        *_table(_rows(fields(EntryPoint))),
        "",
    ]
    return "\n".join(parts)


def _table(rows: Iterable[str]) -> list[str]:
    return ["| field | default | what it is |", "|---|---|---|", *rows]


def _rows(settings: Iterable[Field[Any]]) -> Iterator[str]:
    for item in settings:
        if "text" in item.metadata:
            default = _shown(item)
            cell = f" `{default}` " if default else " "
            yield f"| `{item.name}` |{cell}| {item.metadata['text']} |"


def _shown(item: Field[Any]) -> str:
    """Returns a default as TOML writes it; an empty string for an empty one."""
    value = item.default
    if item.name == "allow_arguments":
        return "true"
    if value is MISSING:
        return "required"
    if isinstance(value, frozenset):
        value = tuple(sorted(value))
    if isinstance(value, tuple):
        return f"[{', '.join(_scalar(item.name, part) for part in value)}]" if value else ""
    return _scalar(item.name, value) if value != "" else ""


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if name.endswith(_BYTES) and value % 2**10 == 0 and value:
        return f'"{format_size(value)}"'
    return f"{value:g}" if isinstance(value, float) else str(value)
