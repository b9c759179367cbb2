"""The schema's version: brought up to date by Alembic, and refused when it is not ours.

While releases are rolled out, old processes run on the schema of the new one. They may as long as
its floor (tables.SchemaFloor) is a revision that they know.
"""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select

import migrations
from service.store.database import Database
from service.store.tables import SchemaFloor
from shardwise.errors import BadInput

log = logging.getLogger(__name__)


def alembic_config(database: Database) -> Config:
    """Alembic's configuration for this database; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = database.engine
    return config


def current_revision(database: Database) -> str | None:
    """The revision of the database; None when it is empty."""
    with database.errors(), database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def latest_revision(database: Database) -> str | None:
    """The revision that this release knows as the newest."""
    return ScriptDirectory.from_config(alembic_config(database)).get_current_head()


def require_schema(database: Database) -> None:
    """BadInput unless this release works on the schema that the database has."""
    found, head = current_revision(database), latest_revision(database)
    if found == head:
        return
    if found is not None and not _is_known(database, found):
        _require_floor(database, found)
        return
    raise BadInput(
        f"the schema is {'missing' if found is None else f'at revision {found}'}, "
        f"this release needs {head}",
        field="database",
        expected="`shardwise migrate` first, or `shardwise serve --migrate`",
    )


def migrate(database: Database) -> None:
    """Bring the database to the newest schema that this release knows.

    Nothing is done to the schema of a newer release on which this one works; BadInput for one on
    which it does not.
    """
    found = current_revision(database)
    if found is not None and not _is_known(database, found):
        _require_floor(database, found)
        return
    if found != latest_revision(database):
        log.info("migrating the database from %s", found or "nothing")
        with database.errors():
            command.upgrade(alembic_config(database), "head")


def _is_known(database: Database, revision: str) -> bool:
    script = ScriptDirectory.from_config(alembic_config(database))
    return revision in {known.revision for known in script.walk_revisions()}


def _require_floor(database: Database, found: str) -> None:
    """BadInput unless the newer schema lets releases as old as this one work on it."""
    floor = None
    with database.errors(), database.engine.connect() as connection:
        if inspect(connection).has_table(SchemaFloor.__tablename__):
            floor = connection.scalar(select(SchemaFloor.revision))
    if floor is None or not _is_known(database, floor):
        raise BadInput(
            f"the schema has revision {found}, which this release does not know",
            field="database",
            expected="the release of Shardwise that made it, or a newer one",
        )
