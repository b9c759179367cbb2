"""Enrolment on both databases: a token enrols as many agents as it has uses, and none beyond."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from harness.service.fake_agent import inventory
from harness.service.gang_store import Store
from service.base.settings import Settings
from service.store.agents import delete_agent
from service.store.database import Database, now
from service.store.enrolment import MAX_USES, Enrolled, Unenrolled, enrol, make_token
from service.store.gangs import rules_of
from service.store.keys import principal_of
from service.store.launch_tables import Agent, Enrolment
from shardwise.errors import BadInput


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def token_of(store: Store, uses: int = 1, expires_s: float = 60.0, once: str | None = None) -> str:
    token, _ = store.do(make_token, "t", "n", expires_s, once, uses)
    return str(token)


@pytest.mark.parametrize("known", [False, True])
def test_repeats_at_once_leave_one_token(store: Store, known: bool) -> None:
    once = "the same"
    if known:
        token_of(store, once=once)
    with ThreadPoolExecutor(12) as pool:
        tokens = list(pool.map(lambda _: token_of(store, once=once), range(12)))
    assert len(agents_of([enrolled(store, token) for token in tokens])) == 1
    assert token_of(store, once="another") not in tokens


def enrolled(store: Store, token: str, once: str | None = None) -> Enrolled | Unenrolled:
    of_host = {"name": "n", "inventory": inventory(), "lease_s": 30.0, "max_agents": 100}
    result: Enrolled | Unenrolled = store.do(enrol, token, once, **of_host)
    return result


def agents_of(results: Sequence[Enrolled | Unenrolled]) -> list[str]:
    return [one.agent_id for one in results if isinstance(one, Enrolled)]


def reasons_of(results: Sequence[Enrolled | Unenrolled]) -> set[str]:
    return {one.why for one in results if isinstance(one, Unenrolled)}


def used(store: Store) -> int:
    with store.database.read() as session:
        return session.scalars(select(Enrolment.used)).one()


@pytest.mark.parametrize("uses", [1, 3])
def test_of_racing_agents_as_many_enrol_as_there_are_uses(store: Store, uses: int) -> None:
    token = token_of(store, uses)
    before = [enrolled(store, token) for _ in range(uses - 1)]
    with ThreadPoolExecutor(8) as pool:
        race = list(pool.map(lambda _: enrolled(store, token), range(8)))
    results = [*before, *race]
    assert len(agents_of(race)) == 1, "one gets the last use"
    assert len(set(agents_of(results))) == uses
    assert reasons_of(results) == {"replayed"}
    assert {one.tenant for one in results} == {"t"}
    with store.database.read() as session:
        row = session.scalars(select(Enrolment)).one()
        keys = list(session.scalars(select(Agent.key_id)))
    assert (row.used, row.used_at is None) == (uses, False)
    assert len(set(keys)) == uses, "each has a key of its own"


def test_all_uses_at_once(store: Store) -> None:
    token = token_of(store, 5)
    with ThreadPoolExecutor(8) as pool:
        race = list(pool.map(lambda _: enrolled(store, token), range(8)))
    assert len(set(agents_of(race))) == 5
    assert used(store) == 5


def test_a_token_expires_whatever_is_left_of_it(store: Store) -> None:
    token = token_of(store, 3)
    assert isinstance(enrolled(store, token), Enrolled)
    with store.database.write() as session:
        session.execute(update(Enrolment).values(expires_at=1.0))
    assert reasons_of([enrolled(store, token)]) == {"expired"}
    assert reasons_of([enrolled(store, "swe_" + "x" * 43)]) == {"unknown"}


def test_a_deleted_agent_gives_its_use_not_back(store: Store) -> None:
    token = token_of(store, 2)
    first = enrolled(store, token, "once")
    assert isinstance(first, Enrolled)
    store.do(delete_agent, "t", first.agent_id, rules_of(Settings()))
    assert isinstance(enrolled(store, token), Enrolled)
    assert reasons_of([enrolled(store, token), enrolled(store, token, "once")]) == {"replayed"}


@pytest.mark.parametrize("uses", [0, -1, MAX_USES + 1])
def test_the_number_of_uses_is_bounded(store: Store, uses: int) -> None:
    with pytest.raises(BadInput, match="uses"):
        token_of(store, uses)


def test_a_token_that_is_requested_again_has_no_more_uses(store: Store) -> None:
    first = token_of(store, 3, once="key")
    assert isinstance(enrolled(store, first), Enrolled)
    second = token_of(store, 3, once="key")
    assert reasons_of([enrolled(store, first)]) == {"unknown"}
    assert isinstance(enrolled(store, second), Enrolled)


def test_an_enrolment_whose_answer_was_lost(store: Store) -> None:
    """The same agent, a new key; until it has been heard of."""
    token = token_of(store)
    first = enrolled(store, token, "once")
    assert isinstance(first, Enrolled)
    assert reasons_of([enrolled(store, token, "another")]) == {"replayed"}
    again = enrolled(store, token, "once")
    assert isinstance(again, Enrolled)
    assert again.agent_id == first.agent_id and again.key != first.key
    with store.database.read() as session:
        assert principal_of(session, first.key) is None
        principal = principal_of(session, again.key)
    assert principal is not None and principal.agent_id == first.agent_id
    assert replace(principal, agent_id=None).scopes == {"agent"}
    store.beat(first.agent_id)
    assert reasons_of([enrolled(store, token, "once")]) == {"replayed"}


def test_a_repeat_takes_no_further_use(store: Store) -> None:
    token = token_of(store, 3)
    first, second = enrolled(store, token, "one"), enrolled(store, token, "two")
    again = [enrolled(store, token, once) for once in ("one", "two", "one")]
    assert agents_of(again) == agents_of([first, second, first])
    assert used(store) == 2
    assert isinstance(first, Enrolled)
    store.beat(first.agent_id)
    assert reasons_of([enrolled(store, token, "one")]) == {"replayed"}
    with ThreadPoolExecutor(8) as pool:
        race = list(pool.map(lambda _: enrolled(store, token, "three"), range(8)))
    assert len(set(agents_of(race))) == 1 and used(store) == 3


def test_a_release_that_knows_no_uses_admits_never_too_many(store: Store) -> None:
    """What revision 0003's releases did, on this schema: a rolling upgrade has both at once."""

    def of_old(token: str) -> bool:
        with store.database.write() as session:
            mine = Enrolment.token_hash == newest(store).token_hash
            unused = (Enrolment.used_at.is_(None), Enrolment.expires_at > now())
            values = {"used_at": now(), "agent_id": "agent_old", "once_hash": None}
            taken = update(Enrolment).where(mine, *unused).values(**values)
            return session.execute(taken.returning(Enrolment.tenant_id)).first() is not None

    token = token_of(store, 3)
    assert isinstance(enrolled(store, token), Enrolled)
    assert of_old(token) and not of_old(token)
    assert reasons_of([enrolled(store, token)]) == {"replayed"}
    token = token_of(store)
    assert isinstance(enrolled(store, token), Enrolled)
    assert not of_old(token), "the new release says so in the old one's words"


def newest(store: Store) -> Enrolment:
    with store.database.read() as session:
        order = Enrolment.created_at.desc()
        return session.scalars(select(Enrolment).order_by(order).limit(1)).one()
