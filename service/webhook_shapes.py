"""The shapes of webhooks' answers and of what they are sent, as JSON Schema; an example."""

from __future__ import annotations

from typing import Any

from service.handlers.webhooks import KINDS, STATES
from service.shapes import TEXT, WHOLE, Shape, maybe, of, page, schema, several
from service.store.webhook_tables import DELIVERY_STATES, EVENTS, TEST


def _names(by_event: dict[str, tuple[str, ...]]) -> Shape:
    known = dict.fromkeys(name for names in by_event.values() for name in names)
    return several({"type": "string", "enum": list(known)})


_WEBHOOK: dict[str, Shape] = {
    "schema": schema("webhook"),
    "id": TEXT,
    "name": TEXT,
    "url": TEXT,
    "events": several({"type": "string", "enum": list(EVENTS)}),
    "kinds": _names(KINDS),
    "states": _names(STATES),
    "state": {"type": "string", "enum": ["active", "failing", "disabled"]},
    "reason": TEXT,
    "dropped": WHOLE,
    "created_at": TEXT,
    "failing_since": maybe(TEXT),
    "disabled_at": maybe(TEXT),
    "location": TEXT,
}

WEBHOOK_SHAPES: dict[str, Shape] = {
    "Webhook": of(**_WEBHOOK),
    "WebhookPage": page("Webhook"),
    "NewWebhook": of(**_WEBHOOK, secret={"type": "string", "pattern": "^whsec_"}),
    "WebhookDelivery": of(
        schema=schema("webhook-delivery"), id=TEXT,
        event={"type": "string", "enum": [*EVENTS, TEST]}, subject=TEXT,
        state={"type": "string", "enum": list(DELIVERY_STATES)}, attempts=WHOLE,
        status=maybe(WHOLE), reason=TEXT, created_at=TEXT, next_at=maybe(TEXT),
        ended_at=maybe(TEXT),
    ),
    "WebhookDeliveryPage": page("WebhookDelivery"),
    "WebhookEvent": of(
        type={"type": "string", "enum": [*EVENTS, TEST]}, timestamp=TEXT,
        data=of(
            "id", id=TEXT, kind=TEXT, state=TEXT, content_id=TEXT, graph_id=maybe(TEXT),
            location=TEXT, error=maybe(TEXT),
        ),
    ),
}  # fmt: skip

WEBHOOK_EXAMPLES: dict[str, Any] = {
    "WebhookRequest": {
        "name": "chat",
        "url": "https://hooks.example.com/shardwise",
        "events": ["job.ended", "launch.ended"],
        "states": ["failed", "lost"],
    },
}
