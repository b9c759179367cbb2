"""The schema's version: brought up to date by Alembic, and refused if this release cannot use it.

During a rollout old processes run on the schema of the new release. They may as long as its floor
(tables.SchemaFloor) is a revision that they know.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Column, MetaData, String, Table, inspect, select

import migrations
from service.store.database import Database
from service.store.tables import SchemaFloor
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32)))
"""Alembic's own table."""


def alembic_config(database: Database) -> Config:
    """Returns Alembic's configuration for this database; there is no ini file."""
    config = _config()
    config.attributes["engine"] = database.engine
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def current_revision(database: Database) -> str | None:
    """Returns the revision of the database; None if it is empty.

    Does not use Alembic's context: each context creates its own table object, whose statements
    fill the engine's cache, and probes and workers call this every few seconds.
    """
    with database.read() as session:
        connection = session.connection()
        if not inspect(connection).has_table(VERSION.name):
            return None
        row: str | None = connection.scalar(select(VERSION.c.version_num))
        return row


@cache
def known_revisions() -> tuple[str, ...]:
    """Returns the revisions that this release knows, newest first; cached."""
    script = ScriptDirectory.from_config(_config())
    return tuple(known.revision for known in script.walk_revisions())


def require_schema(database: Database) -> None:
    """Raises BadInput unless this release works on the database's schema."""
    revision, head = current_revision(database), known_revisions()[0]
    if revision == head:
        return
    if revision is not None and revision not in known_revisions():
        _require_floor(database, revision)
        return
    raise BadInput(
        f"the schema is {'missing' if revision is None else f'at revision {revision}'}, "
        f"this release needs {head}",
        field="database",
        expected="`shardwise migrate` first, or `shardwise serve --migrate`",
    )


def migrate(database: Database) -> None:
    """Brings the database to the newest schema that this release knows.

    Leaves the schema of a newer release on which this one works; raises BadInput for one on which
    it does not.
    """
    revision = current_revision(database)
    if revision is not None and revision not in known_revisions():
        _require_floor(database, revision)
        return
    if revision != known_revisions()[0]:
        log.info("migrating the database from %s", revision or "nothing")
        with database.errors():
            command.upgrade(alembic_config(database), "head")


def _require_floor(database: Database, revision: str) -> None:
    """Raises BadInput unless the newer schema allows releases as old as this one."""
    floor = None
    with database.errors(), database.engine.connect() as connection:
        if inspect(connection).has_table(SchemaFloor.__tablename__):
            floor = connection.scalar(select(SchemaFloor.revision))
    if floor is None or floor not in known_revisions():
        raise BadInput(
            f"the schema has revision {revision}, which this release does not know",
            field="database",
            expected="the release of Shardwise that created it, or a newer one",
        )
