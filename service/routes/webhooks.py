"""/v1/webhooks."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import read, write
from service.handlers import webhooks as handlers
from service.openapi import webhook_openapi as doc

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", **doc.post_webhook)
async def post_webhook(request: Request) -> Response:
    """Notify a URL of ended jobs and launches; the signing secret is shown only once."""
    return await write(
        request,
        handlers.post_webhook,
        "webhooks.create",
        scope="admin",
        parse=handlers.parse_webhook,
        secret=True,
    )


@router.get("", **doc.list_webhooks)
async def get_webhooks(request: Request) -> Response:
    """All webhooks of the tenant, newest first."""
    return await read(request, handlers.get_webhooks, scope="admin")


@router.get("/{webhook_id}", **doc.get_webhook)
async def get_webhook(request: Request, webhook_id: str) -> Response:
    """One webhook: its events, and whether they are delivered."""
    handler = partial(handlers.get_webhook, webhook_id=webhook_id)
    return await read(request, handler, scope="admin")


@router.delete("/{webhook_id}", **doc.delete_webhook)
async def delete_webhook(request: Request, webhook_id: str) -> Response:
    """Delete a webhook with its deliveries; pending ones are not sent."""
    handler = partial(handlers.remove_webhook, webhook_id=webhook_id)
    return await write(request, handler, "webhooks.delete", scope="admin")


@router.post("/{webhook_id}/test", **doc.test_webhook)
async def post_test(request: Request, webhook_id: str) -> Response:
    """Send a test event, once; if it is accepted, a disabled webhook is enabled again."""
    handler = partial(handlers.post_test, webhook_id=webhook_id)
    return await write(request, handler, "webhooks.test", scope="admin")


@router.get("/{webhook_id}/deliveries", **doc.list_deliveries)
async def get_deliveries(request: Request, webhook_id: str) -> Response:
    """What became of each event, newest first."""
    handler = partial(handlers.get_deliveries, webhook_id=webhook_id)
    return await read(request, handler, scope="admin")
