"""No sequence of key operations gives a tenant's administrator more than it was given.

Whatever it makes, rotates or revokes, with any key that it has got hold of on the way: every key is
of its tenant, without the scope `operator`, no faster and of no longer life than the first, and the
keys of others are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harness.service.administered import Administered
from service.base.problems import Problem
from service.edge.grants import Grant, bounded
from service.store.database import Database, clock
from service.store.keys import Principal, create_key
from service.store.tables import Key
from shardwise.errors import BadInput

RATE, LEFT_S = 20.0, 5000.0
USUAL = 100.0

RATES = st.sampled_from([None, 0.0, 1.0, RATE, RATE + 1, 1e9])
SCOPES = st.lists(st.sampled_from(["read", "submit", "admin", "operator", "agent"]), max_size=3)
TENANT = st.sampled_from([None, "alpha", "ops", "nobodys"])
EXPIRY = st.sampled_from([None, 10.0, LEFT_S * 2])
WHO = st.integers(0, 30)
OPERATION = st.one_of(
    st.tuples(st.just("make"), WHO, TENANT, SCOPES, RATES, EXPIRY),
    st.tuples(st.just("rotate"), WHO, TENANT, WHO, st.sampled_from([0.0, 60.0])),
    st.tuples(st.just("revoke"), WHO, TENANT, WHO),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    administered = Administered(
        tmp_path_factory.mktemp("property"), rate_per_s=USUAL, rate_burst=10**6
    )
    yield administered
    administered.close()


def rows(database: Database) -> dict[str, Key]:
    with database.read() as session:
        return {key.id: key for key in session.scalars(select(Key))}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATION, min_size=1, max_size=8))
def test_no_sequence_of_operations_yields_more(
    service: Administered, operations: list[tuple[Any, ...]]
) -> None:
    with service.database.write() as session:
        # Names, scopes and rates above its own within the tenant: bait for a rotation.
        create_key(session, "alpha", ("admin",), "faster", 0.0)
        create_key(session, "alpha", ("operator",), "mightier", RATE)
        ends = clock(session) + LEFT_S
        first = create_key(session, "alpha", ("admin",), "first", RATE, expires_at=ends)
    before = rows(service.database)
    keys = [first]
    everything = sorted(before)
    for operation in operations:
        kind, who, tenant, *rest = operation
        actor = keys[who % len(keys)]
        base = "/v1/keys" if tenant is None else f"/v1/tenants/{tenant}/keys"
        if kind == "make":
            scopes, rate, expiry = rest
            body = {"scopes": scopes, "rate_per_s": rate, "expires_s": expiry}
            answer = service(actor, "POST", base, json=body)
        else:
            path = f"{base}/{everything[-1 - rest[0] % len(everything)]}"
            if kind == "rotate":
                answer = service(actor, "POST", f"{path}/rotate", json={"overlap_s": rest[1]})
            else:
                answer = service(actor, "DELETE", path)
        assert answer.status_code < 500, answer.text
        if answer.status_code == 201:
            keys.append(answer.json()["key"])
            everything.append(answer.json()["id"])
    after = rows(service.database)
    for key_id in after.keys() - before.keys():
        created = after[key_id]
        assert created.tenant_id == "alpha"
        assert "operator" not in created.scopes.split(",")
        assert created.rate_per_s is not None and 0 < created.rate_per_s <= RATE
        assert created.expires_at is not None and created.expires_at <= ends
    for key_id, old in before.items():
        untouched = old.tenant_id != "alpha" or "operator" in old.scopes
        assert not untouched or after[key_id].revoked_at == old.revoked_at
        assert not untouched or after[key_id].expires_at == old.expires_at


PRINCIPALS = st.builds(
    Principal,
    st.sampled_from(["a", "b"]),
    st.just("k"),
    st.frozensets(st.sampled_from(["read", "submit", "admin"]), min_size=1),
    RATES,
    st.just({}),
    key_expires_at=st.one_of(st.none(), st.floats(1, 1e6)),
)


@given(
    giver=PRINCIPALS, tenant=st.sampled_from(["a", "b"]), scopes=SCOPES, rate=RATES,
    expires_at=st.one_of(st.none(), st.floats(1, 1e6)), exact=st.booleans(),
)  # fmt: skip
def test_what_is_handed_on_is_within_what_is_held(
    giver: Principal,
    tenant: str,
    scopes: list[str],
    rate: float | None,
    expires_at: float | None,
    exact: bool,
) -> None:
    def speed(value: float | None) -> float:
        return USUAL if value is None else value or float("inf")

    try:
        asked = Grant(tuple(scopes), rate, expires_at)
        given_on = bounded(giver, tenant, asked, USUAL, exact=exact)
    except (Problem, BadInput):
        return
    assert tenant == giver.tenant
    assert all(giver.may(scope) for scope in given_on.scopes)
    assert speed(given_on.rate_per_s) <= speed(giver.rate_per_s)
    end = float("inf") if given_on.expires_at is None else given_on.expires_at
    assert giver.key_expires_at is None or end <= giver.key_expires_at
    assert expires_at is None or end <= expires_at
