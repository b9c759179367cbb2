"""Keys with an end on both databases: expired, rotated, noted as used; limits with their range."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text, update

from harness.service.service_harness import wait_until
from service.edge.key_uses import KeyUses
from service.store.database import Database
from service.store.key_admin import NewKey, end_after, key_state, make_key
from service.store.keys import (
    any_keys,
    clock,
    create_key,
    expire_keys,
    keys_in_force,
    principal_of,
    set_limit,
)
from service.store.schema import migrate
from service.store.tables import Key
from shardwise.errors import BadInput


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    return database


def new_key(store: Database, **keywords: Any) -> str:
    with store.write() as session:
        if "left_s" in keywords:
            keywords["expires_at"] = clock(session) + keywords.pop("left_s")
        return create_key(session, "t", ("read",), **keywords)


def row(store: Database, key: str) -> Key:
    with store.read() as session:
        return session.get_one(Key, key.split("_")[1])


def let_expire(store: Database, key: str) -> None:
    with store.write() as session:
        mine = update(Key).where(Key.id == key.split("_")[1])
        session.execute(mine.values(expires_at=clock(session) - 1))


def holds(store: Database, key: str) -> bool:
    with store.read() as session:
        return principal_of(session, key) is not None


def test_an_expired_key_is_not_in_force(store: Database) -> None:
    key = new_key(store, left_s=3600.0)
    with store.read() as session:
        principal = principal_of(session, key)
        assert principal is not None and principal.left_s is not None
        assert 3500 < principal.left_s <= 3600
        assert keys_in_force(session) == 1
    let_expire(store, key)
    assert not holds(store, key)
    with store.read() as session:
        assert keys_in_force(session) == 0
        assert any_keys(session), "a service on which keys were needed does not open by time alone"


def test_the_sweeper_revokes_what_has_expired_for_older_releases(store: Database) -> None:
    """They look at `revoked_at` alone."""
    past, later, endless = new_key(store, left_s=60.0), new_key(store, left_s=60.0), new_key(store)
    let_expire(store, past)
    with store.write() as session:
        assert expire_keys(session) == 1
        assert expire_keys(session) == 0
    assert row(store, past).revoked_at == row(store, past).expires_at
    assert row(store, later).revoked_at is None and row(store, endless).revoked_at is None
    with store.read() as session:
        assert key_state(row(store, past), clock(session)) == "expired"


def test_an_expiry_out_of_range_is_refused(store: Database) -> None:
    for left_s in (-1.0, 0.0, 1e12):
        with pytest.raises(BadInput, match="expires_at"):
            new_key(store, left_s=left_s)


def test_the_end_after_an_overlap_is_never_later_than_before(store: Database) -> None:
    short, endless, gone = new_key(store, left_s=10.0), new_key(store), new_key(store)
    before = row(store, short).expires_at
    with store.write() as session:
        for key, seconds in ((short, 3600.0), (endless, 3600.0), (gone, 0.0)):
            end_after(session, session.get_one(Key, key.split("_")[1]), seconds)
    assert row(store, short).expires_at == before
    ends = row(store, endless).expires_at
    assert ends is not None and ends > (before or 0)
    assert holds(store, endless) and not holds(store, gone)


def test_a_repeated_request_leaves_one_key_in_force(store: Database) -> None:
    new = NewKey("ci", ("read",), None, None, once="the same request")
    with store.write() as session:
        create_key(session, "t", ("read",))
        first, _ = make_key(session, "t", new, 10)
    with store.write() as session:
        second, _ = make_key(session, "t", new, 10)
    assert not holds(store, first) and holds(store, second)
    uses = KeyUses(store)
    uses.note(second.split("_")[1])
    uses.write()
    with store.write() as session:
        third, _ = make_key(session, "t", new, 10)
    assert holds(store, second), "its answer has arrived: it is in use"
    assert holds(store, third)


def test_limits_have_names_and_ranges(store: Database) -> None:
    with store.write() as session:
        set_limit(session, "t", "max_keys", 3.0)
    for name, value in (("max_keys", -1.0), ("max_keys", 2.0**60), ("max_keys", float("nan"))):
        with store.write() as session, pytest.raises(BadInput, match=name):
            set_limit(session, "t", name, value)
    with store.write() as session, pytest.raises(BadInput, match="unknown limit"):
        set_limit(session, "t", "port", 1.0)


def test_a_use_is_written_once_a_minute(store: Database) -> None:
    key = new_key(store).split("_")[1]
    uses = KeyUses(store)
    assert uses.write() == 0
    for _ in range(100):
        uses.note(key)
    uses.note(None)
    assert uses.write() == 1
    with store.read() as session:
        assert abs((session.get_one(Key, key).last_used_at or 0) - clock(session)) < 60
    uses.note(key)
    assert uses.write() == 0


def test_a_use_costs_a_request_nothing_while_nothing_can_be_written(store: Database) -> None:
    """Another writer holds the database, then it is read-only; both are of no concern to requests.

    That noting does not wait for the writer is shown by order, not by time: it is done while this
    very thread is the writer.
    """
    key = new_key(store).split("_")[1]
    uses = KeyUses(store)
    uses.start()
    with store.write() as session:
        session.execute(update(Key).where(Key.id == key).values(name="locked"))
        uses.note(key)
        wait_until(lambda: not uses._waiting, "the thread tries to write, and waits for us")
        assert session.get_one(Key, key).last_used_at is None
    wait_until(lambda: row(store, f"sw_{key}_").last_used_at, "the use is written afterwards")
    uses.stop()
    other = new_key(store).split("_")[1]
    pragma = "PRAGMA query_only = ON" if store.sqlite else "SET default_transaction_read_only = on"
    refusing = KeyUses(store)
    refusing.note(other)
    with store.engine.connect() as connection:
        connection.execute(text(pragma))
        connection.commit()
        sessions = _OnOne(store, connection)
        refusing._database = sessions  # type: ignore[assignment]
        assert refusing.write() == 0
        connection.rollback()
        connection.invalidate()
    assert row(store, f"sw_{other}_").last_used_at is None


class _OnOne:
    """The database, through one connection that takes no writes."""

    def __init__(self, store: Database, connection: Any) -> None:
        self._store = store
        self._connection = connection

    def write(self) -> Any:
        from contextlib import contextmanager

        from sqlalchemy.orm import Session

        @contextmanager
        def session() -> Any:
            with self._store.errors(), Session(self._connection) as opened:
                yield opened
                opened.commit()

        return session()
