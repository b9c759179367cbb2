"""The schema's version: brought up to date by Alembic, and refused when it is unknown."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from service.store.database import Database
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
    """BadInput unless the database has exactly the schema that this release knows."""
    found, head = current_revision(database), latest_revision(database)
    if found == head:
        return
    if found is not None:
        _require_known(database, found)
    raise BadInput(
        f"the schema is {'missing' if found is None else f'at revision {found}'}, "
        f"this release needs {head}",
        field="database",
        expected="`shardwise migrate` first, or `shardwise serve --migrate`",
    )


def migrate(database: Database) -> None:
    """Bring the database to the newest schema; BadInput when a newer release has made it."""
    found = current_revision(database)
    if found is not None:
        _require_known(database, found)
    if found != latest_revision(database):
        log.info("migrating the database from %s", found or "nothing")
        with database.errors():
            command.upgrade(alembic_config(database), "head")


def _require_known(database: Database, revision: str) -> None:
    script = ScriptDirectory.from_config(alembic_config(database))
    if revision not in {known.revision for known in script.walk_revisions()}:
        raise BadInput(
            f"the schema has revision {revision}, which this release does not know",
            field="database",
            expected="the release of Shardwise that made it, or a newer one",
        )
