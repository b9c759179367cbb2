"""The database: an engine for SQLite or PostgreSQL, sessions to read and to write, its clock."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import (
    URL,
    Connection,
    Double,
    Engine,
    Integer,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from service.base.settings import Settings
from service.base.store_failures import StoreFull, StoreUnavailable
from service.store.ballast import Ballast
from service.store.deadlines import Breaker, Deadline, connect_arguments, keep_deadline
from shardwise.errors import BadInput

BUSY_S = 15.0
"""Seconds that a SQLite writer waits for another one without a deadline."""

RUSH = 20
"""Connections beyond twice the pool: for operators, for callers who are looked up or enrol, for
archives, and for what streams and waiting agents wait for."""

LONGEST_TRY_S = 10.0
"""Time limit for the one caller that checks whether the database answers again."""

WRITE_BACK_MS = 500
"""Seconds to wait for readers and writers of SQLite's log before it is truncated."""

WRITE_BACK_PAUSE_S = 1.0
"""Pause between two tries to give it back on a full disk, since each may delay a writer."""

_READ_ONLY = "shardwise_read_only"
_ISOLATION = "isolation_level"

IDLE_S = 1.0
"""A connection that was used this recently is taken without asking whether it still lives: a call
would wait twice. If the server has ended it since, one call says that the database is away, and the
pool lets all go that are as old."""


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


class today(FunctionElement[int]):
    """The day by the database's own clock (UTC), counted in whole days since 1970."""

    type = Integer()
    inherit_cache = True
    name = "shardwise_today"


@compiles(today, "sqlite")
def _sqlite_today(element: today, compiler: Any, **keywords: Any) -> str:
    return "CAST(julianday('now') - 2440587.5 AS INTEGER)"


@compiles(today, "postgresql")
def _postgresql_today(element: today, compiler: Any, **keywords: Any) -> str:
    return "floor(extract(epoch from clock_timestamp()) / 86400)::integer"


class Database:
    """Sessions on one database.

    SQLite is in WAL mode with full synchronisation: what is committed survives power loss; a
    writer takes the write lock at its start, so that it never fails in the middle for another
    one.

    With `deadline_s`, no statement takes longer, and a database that does not answer is given up
    soon after: calls raise `StoreUnavailable`, at once for a while. Without it statements may take
    as long as they need, as migrations and backups do. `full_at` is when the disk was last full,
    by the monotonic clock; `ballast_bytes` are kept for deletes on a full disk (SQLite).
    """

    def __init__(
        self,
        url: str | URL,
        pool: int = 10,
        *,
        deadline_s: float | None = None,
        ballast_bytes: int = 0,
    ) -> None:
        parsed = make_url(url)
        deadline = None if deadline_s is None else Deadline(deadline_s)
        self._breaker = Breaker()
        self._reading: dict[str, Any] = {_READ_ONLY: True}
        self.full_at: float | None = None
        self._write_back_lock = threading.Lock()
        self._write_back_due = float("-inf")
        self.ballast: Ballast | None = None
        self.url = parsed
        self.sqlite = parsed.get_backend_name() == "sqlite"
        if self.sqlite:
            if parsed.database in (None, "", ":memory:"):
                raise BadInput(
                    "a SQLite database needs a file",
                    field="database_url",
                    expected="sqlite:///PATH",
                )
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            if ballast_bytes:
                self.ballast = Ballast(Path(str(parsed.database)), ballast_bytes)
            self.engine = create_engine(
                parsed,
                connect_args={"timeout": deadline_s or BUSY_S, "check_same_thread": False},
                json_deserializer=msgspec.json.decode,
                pool_size=16,
                max_overflow=2 * pool,
                pool_timeout=10,
                hide_parameters=True,
            )
            _prepare_sqlite(self.engine, deadline_s or BUSY_S)
        else:
            self.engine = create_engine(
                parsed,
                json_deserializer=msgspec.json.decode,
                pool_size=pool,
                max_overflow=pool + RUSH,
                pool_timeout=10,
                hide_parameters=True,
                connect_args={"application_name": "shardwise", **connect_arguments(deadline)},
            )
            if deadline is not None:
                keep_deadline(self.engine, deadline, self._breaker.trip)
            _check_idle(self.engine)
            self._reading[_ISOLATION] = "AUTOCOMMIT"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yields a session that only reads.

        On PostgreSQL each statement sees what was committed before it, as it does in a transaction
        there, and none is begun or ended: a call with one statement waits for the server once.
        """
        with self.errors(), Session(self.engine, expire_on_commit=False) as session:
            session.connection(execution_options=self._reading)
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yields a session that commits at its end, or rolls back on an error."""
        with (
            self.errors(),
            Session(self.engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises the driver's errors as StoreUnavailable when the database is unavailable."""
        try:
            if self._breaker.is_open:
                self._require_answer()
            yield
        except PoolTimeout:
            raise StoreUnavailable("all database connections are in use") from None
        except DBAPIError as error:
            if _is_outage(error):
                reason = " ".join(str(error.orig).split()) or type(error.orig).__name__
                if _is_full(error):
                    self.full_at = monotonic()
                    self._write_back_if_due()
                    raise StoreFull(f"the database's disk is full: {reason}") from error
                raise StoreUnavailable(f"the database is unavailable: {reason}") from error
            raise

    @property
    def is_away(self) -> bool:
        """Whether the last call got no answer within its deadline."""
        return self._breaker.is_open

    def _require_answer(self) -> None:
        """Lets one caller check whether the database answers again; refuses the others."""
        if not self._breaker.may_try(LONGEST_TRY_S):
            raise StoreUnavailable("the database did not answer a moment ago")
        try:
            with self.engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except DBAPIError:
            self._breaker.trip()
            raise
        self._breaker.close()

    def ping(self) -> None:
        """Raises StoreUnavailable when the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def tidy(self) -> None:
        """Gives SQLite's log back after a delete on a full disk, and takes ballast again."""
        self.full_at = None
        if self.ballast is None:
            return
        self._write_back()
        self.ballast.lay()

    def _write_back_if_due(self) -> None:
        """Writes back, unless another call does or just did: the result would be the same."""
        with self._write_back_lock:
            if monotonic() < self._write_back_due:
                return
            self._write_back_due = float("inf")
        try:
            self._write_back()
        finally:
            self._write_back_due = monotonic() + WRITE_BACK_PAUSE_S

    def _write_back(self) -> None:
        """Gives SQLite's log back to the disk, as far as it has no readers.

        SQLite does so itself once the log is long enough, which a full disk prevents.
        """
        if not self.sqlite:
            return
        with (
            contextlib.suppress(sqlite3.Error, DBAPIError, PoolTimeout),
            contextlib.closing(self.engine.raw_connection()) as connection,
        ):
            cursor = connection.cursor()
            [busy_ms] = cursor.execute("PRAGMA busy_timeout").fetchone()
            cursor.execute(f"PRAGMA busy_timeout={WRITE_BACK_MS}")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                cursor.execute(f"PRAGMA busy_timeout={busy_ms}")

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


def database_of_calls(settings: Settings) -> Database:
    """Returns the database for a service's calls, with a deadline and, on SQLite, ballast."""
    return Database(
        settings.database,
        settings.database_pool,
        deadline_s=settings.database_s,
        ballast_bytes=settings.ballast_bytes,
    )


def clock(session: Session) -> float:
    """Returns the database's time in seconds since 1970."""
    return float(session.scalar(select(now())) or 0.0)


def _is_outage(error: DBAPIError) -> bool:
    """Returns whether the database, not the statement, is at fault."""
    # OperationalError covers: connection lost or refused, shutting down, locked for too long,
    # disk full. InterfaceError is what psycopg raises on a closed connection.
    kind = type(error.orig).__mro__
    return error.connection_invalidated or any(
        k.__name__ in ("OperationalError", "InterfaceError") for k in kind
    )


def _is_full(error: DBAPIError) -> bool:
    """Returns whether there is no space: SQLITE_FULL, or PostgreSQL's 53100."""
    code = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    return code in ("SQLITE_FULL", "53100")


def _prepare_sqlite(engine: Engine, busy_s: float) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        # Python's driver would open transactions by itself, and too late: we issue BEGIN.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={round(busy_s * 1000)}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(_READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _check_idle(engine: Engine) -> None:
    """Replaces connections to PostgreSQL that have died since they were last used."""

    @event.listens_for(engine, "checkin")
    def idle(connection: Any, record: Any) -> None:
        record.info["idle_since"] = monotonic()

    @event.listens_for(engine, "checkout", insert=True)
    def taken(connection: Any, record: Any, proxy: Any) -> None:
        since = record.info.get("idle_since")
        if since is not None and monotonic() - since > IDLE_S:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                if engine.dialect.is_disconnect(error, connection, None):
                    raise InvalidatePoolError from error
                raise


def size_bytes(session: Session) -> int:
    """Returns the size of the database; on SQLite that of its file without the log."""
    if session.get_bind().dialect.name == "sqlite":
        pages = session.scalar(text("SELECT page_count * page_size FROM pragma_page_count, "
                                    "pragma_page_size"))  # fmt: skip
        return int(pages or 0)
    return int(session.scalar(select(func.pg_database_size(func.current_database()))) or 0)
