"""Flags that the apps' commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from service.base.settings import CONFIG_VARIABLE, PREFIX, Settings, load_settings

if TYPE_CHECKING:
    from service.store.database import Database

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_option(name: str, **kwargs: Any) -> Callable[[Command], Command]:
    """Returns the flag of one setting, with its text and the equivalent variable.

    click does not read the variable: the settings also read files of values, and refuse both.
    """
    text = next(item.metadata["text"] for item in fields(Settings) if item.name == name)
    flag = "--" + name.replace("_", "-")
    return click.option(flag, help=f"{text} [{PREFIX}{name.upper()}]", **kwargs)


def settings_options(command: Command) -> Command:
    """Adds the flags of every app; other settings are variables (docs/reference/settings.md)."""
    for option in (
        setting_option("log_level", type=click.Choice(("debug", "info", "warning", "error"))),
        setting_option("redis_url"),
        setting_option("database_url"),
        setting_option("data_dir"),
        click.option("--config", help=f"A TOML file with settings. [{CONFIG_VARIABLE}]"),
    ):
        command = option(command)
    return command


def settings_from(config: str | None, **flags: Any) -> Settings:
    """Returns the settings in force under these flags."""
    return load_settings(flags, file=config)


@contextmanager
def opened(**flags: Any) -> Iterator[Database]:
    """Yields the database under these flags, with a schema on which this release works.

    The embedded database is migrated to it.
    """
    # The agent's and worker's commands take flags from here too, and start without these.
    from service.store.database import Database
    from service.store.schema import migrate, require_schema

    settings = settings_from(**flags)
    database = Database(settings.database)
    try:
        if not settings.database_url:
            migrate(database)
        require_schema(database)
        yield database
    finally:
        database.close()
