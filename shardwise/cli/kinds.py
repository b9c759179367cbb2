"""The options for the device kinds of ranks on one host (docs/measuring.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kinds:
    """`--kinds` and `--slowed` as given, None if not."""

    kinds: str | None = None
    slowed: str | None = None

    def arguments(self) -> list[str]:
        """Returns them as arguments for the ranks."""
        arguments = [] if self.kinds is None else ["--kinds", self.kinds]
        return arguments + ([] if self.slowed is None else ["--slowed", self.slowed])


def kind_options(command: Command) -> Command:
    """Adds `--kinds` and `--slowed`."""
    command = click.option(
        "--slowed", help="How many times as slow a kind computes, on purpose: slow=2."
    )(command)
    return click.option(
        "--kinds",
        help="The kinds of the ranks in their order: fast=2,slow=2. "
        "Default: $SHARDWISE_KIND, else the name of each rank's device.",
    )(command)
