"""Deliveries as workers see them: claimed for a while, sent outside of any session, recorded once.

Locks are taken in one order, a webhook before its deliveries. Every time is the database's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session, aliased

from service.base.settings import Settings, pauses
from service.store.database import now
from service.store.webhook_tables import TEST, Webhook, WebhookDelivery

MAX_REASON = 300
MAX_ENDED = 1000
"""Ended deliveries that are kept of one webhook, if they are not too old."""


@dataclass(frozen=True)
class Due:
    """A webhook's next delivery that may be tried."""

    webhook_id: str
    tenant_id: str
    authority: str
    delivery_id: str


@dataclass(frozen=True)
class Parcel:
    """A claimed delivery, with all that sending needs. `at` is the database's time of the claim."""

    delivery_id: str
    token: str
    webhook_id: str
    tenant_id: str
    url: str
    salt: str
    key_fingerprint: str
    event: str
    body: bytes
    attempts: int
    at: float


def due(session: Session, fingerprints: Iterable[str]) -> list[Due]:
    """Returns the first due delivery of every webhook that this worker can sign for.

    The webhook that has waited longest for an attempt is the first.
    """
    row = aliased(WebhookDelivery)
    first = (
        select(row.id)
        .where(row.webhook_id == Webhook.id, row.state == "pending", row.next_at <= now())
        .order_by(row.next_at, row.id)
        .limit(1)
        .correlate(Webhook)
        .scalar_subquery()
    )
    query = (
        select(Webhook.id, Webhook.tenant_id, Webhook.authority, first.label("delivery_id"))
        .where(Webhook.key_fingerprint.in_(list(fingerprints)))
        .order_by(func.coalesce(Webhook.tried_at, 0.0), Webhook.id)
    )
    return [Due(*entry) for entry in session.execute(query) if entry.delivery_id is not None]


def claim(session: Session, chosen: Sequence[Due], lease_s: float) -> list[Parcel]:
    """Claims those of the chosen deliveries that no other worker has. Returns them.

    The attempt counts from here, so that a delivery that kills its worker is not tried forever.
    """
    webhooks = select(Webhook).where(Webhook.id.in_({one.webhook_id for one in chosen}))
    locked = {
        webhook.id: webhook
        for webhook in session.scalars(
            webhooks.order_by(Webhook.id).with_for_update(key_share=True, skip_locked=True)
        )
    }
    parcels = []
    for one in chosen:
        webhook = locked.get(one.webhook_id)
        if webhook is not None:
            parcels += _claim(session, webhook, one.delivery_id, lease_s)
    return parcels


def _claim(session: Session, webhook: Webhook, delivery_id: str, lease_s: float) -> list[Parcel]:
    token = secrets.token_hex(16)
    taken = session.execute(
        update(WebhookDelivery)
        .where(
            WebhookDelivery.id == delivery_id,
            WebhookDelivery.state == "pending",
            WebhookDelivery.next_at <= now(),
        )
        .values(token=token, next_at=now() + lease_s, attempts=WebhookDelivery.attempts + 1)
        .returning(
            WebhookDelivery.event, WebhookDelivery.body, WebhookDelivery.attempts, now().label("at")
        )
        .execution_options(synchronize_session=False)
    ).first()
    if taken is None:
        return []
    _change(session, webhook.id, tried_at=now())
    return [
        Parcel(
            delivery_id,
            token,
            webhook.id,
            webhook.tenant_id,
            webhook.url,
            webhook.salt,
            webhook.key_fingerprint,
            taken.event,
            taken.body or b"",
            taken.attempts,
            taken.at,
        )
    ]


def delivered(session: Session, parcel: Parcel, status: int) -> bool:
    """Records that the receiver accepted it. Returns False if another worker has the claim by now.

    A disabled webhook is enabled again: a test has reached its receiver.
    """
    _lock(session, parcel.webhook_id)
    if not _record(session, parcel, **_ended("delivered", status, "")):
        return False
    _change(session, parcel.webhook_id, failing_since=None, disabled_at=None, disabled_reason="")
    return True


def postpone(
    session: Session, parcel: Parcel, status: int | None, reason: str, pause_s: float
) -> bool:
    """Records a failed attempt, with another to come. Returns False if the claim is lost."""
    _lock(session, parcel.webhook_id)
    values = {"status": status, "reason": reason[:MAX_REASON], "next_at": now() + pause_s}
    if not _record(session, parcel, **values):
        return False
    _mark_failing(session, parcel.webhook_id)
    return True


def give_up(
    session: Session, parcel: Parcel, status: int | None, reason: str, disable_s: float
) -> bool:
    """Records the last attempt as failed. Returns False if another worker has the claim by now.

    The webhook is disabled if all attempts failed for `disable_s`; 0 disables it at once.
    """
    _lock(session, parcel.webhook_id)
    if not _record(session, parcel, **_ended("failed", status, reason)):
        return False
    _mark_failing(session, parcel.webhook_id)
    hopeless = (
        Webhook.id == parcel.webhook_id,
        Webhook.disabled_at.is_(None),
        Webhook.failing_since <= now() - disable_s,
    )
    if session.scalar(select(Webhook.id).where(*hopeless)) is not None:
        _disable(session, parcel.webhook_id, reason)
    return True


def _disable(session: Session, webhook_id: str, reason: str) -> None:
    """Disables a webhook and fails its pending deliveries; a test may still be tried."""
    _change(session, webhook_id, disabled_at=now(), disabled_reason=reason[:MAX_REASON])
    waiting = (
        WebhookDelivery.webhook_id == webhook_id,
        WebhookDelivery.state == "pending",
        WebhookDelivery.event != TEST,
    )
    _fail(session, waiting, "the webhook was disabled")


def _fail(session: Session, which: Iterable[ColumnElement[bool]], reason: str) -> None:
    session.execute(
        update(WebhookDelivery)
        .where(*which)
        .values(token=None, **_ended("failed", WebhookDelivery.status, reason))
        .execution_options(synchronize_session=False)
    )


def _ended(state: str, status: object, reason: str) -> dict[str, object]:
    return {
        "state": state,
        "status": status,
        "reason": reason[:MAX_REASON],
        "body": None,
        "ended_at": now(),
    }


def _lock(session: Session, webhook_id: str) -> None:
    session.execute(
        select(Webhook.id).where(Webhook.id == webhook_id).with_for_update(key_share=True)
    )


def _mark_failing(session: Session, webhook_id: str) -> None:
    _change(session, webhook_id, failing_since=func.coalesce(Webhook.failing_since, now()))


def _change(session: Session, webhook_id: str, **values: object) -> None:
    session.execute(
        update(Webhook)
        .where(Webhook.id == webhook_id)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def _record(session: Session, parcel: Parcel, **values: object) -> bool:
    row = session.execute(
        update(WebhookDelivery)
        .where(
            WebhookDelivery.id == parcel.delivery_id,
            WebhookDelivery.state == "pending",
            WebhookDelivery.token == parcel.token,
        )
        .values(token=None, **values)
        .returning(WebhookDelivery.id)
        .execution_options(synchronize_session=False)
    ).first()
    return row is not None


def throw_away_deliveries(session: Session, settings: Settings) -> None:
    """Deletes ended deliveries that are old or many, and fails those that no worker can sign."""
    ended = WebhookDelivery.state != "pending"
    newest = (WebhookDelivery.created_at.desc(), WebhookDelivery.id.desc())
    number = func.row_number().over(partition_by=WebhookDelivery.webhook_id, order_by=newest)
    numbered = select(WebhookDelivery.id, number.label("number")).where(ended).subquery()
    surplus = select(numbered.c.id).where(numbered.c.number > MAX_ENDED)
    old = WebhookDelivery.ended_at < now() - settings.webhook_kept_s
    for which in (old, WebhookDelivery.id.in_(surplus)):
        session.execute(
            delete(WebhookDelivery).where(ended, which).execution_options(synchronize_session=False)
        )
    forgotten = WebhookDelivery.created_at < now() - longest_s(settings)
    _fail(
        session,
        (WebhookDelivery.state == "pending", forgotten),
        "no worker has sent it: none runs that has the webhook's key",
    )


def longest_s(settings: Settings) -> float:
    """Returns how old a delivery may be that is still retried, in seconds, with time to spare."""
    return 2 * sum(pauses(settings.webhook_retry_s) or ()) + 3600.0
