"""A full SQLite database, without a disk of its own: a database of a few pages is full as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy import event, text

from service.base.store_failures import StoreFull
from service.store import database as module
from service.store.database import WRITE_BACK_PAUSE_S, Database


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which tests turn on."""
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> list[float]:
    """When the log was given back."""
    times: list[float] = []
    real = Database._write_back

    def counted(self: Database) -> None:
        times.append(clock[0])
        real(self)

    monkeypatch.setattr(Database, "_write_back", counted)
    return times


def fill(database: Database) -> None:
    with pytest.raises(StoreFull), database.write() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS t (x BLOB)"))
        session.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))


def test_the_log_is_given_back_now_and_then_however_many_calls_meet_a_full_disk(
    tmp_path: Path, clock: list[float], checkpoints: list[float]
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'one.sqlite'}", ballast_bytes=4096)

    @event.listens_for(database.engine, "connect")
    def small(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA max_page_count=20")

    for _ in range(5):
        fill(database)
    assert checkpoints == [1000.0]
    clock[0] += WRITE_BACK_PAUSE_S / 2
    fill(database)
    clock[0] += WRITE_BACK_PAUSE_S / 2
    fill(database)
    assert checkpoints == [1000.0, 1000.0 + WRITE_BACK_PAUSE_S]
    assert database.full_at == 1000.0 + WRITE_BACK_PAUSE_S
    # After a delete it is not put off: the space is wanted now.
    database.tidy()
    fill(database)
    database.close()
    assert len(checkpoints) == 3
