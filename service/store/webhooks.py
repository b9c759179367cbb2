"""Webhooks as tenants see them: created, listed, tested, deleted, and their deliveries."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from service.base.problems import Problem, not_found
from service.store.database import clock, now
from service.store.ids import iso, new_id
from service.store.outbox import payload
from service.store.pages import Place, after
from service.store.tenants import lock_tenant
from service.store.webhook_tables import TEST, Webhook, WebhookDelivery

WEBHOOK_SCHEMA = "shardwise.webhook/1"
DELIVERY_SCHEMA = "shardwise.webhook-delivery/1"


def make_webhook(
    session: Session,
    tenant: str,
    *,
    max_webhooks: int,
    once_hash: str | None,
    once_s: float,
    key_fingerprint: str,
    **values: Any,
) -> tuple[Webhook, bool]:
    """Returns a new webhook and True, or the one that the same request created before and False.

    Raises a problem `quota` if the tenant has too many.
    """
    lock_tenant(session, tenant)
    known = None if once_hash is None else _made_before(session, tenant, once_hash, once_s)
    if known is not None:
        return known, False
    count = session.scalar(select(func.count()).where(Webhook.tenant_id == tenant)) or 0
    if count >= max_webhooks:
        raise Problem("quota", f"at most {max_webhooks} webhooks: delete one first")
    webhook = Webhook(
        id=new_id("webhook"),
        tenant_id=tenant,
        salt=secrets.token_hex(32),
        key_fingerprint=key_fingerprint,
        once_hash=once_hash,
        created_at=now(),
        dropped=0,
        **values,
    )
    session.add(webhook)
    session.flush()
    session.refresh(webhook)
    return webhook, True


def _made_before(session: Session, tenant: str, once_hash: str, once_s: float) -> Webhook | None:
    mine = (Webhook.tenant_id == tenant, Webhook.once_hash == once_hash)
    return session.scalar(select(Webhook).where(*mine, Webhook.created_at > now() - once_s))


def find_webhook(session: Session, tenant: str, webhook_id: str) -> Webhook:
    """Returns a tenant's webhook. Raises a problem `not-found` if there is none."""
    webhook = session.get(Webhook, webhook_id)
    if webhook is None or webhook.tenant_id != tenant:
        raise not_found("webhook", webhook_id)
    return webhook


def webhooks_of(session: Session, tenant: str) -> list[Webhook]:
    """Returns all of a tenant's webhooks (few: `max_webhooks`), newest first."""
    query = select(Webhook).where(Webhook.tenant_id == tenant)
    return list(session.scalars(query.order_by(Webhook.created_at.desc(), Webhook.id.desc())))


def delete_webhook(session: Session, tenant: str, webhook_id: str) -> None:
    """Deletes a webhook with its deliveries; a delivery that is being sent still arrives."""
    mine = (Webhook.id == webhook_id, Webhook.tenant_id == tenant)
    if session.scalar(delete(Webhook).where(*mine).returning(Webhook.id)) is None:
        raise not_found("webhook", webhook_id)


def make_test_delivery(session: Session, webhook: Webhook) -> WebhookDelivery:
    """Returns a pending delivery of a test event: a new one, or the one that exists already."""
    # Of two calls at once the second waits here, and gets the delivery of the first.
    session.execute(
        select(Webhook.id).where(Webhook.id == webhook.id).with_for_update(key_share=True)
    )
    waiting = select(WebhookDelivery).where(
        WebhookDelivery.webhook_id == webhook.id,
        WebhookDelivery.event == TEST,
        WebhookDelivery.state == "pending",
    )
    pending = session.scalar(waiting)
    if pending is not None:
        return pending
    row = insert(WebhookDelivery).values(
        id=new_id("msg"),
        tenant_id=webhook.tenant_id,
        webhook_id=webhook.id,
        event=TEST,
        subject=webhook.id,
        body=payload(TEST, clock(session), {"id": webhook.id}),
        state="pending",
        attempts=0,
        reason="",
        next_at=now(),
        created_at=now(),
    )
    session.execute(row)
    return session.scalars(waiting).one()


def list_deliveries(
    session: Session, webhook: Webhook, place: Place | None, limit: int, state: str | None
) -> list[WebhookDelivery]:
    """Returns a webhook's deliveries, newest first."""
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id)
    if state is not None:
        query = query.where(WebhookDelivery.state == state)
    columns = WebhookDelivery.created_at, WebhookDelivery.id
    return list(session.scalars(after(query, *columns, place, limit)))


def webhook_document(webhook: Webhook) -> dict[str, Any]:
    """Returns a webhook as `shardwise.webhook/1`, without its secret."""
    state = "active" if webhook.failing_since is None else "failing"
    return {
        "schema": WEBHOOK_SCHEMA,
        "id": webhook.id,
        "name": webhook.name,
        "url": webhook.url,
        "events": webhook.events,
        "kinds": webhook.kinds,
        "states": webhook.states,
        "state": "disabled" if webhook.disabled_at is not None else state,
        "reason": webhook.disabled_reason,
        "dropped": webhook.dropped,
        "created_at": iso(webhook.created_at),
        "failing_since": iso(webhook.failing_since),
        "disabled_at": iso(webhook.disabled_at),
        "location": f"/v1/webhooks/{webhook.id}",
    }


def delivery_document(row: WebhookDelivery) -> dict[str, Any]:
    """Returns a delivery as `shardwise.webhook-delivery/1`."""
    return {
        "schema": DELIVERY_SCHEMA,
        "id": row.id,
        "event": row.event,
        "subject": row.subject,
        "state": row.state,
        "attempts": row.attempts,
        "status": row.status,
        "reason": row.reason,
        "created_at": iso(row.created_at),
        "next_at": iso(row.next_at) if row.state == "pending" else None,
        "ended_at": iso(row.ended_at),
    }
