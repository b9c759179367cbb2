"""Checks whether the database accepts writes, by a tiny one that does not compete with others."""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, MetaData, String, Table, update
from sqlalchemy.exc import DBAPIError

from service.base.store_failures import StoreFull, StoreUnavailable
from service.store.database import Database
from service.store.tables import GraphBlob

ROOM_BYTES = 2**20
"""With less than this, on SQLite's disk or in its own free pages, the disk counts as full."""

LOG_BYTES = 2**17
"""Free space for SQLite's log, which it writes before it uses a free page."""

BUSY_MS = 100
SOME_BYTES = 2**18
_REVISION = Table("alembic_version", MetaData(), Column("version_num", String(32)))


def try_write(database: Database, *, with_room: bool) -> str:
    """Returns `ok`, `full` or `refused`; `with_room` also checks for room, after a full disk.

    Raises `StoreUnavailable` when the database is unavailable.
    """
    try:
        if database.sqlite:
            return _write_sqlite(database)
        return _write_postgresql(database, with_room)
    except StoreFull:
        return "full"
    except DBAPIError:
        return "refused"


def _write_sqlite(database: Database) -> str:
    """Writes `user_version`, which nothing else uses; an unchanged page would not be written."""
    with closing(database.engine.raw_connection()) as connection:
        cursor = connection.cursor()
        [busy_ms] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        try:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(f"PRAGMA user_version={secrets.randbelow(2**31)}")
            cursor.execute("COMMIT")
            [pages] = cursor.execute("PRAGMA freelist_count").fetchone()
            [size] = cursor.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error as error:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            return _why(error)
        finally:
            cursor.execute(f"PRAGMA busy_timeout={busy_ms}")
    filesystem = os.statvfs(Path(str(database.url.database)).parent)
    free = filesystem.f_bavail * filesystem.f_frsize
    roomy = free >= ROOM_BYTES or (pages * size >= ROOM_BYTES and free >= LOG_BYTES)
    return "ok" if roomy else "full"


def _why(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "ok"  # another writer has the lock
    return "full" if name.startswith("SQLITE_FULL") else "refused"


def _write_postgresql(database: Database, with_room: bool) -> str:
    """Writes an existing row with its own value; checks room by a row that is rolled back."""
    try:
        with database.write() as session:
            session.execute(update(_REVISION).values(version_num=_REVISION.c.version_num))
            if with_room:
                probe = GraphBlob(
                    id=f"probe:{secrets.token_hex(8)}", content=os.urandom(SOME_BYTES)
                )
                session.add(probe)
                session.flush()
                session.rollback()
    except StoreUnavailable as error:
        if _is_lock(error):
            return "ok"
        raise
    return "ok"


def _is_lock(error: StoreUnavailable) -> bool:
    """Returns whether another transaction holds the row, so writes work."""
    cause = getattr(error.__cause__, "orig", None)
    return getattr(cause, "sqlstate", None) == "55P03"
