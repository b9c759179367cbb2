"""How the database is read: without transactions, on connections that live, by its own clock."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from service.base.store_failures import StoreUnavailable
from service.store import database as module
from service.store.database import Database, clock, today


def test_the_day_is_that_of_the_databases_clock(database: Database) -> None:
    with database.read() as session:
        before, day, after = clock(session), session.scalar(select(today())), clock(session)
    assert day in (before // 86400, after // 86400)


def test_postgresql_has_no_transaction_open_for_a_reader(postgres_url: str) -> None:
    """Each statement stands alone there: nothing is begun, and nothing has to be ended."""
    from psycopg.pq import TransactionStatus

    database = Database(postgres_url)
    with database.read() as session:
        session.execute(text("SELECT 1"))
        driver = session.connection().connection.dbapi_connection
        assert driver is not None and driver.info.transaction_status == TransactionStatus.IDLE
    with database.write() as session:
        session.execute(text("SELECT 1"))
        driver = session.connection().connection.dbapi_connection
        assert driver is not None and driver.info.transaction_status == TransactionStatus.INTRANS
    database.close()


@pytest.mark.parametrize("idle_s", [0.0, 60.0])
def test_a_connection_that_died_while_it_was_idle_is_replaced(
    idle_s: float, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if it was unused for a while, else after one call."""
    monkeypatch.setattr(module, "IDLE_S", idle_s)
    database, other = Database(postgres_url, deadline_s=10.0), Database(postgres_url)
    with database.read() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    with other.read() as session:
        session.execute(text(f"SELECT pg_terminate_backend({pid}, 5000)"))
    if idle_s:
        with pytest.raises(StoreUnavailable), database.read() as session:
            session.scalar(text("SELECT 1"))
    with database.read() as session:
        assert session.scalar(text("SELECT pg_backend_pid()")) != pid
    database.close()
    other.close()
