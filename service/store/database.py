"""The database: an engine for SQLite or PostgreSQL, sessions to read and to write, its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Double, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from shardwise.errors import BadInput, ShardwiseError

BUSY_S = 15
"""How long a SQLite writer waits for another one."""

_READ_ONLY = "shardwise_read_only"


class StoreUnavailable(ShardwiseError):
    """The database cannot be used just now; the same call may work later."""

    exit_code = 3


class StoreFull(StoreUnavailable):
    """The database's disk is full; nothing of the call was stored."""


class now(FunctionElement[float]):
    """Seconds since 1970 by the database's own clock, whatever the hosts' clocks say."""

    type = Double()
    inherit_cache = True
    name = "shardwise_now"


@compiles(now, "sqlite")
def _sqlite_now(element: now, compiler: Any, **keywords: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgresql_now(element: now, compiler: Any, **keywords: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Database:
    """Sessions on one database.

    SQLite is in WAL mode with full synchronisation: what is committed survives power loss; a
    writer takes the write lock at its start, so that it never fails in the middle for another
    one.
    """

    def __init__(self, url: str, pool: int = 10) -> None:
        parsed = make_url(url)
        self.url = parsed
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if self.sqlite:
            if parsed.database in (None, "", ":memory:"):
                raise BadInput("a SQLite database needs a file", field="database_url")
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            self.engine = create_engine(
                parsed,
                connect_args={"timeout": BUSY_S, "check_same_thread": False},
                pool_size=16,
                hide_parameters=True,
            )
            _prepare_sqlite(self.engine)
        else:
            self.engine = create_engine(
                parsed,
                pool_size=pool,
                max_overflow=pool,
                pool_timeout=10,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args={"connect_timeout": 5, "application_name": "shardwise"},
            )

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads."""
        with self.errors(), Session(self.engine, expire_on_commit=False) as session:
            session.connection(execution_options={_READ_ONLY: True})
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits at its end, or leaves nothing behind."""
        with (
            self.errors(),
            Session(self.engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def errors(self) -> Iterator[None]:
        """What the driver raises when the database is away, as StoreUnavailable."""
        try:
            yield
        except PoolTimeout:
            raise StoreUnavailable("all database connections are in use") from None
        except DBAPIError as error:
            if _is_outage(error):
                reason = " ".join(str(error.orig).split()) or type(error.orig).__name__
                if _is_full(error):
                    raise StoreFull(f"the database's disk is full: {reason}") from error
                raise StoreUnavailable(f"the database is unavailable: {reason}") from error
            raise

    def ping(self) -> None:
        """Raises StoreUnavailable when the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _is_outage(error: DBAPIError) -> bool:
    """Whether the database, not the statement, is at fault."""
    # OperationalError covers: connection lost or refused, shutting down, locked for too long,
    # disk full. InterfaceError is what psycopg raises on a connection found closed.
    kind = type(error.orig).__mro__
    return error.connection_invalidated or any(
        k.__name__ in ("OperationalError", "InterfaceError") for k in kind
    )


def _is_full(error: DBAPIError) -> bool:
    """Whether there is no space: SQLITE_FULL, or PostgreSQL's 53100."""
    code = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    return code in ("SQLITE_FULL", "53100")


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        # Python's driver opens transactions by itself, and too late: we say BEGIN.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={BUSY_S * 1000}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(_READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
