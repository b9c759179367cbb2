"""OpenAPI descriptions of the routes of webhooks."""

from __future__ import annotations

from service.openapi.document import CHANGES, PAGING, READS, json_body, query, route
from service.store.webhook_tables import DELIVERY_STATES

post_webhook = route(
    {201: ("The webhook with its signing secret, shown only once", json_body("NewWebhook"))},
    CHANGES,
    body=json_body("WebhookRequest"),
    create=True,
    status_code=201,
)
list_webhooks = route({200: ("All webhooks", json_body("WebhookPage"))}, READS)
get_webhook = route({200: ("The webhook", json_body("Webhook"))}, (*READS, 404))
delete_webhook = route({204: ("Forgotten", None)}, (*CHANGES, 404), status_code=204)
test_webhook = route(
    {202: ("The delivery of the test event", json_body("WebhookDelivery"))},
    (*CHANGES, 404),
    create=True,
    status_code=202,
)
list_deliveries = route(
    {200: ("A page", json_body("WebhookDeliveryPage"))},
    (*READS, 404),
    parameters=[
        *PAGING,
        query("state", {"type": "string", "enum": list(DELIVERY_STATES)}, "Only in this state."),
    ],
)
