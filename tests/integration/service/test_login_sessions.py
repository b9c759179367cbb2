"""Rows of sessions, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import delete, select

from service.base.settings import Settings
from service.store.database import Database
from service.store.retention import throw_away
from service.store.schema import migrate
from service.store.sessions import (
    MAX_SESSIONS,
    close_session,
    end_sessions,
    find_session,
    move_session,
    open_session,
)
from service.store.tables import LoginSession, Tenant


@pytest.fixture
def store(database: Database) -> Iterator[Database]:
    migrate(database)
    yield database


def opened(store: Database, subject: str = "ada", lasts_s: float = 60.0) -> str:
    with store.write() as session:
        return open_session(session, subject, "Ada", ["a"], "research", lasts_s)


def lives(store: Database, secret: str) -> bool:
    with store.read() as session:
        return find_session(session, secret) is not None


def test_a_session_lasts_its_time_and_its_row_is_thrown_away(store: Database) -> None:
    secret, over = opened(store), opened(store, "bob", lasts_s=-1.0)
    assert lives(store, secret) and not lives(store, over)
    with store.read() as session:
        stored = find_session(session, secret)
        assert stored is not None
        row, limits, left_s = stored
        assert (row.subject, row.groups, limits) == ("ada", ["a"], {})
        assert 0 < left_s <= 60
        assert secret not in row.id
        assert move_session(session, over, "research") is None
    throw_away(store, Settings())
    with store.read() as session:
        assert [row.subject for row in session.scalars(select(LoginSession))] == ["ada"]
    assert lives(store, secret)


def test_moving_changes_the_secret(store: Database) -> None:
    secret = opened(store)
    with store.write() as session:
        fresh = move_session(session, secret, "ops")
    assert fresh is not None and fresh != secret
    assert lives(store, fresh) and not lives(store, secret)
    with store.write() as session:
        assert close_session(session, secret) is None
        closed = close_session(session, fresh)
        assert closed is not None and closed.tenant_id == "ops"
    assert not lives(store, fresh)


def test_a_users_sessions_are_bounded(store: Database) -> None:
    other = opened(store, "bob")
    secrets = [opened(store) for _ in range(MAX_SESSIONS + 3)]
    assert [lives(store, secret) for secret in secrets] == [False] * 3 + [True] * MAX_SESSIONS
    assert lives(store, other)
    with store.write() as session:
        assert end_sessions(session, "ada") == ["research"] * MAX_SESSIONS
    assert not any(lives(store, secret) for secret in secrets)
    assert lives(store, other)


def test_a_tenant_takes_its_sessions_along(store: Database) -> None:
    secret = opened(store)
    with store.write() as session:
        session.execute(delete(Tenant).where(Tenant.id == "research"))
    assert not lives(store, secret)
