"""docs/reference/settings.md: every setting of the service and the worker."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from service.base.settings import PREFIX, Settings
from shardwise.sizes import format_size


def page() -> str:
    """Returns the whole page."""
    rows = []
    for item in fields(Settings):
        default = "" if item.default == "" else f"`{_shown(item.name, item.default)}`"
        rows.append(
            f"| `{PREFIX}{item.name.upper()}` | {default} | {item.metadata['text']} |".replace(
                "|  |", "| |"
            )
        )
    return "\n".join(
        [
            "# Settings",
            "",
            "Of `shardwise serve`, `worker`, `migrate`, `backup`, `restore` and `keys`; an agent "
            "has [its own](agent-settings.md). Flags win over environment variables, "
            "those over a TOML file (`--config FILE` or `SHARDWISE_CONFIG`; keys are "
            "the names in lower-case letters without the prefix), that over the defaults. "
            "A variable's name with `_FILE` after it names a file that holds the value, as "
            "container platforms give secrets. Sizes may be written `64MiB` or `8GB`; names in "
            "`_S` are in seconds. "
            "Made by `make reference`.",
            "",
            "| variable | default | what it is |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return format_size(value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
