"""The outbox: webhook events are written in the transaction of the change that they report.

Code that ends a job or a launch calls this inside the same transaction. The rows are sent by
workers (service/store/deliveries.py). A webhook's row is locked against deletion until the
transaction ends, so that ending a job never fails because a webhook is deleted in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Select, func, insert, select, update
from sqlalchemy.orm import Session

from service.store.database import now
from service.store.ids import iso, new_id
from service.store.launch_tables import Launch
from service.store.tables import Job
from service.store.webhook_tables import JOB_ENDED, LAUNCH_ENDED, Webhook, WebhookDelivery

MAX_PENDING = 10_000
"""Deliveries of one webhook that may wait; further events are dropped and counted."""


def jobs_ended(session: Session, job_ids: Iterable[str]) -> None:
    """Records for their tenants' webhooks that these jobs have ended."""
    ids = list(job_ids)
    if not ids:
        return
    job = (Job.id, Job.kind, Job.state, Job.content_id, Job.graph_id, Job.error, Job.ended_at)
    query = select(Webhook, *job).join(Job, Job.tenant_id == Webhook.tenant_id)
    rows = []
    for webhook, *values in session.execute(_listening(query.where(Job.id.in_(ids)))):
        job_id, kind, state, content_id, graph_id, error, ended_at = values
        if wants(webhook, JOB_ENDED, kind, state):
            data = {
                "id": job_id,
                "kind": kind,
                "state": state,
                "content_id": content_id,
                "graph_id": graph_id,
                "location": f"/v1/jobs/{job_id}",
                "error": None if error is None else error["type"],
            }
            rows.append(_row(webhook, JOB_ENDED, job_id, ended_at, data))
    _write(session, rows)


def launch_ended(session: Session, launch: Launch) -> None:
    """Records for its tenant's webhooks that a launch has ended."""
    query = select(Webhook).where(Webhook.tenant_id == launch.tenant_id)
    rows = []
    for webhook in session.scalars(_listening(query)):
        if wants(webhook, LAUNCH_ENDED, launch.kind, launch.state):
            data = {
                "id": launch.id,
                "kind": launch.kind,
                "state": launch.state,
                "graph_id": launch.graph_id,
                "location": f"/v1/launches/{launch.id}",
            }
            rows.append(_row(webhook, LAUNCH_ENDED, launch.id, launch.ended_at, data))
    _write(session, rows)


def _listening(query: Select[Any]) -> Select[Any]:
    enabled = query.where(Webhook.disabled_at.is_(None)).order_by(Webhook.id)
    return enabled.with_for_update(read=True, key_share=True, of=Webhook)


def wants(webhook: Webhook, event: str, kind: str, state: str) -> bool:
    """Returns whether a webhook wants an event."""
    return (
        event in webhook.events
        and (not webhook.kinds or kind in webhook.kinds)
        and (not webhook.states or state in webhook.states)
    )


def payload(event: str, at: float | None, data: Mapping[str, Any]) -> bytes:
    """Returns the body that is sent and signed."""
    return msgspec.json.encode({"type": event, "timestamp": iso(at), "data": data})


def _row(
    webhook: Webhook, event: str, subject: str, at: float | None, data: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "id": new_id("msg"),
        "tenant_id": webhook.tenant_id,
        "webhook_id": webhook.id,
        "event": event,
        "subject": subject,
        "body": payload(event, at, data),
        "state": "pending",
        "attempts": 0,
        "reason": "",
    }


def _write(session: Session, rows: list[dict[str, Any]]) -> None:
    """Stores the rows, but for each webhook only as many as may wait."""
    if not rows:
        return
    room = _room(session, {row["webhook_id"] for row in rows})
    dropped: dict[str, int] = {}
    for row in rows:
        webhook_id = row["webhook_id"]
        if room[webhook_id] > 0:
            room[webhook_id] -= 1
            session.execute(insert(WebhookDelivery).values(**row, next_at=now(), created_at=now()))
        else:
            dropped[webhook_id] = dropped.get(webhook_id, 0) + 1
    for webhook_id, count in sorted(dropped.items()):
        session.execute(
            update(Webhook)
            .where(Webhook.id == webhook_id)
            .values(dropped=Webhook.dropped + count)
            .execution_options(synchronize_session=False)
        )


def _room(session: Session, webhook_ids: set[str]) -> dict[str, int]:
    waiting = (
        select(WebhookDelivery.webhook_id, func.count())
        .where(WebhookDelivery.webhook_id.in_(webhook_ids), WebhookDelivery.state == "pending")
        .group_by(WebhookDelivery.webhook_id)
    )
    counts: dict[str, int] = {row[0]: row[1] for row in session.execute(waiting)}
    return {webhook_id: MAX_PENDING - counts.get(webhook_id, 0) for webhook_id in webhook_ids}
