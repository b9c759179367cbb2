"""Pending deliveries, as figures for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session, aliased

from service.store.database import now
from service.store.webhook_tables import Webhook, WebhookDelivery


@dataclass(frozen=True)
class Backlog:
    """Webhooks by state, and the deliveries that wait.

    `oldest_s` is the age of the oldest. `untried_s` is for how long the webhook that has waited
    longest has had a delivery due without an attempt: a slow or dead receiver does not raise it,
    since it is tried; workers that do not deliver do.
    """

    webhooks: dict[str, int]
    pending: int
    oldest_s: float
    untried_s: float


def backlog(session: Session) -> Backlog:
    """Returns the backlog of all tenants."""
    state: ColumnElement[str] = case(
        (Webhook.disabled_at.is_not(None), "disabled"),
        (Webhook.failing_since.is_not(None), "failing"),
        else_="active",
    )
    webhooks = {"active": 0, "failing": 0, "disabled": 0}
    for name, count in session.execute(select(state, func.count()).group_by(state)):
        webhooks[name] = count
    waiting = select(func.count(), now() - func.min(WebhookDelivery.created_at))
    pending, oldest_s = session.execute(waiting.where(WebhookDelivery.state == "pending")).one()
    return Backlog(webhooks, int(pending), max(oldest_s or 0.0, 0.0), _untried_s(session))


def _untried_s(session: Session) -> float:
    row = aliased(WebhookDelivery)
    first = (
        select(func.min(row.next_at))
        .where(row.webhook_id == Webhook.id, row.state == "pending", row.next_at <= now())
        .correlate(Webhook)
        .scalar_subquery()
    )
    rows = session.execute(select(first.label("due_at"), Webhook.tried_at, now()))
    waits = [at - max(due_at, tried_at or 0.0) for due_at, tried_at, at in rows if due_at]
    return max(waits, default=0.0)
