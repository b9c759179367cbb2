"""Flags that the apps' commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from service.settings import Settings, load_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """Flags that every app has; each other setting is a variable (docs/settings.md)."""
    for option in (
        click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error"))),
        click.option("--redis-url", help="A Redis or Valkey; none: serve starts its own."),
        click.option("--database-url", help="PostgreSQL; none: a SQLite file."),
        click.option("--data-dir", help="Folder of the SQLite file."),
        click.option("--config", help="A TOML file with settings."),
    ):
        command = option(command)
    return command


def settings_from(config: str | None, **flags: Any) -> Settings:
    """The settings in force under these flags."""
    return load_settings(flags, file=config)
