"""The outbox on both databases: written with the end or not at all, claimed once, given up."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from service.base.problems import Problem
from service.base.settings import Settings
from service.questions.question import Question
from service.store import outbox
from service.store.database import Database, now
from service.store.deliveries import (
    Parcel,
    claim,
    delivered,
    due,
    give_up,
    postpone,
    throw_away_deliveries,
)
from service.store.jobs import cancel_job, find_or_make_job
from service.store.keys import make_tenant
from service.store.schema import migrate
from service.store.tables import Job
from service.store.webhook_backlog import backlog
from service.store.webhook_tables import Webhook, WebhookDelivery
from service.store.webhooks import make_test_delivery, make_webhook

KEY = "0123456789abcdef"
LEASE_S = 60.0


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    with database.write() as session:
        for tenant in ("t", "u"):
            make_tenant(session, tenant)
    return database


def hook(store: Database, tenant: str = "t", **values: Any) -> str:
    given = {"name": "", "url": "https://example.com/", "authority": "example.com",
             "events": ["job.ended"], "kinds": [], "states": [], **values}  # fmt: skip
    with store.write() as session:
        webhook, _ = make_webhook(
            session, tenant, max_webhooks=2, once_hash=None, once_s=1.0, key_fingerprint=KEY,
            **given,
        )  # fmt: skip
        return webhook.id


def job(store: Database, number: int = 1, tenant: str = "t") -> str:
    asked = {"kind": "frontier", "gpus": number, "hardware": {"name": "h"}}
    with store.write() as session:
        row, _ = find_or_make_job(
            session, tenant, Question("frontier", "sha256:g", asked), max_queued=10**6,
            key_id=None, request_id="r", trace=None,
        )  # fmt: skip
        return row.id


def end(store: Database, job_id: str) -> None:
    with store.write() as session:
        cancel_job(session, session.get_one(Job, job_id))


def rows(store: Database) -> list[WebhookDelivery]:
    with store.read() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.id)))


def webhook(store: Database, webhook_id: str) -> Webhook:
    with store.read() as session:
        return session.get_one(Webhook, webhook_id)


def claimed(store: Database, keys: tuple[str, ...] = (KEY,)) -> list[Parcel]:
    with store.read() as session:
        waiting = due(session, keys)
    with store.write() as session:
        return claim(session, waiting, LEASE_S)


def make_due(store: Database) -> None:
    with store.write() as session:
        session.execute(update(WebhookDelivery).values(next_at=now() - 1.0))


def in_store(store: Database, act: Callable[..., Any], *arguments: Any) -> Any:
    with store.write() as session:
        return act(session, *arguments)


def test_each_end_is_written_once_for_each_webhook_that_wants_it(store: Database) -> None:
    mine = hook(store)
    hook(store, states=["failed"])
    hook(store, "u")
    hook(store, "u", kinds=["plan"])
    job_id = job(store)
    end(store, job_id)
    end(store, job_id)
    [row] = rows(store)
    assert (row.webhook_id, row.tenant_id, row.subject) == (mine, "t", job_id)
    assert row.body is not None
    assert len(row.body) < 1000
    event = json.loads(row.body)
    assert event["type"] == "job.ended"
    assert event["data"] == {
        "id": job_id, "kind": "frontier", "state": "cancelled", "graph_id": "sha256:g",
        "location": f"/v1/jobs/{job_id}", "error": None,
        "content_id": event["data"]["content_id"],
    }  # fmt: skip


def test_an_end_that_is_not_committed_is_not_announced(store: Database) -> None:
    hook(store)
    job_id = job(store)
    with pytest.raises(ZeroDivisionError), store.write() as session:
        cancel_job(session, session.get_one(Job, job_id))
        assert session.scalar(select(WebhookDelivery.id)) is not None
        raise ZeroDivisionError
    assert rows(store) == []


def test_a_delivery_is_claimed_by_one(store: Database) -> None:
    hook(store)
    end(store, job(store))
    with ThreadPoolExecutor(8) as pool:
        claims = [p for some in pool.map(lambda _: claimed(store), range(8)) for p in some]
    assert len(claims) == 1
    assert claimed(store, ("another key",)) == []


def test_a_worker_that_died_has_it_sent_again_under_the_same_id(store: Database) -> None:
    hook(store)
    end(store, job(store))
    [first] = claimed(store)
    assert claimed(store) == []
    make_due(store)  # as when the claim has run out
    [second] = claimed(store)
    assert (second.delivery_id, second.body) == (first.delivery_id, first.body)
    assert second.attempts == 2
    assert in_store(store, delivered, first, 200) is False
    assert in_store(store, delivered, second, 200) is True
    [row] = rows(store)
    assert (row.state, row.status, row.body) == ("delivered", 200, None)


def test_a_failure_waits_and_the_last_one_is_final(store: Database) -> None:
    webhook_id = hook(store)
    end(store, job(store))
    [parcel] = claimed(store)
    assert in_store(store, postpone, parcel, 500, "answered 500", 3600.0)
    assert webhook(store, webhook_id).failing_since is not None
    assert claimed(store) == []
    make_due(store)
    [parcel] = claimed(store)
    assert in_store(store, give_up, parcel, None, "no answer", 3600.0)
    [row] = rows(store)
    assert (row.state, row.reason, row.attempts) == ("failed", "no answer", 2)
    assert webhook(store, webhook_id).disabled_at is None


def test_what_has_failed_for_long_is_disabled_and_a_test_revives_it(store: Database) -> None:
    webhook_id = hook(store)
    for number in (1, 2):
        end(store, job(store, number))
    [parcel] = claimed(store)
    assert in_store(store, give_up, parcel, 410, "answered 410", 0.0)
    disabled = webhook(store, webhook_id)
    assert disabled.disabled_at is not None
    assert disabled.disabled_reason == "answered 410"
    assert {row.state for row in rows(store)} == {"failed"}
    end(store, job(store, 3))
    assert len(rows(store)) == 2, "a disabled webhook gets nothing"
    with store.write() as session:
        one = make_test_delivery(session, session.get_one(Webhook, webhook_id)).id
        assert make_test_delivery(session, session.get_one(Webhook, webhook_id)).id == one
    [parcel] = claimed(store)
    assert in_store(store, delivered, parcel, 204)
    assert webhook(store, webhook_id).disabled_at is None
    end(store, job(store, 4))
    assert [row.state for row in rows(store)].count("pending") == 1


def test_the_webhook_that_waited_longest_is_first(store: Database) -> None:
    many, one = hook(store), hook(store, "u")
    for number in range(5):
        end(store, job(store, number))
    [first] = claimed(store)
    assert first.webhook_id == many
    in_store(store, delivered, first, 200)
    end(store, job(store, 1, "u"))
    with store.read() as session:
        assert [delivery.webhook_id for delivery in due(session, (KEY,))] == [one, many]


def test_pending_deliveries_are_bounded(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 2)
    webhook_id = hook(store)
    for number in range(5):
        end(store, job(store, number))
    assert len(rows(store)) == 2
    assert webhook(store, webhook_id).dropped == 3
    with store.read() as session:
        assert backlog(session).pending == 2


def test_a_tenants_webhooks_are_bounded(store: Database) -> None:
    hook(store)
    hook(store)
    with pytest.raises(Problem) as refused:
        hook(store)
    assert refused.value.slug == "quota"


def test_old_deliveries_go_and_pending_ones_stay(store: Database) -> None:
    hook(store)
    for number in range(3):
        end(store, job(store, number))
    [parcel] = claimed(store)
    in_store(store, delivered, parcel, 200)
    settings = Settings()
    in_store(store, throw_away_deliveries, settings)
    assert len(rows(store)) == 3
    with store.write() as session:
        ended = update(WebhookDelivery).where(WebhookDelivery.state != "pending")
        session.execute(ended.values(ended_at=now() - settings.webhook_kept_s - 1.0))
    in_store(store, throw_away_deliveries, replace(settings))
    assert [row.state for row in rows(store)] == ["pending", "pending"]


def test_no_secret_is_stored(store: Database) -> None:
    from service.base.webhook_signing import secret_of

    row = webhook(store, hook(store))
    secret = secret_of(b"k" * 32, row.salt)
    texts = [str(value) for value in vars(row).values()]
    assert not any(secret.hex() in text for text in texts)
    assert not any(base64.b64encode(secret).decode() in text for text in texts)
