"""What a service says of webhooks, and what they are sent. Moments are ISO 8601."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shardwise.documents.jobs import JobEnded, JobKind
from shardwise.documents.launches import LaunchState

WebhookEventName = Literal["job.ended", "launch.ended"]
DeliveredEventName = Literal["job.ended", "launch.ended", "webhook.test"]
DeliveryState = Literal["pending", "delivered", "failed"]


class Webhook(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.webhook/1"):
    """A URL that is notified of ended jobs and launches."""

    id: str
    name: str
    url: str
    events: list[WebhookEventName]
    kinds: list[JobKind | Literal["run", "measure"]]
    states: list[JobEnded | LaunchState]
    state: Literal["active", "failing", "disabled"]
    reason: str
    dropped: int
    created_at: str
    failing_since: str | None
    disabled_at: str | None
    location: str


class NewWebhook(Webhook, frozen=True, tag="shardwise.webhook/1"):
    """A new webhook with the secret that signs what it is sent; it is shown once."""

    secret: Annotated[str, Meta(pattern="^whsec_")]


class WebhookPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """All webhooks."""

    items: list[Webhook]
    next: str | None


class WebhookDelivery(
    msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.webhook-delivery/1"
):
    """One delivery; `status` is that of the last answer."""

    id: str
    event: DeliveredEventName
    subject: str
    state: DeliveryState
    attempts: int
    status: int | None
    reason: str
    created_at: str
    next_at: str | None
    ended_at: str | None


class WebhookDeliveryPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of deliveries; `next` is the cursor of the next one."""

    items: list[WebhookDelivery]
    next: str | None


class WebhookSubject(msgspec.Struct, frozen=True):
    """The job or the launch that ended."""

    id: str
    kind: str | msgspec.UnsetType = msgspec.UNSET
    state: str | msgspec.UnsetType = msgspec.UNSET
    content_id: str | msgspec.UnsetType = msgspec.UNSET
    graph_id: str | msgspec.UnsetType | None = msgspec.UNSET
    location: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType | None = msgspec.UNSET


class WebhookEvent(msgspec.Struct, frozen=True):
    """What a webhook is sent (Standard Webhooks)."""

    type: DeliveredEventName
    timestamp: str
    data: WebhookSubject
