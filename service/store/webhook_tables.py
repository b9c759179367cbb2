"""The tables of webhooks. Times are seconds since 1970 by the database's clock."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables import Base
from shardwise.documents.webhooks import DeliveryState, WebhookEventName

JOB_ENDED = "job.ended"
LAUNCH_ENDED = "launch.ended"
TEST = "webhook.test"
EVENTS = get_args(WebhookEventName)
DELIVERY_STATES = get_args(DeliveryState)


class Webhook(Base):
    """A URL that receives the ends of a tenant's jobs and launches.

    `kinds` and `states` are empty if all are wanted. `salt` and the operator's key that
    `key_fingerprint` names make the signing secret, which is not stored (webhook_signing.py).
    `failing_since` is the first failure after the last success, `tried_at` the last attempt,
    `dropped` the events that came while too many were waiting. `once_hash` is of the
    Idempotency-Key and body that created it, so that a repeat does not create another.
    """

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_listed", "tenant_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    url: Mapped[str] = mapped_column(Text)
    authority: Mapped[str] = mapped_column(String(300))
    events: Mapped[list[str]] = mapped_column(JSON)
    kinds: Mapped[list[str]] = mapped_column(JSON)
    states: Mapped[list[str]] = mapped_column(JSON)
    salt: Mapped[str] = mapped_column(String(64))
    key_fingerprint: Mapped[str] = mapped_column(String(16))
    once_hash: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Double)
    disabled_at: Mapped[float | None] = mapped_column(Double)
    disabled_reason: Mapped[str] = mapped_column(Text, default="")
    failing_since: Mapped[float | None] = mapped_column(Double)
    tried_at: Mapped[float | None] = mapped_column(Double)
    dropped: Mapped[int] = mapped_column(BigInteger, default=0)


class WebhookDelivery(Base):
    """One event for one webhook: the outbox. `id` is the header `webhook-id` of every attempt.

    A pending row is due when `next_at` has passed. A claim moves `next_at` to the end of the
    claim and sets `token`, which is needed to write the outcome; if the worker dies, the row
    becomes due again. `body` is deleted after the last attempt.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_due", "webhook_id", "state", "next_at"),
        Index("ix_webhook_deliveries_listed", "webhook_id", "created_at", "id"),
        Index("ix_webhook_deliveries_pending", "state", "created_at"),
        Index("ix_webhook_deliveries_tenant", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64))
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    next_at: Mapped[float] = mapped_column(Double)
    token: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[float] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    status: Mapped[int | None] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(Text, default="")
