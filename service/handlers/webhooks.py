"""Webhooks: created with a secret shown only once, listed, tested, deleted; deliveries."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import TimeoutError as LookupTimeout
from dataclasses import dataclass
from typing import Literal

import msgspec

from service.base.json_body import read_object
from service.base.lookup import LookupFailed, Lookups
from service.base.problems import Problem
from service.base.receiver_url import ReceiverUrl, read_receiver_url
from service.base.receivers import NotReachable, permitted, reach_of
from service.base.webhook_signing import Keyring, keyring, shown
from service.cluster.gangs import LAUNCH_ENDED as LAUNCH_STATES
from service.edge.context import RequestContext, Result
from service.handlers.graphs import paging
from service.store.pages import by_creation, page
from service.store.tables import ENDED
from service.store.webhook_tables import (
    DELIVERY_STATES,
    JOB_ENDED,
    LAUNCH_ENDED,
    Webhook,
)
from service.store.webhooks import (
    delete_webhook,
    delivery_document,
    find_webhook,
    list_deliveries,
    make_test_delivery,
    make_webhook,
    webhook_document,
    webhooks_of,
)
from shardwise.documents.questions import COLLECTIONS
from shardwise.errors import BadInput
from shardwise.validation import convert

log = logging.getLogger(__name__)
MAX_NAME = 200
LOOKUP_S = 3.0
"""Time limit of a host name's lookup when a webhook is created."""

Event = Literal["job.ended", "launch.ended"]
Kind = Literal["frontier", "curve", "plan", "pricing", "quote", "compare", "run", "measure"]
State = Literal["done", "failed", "cancelled", "stopped", "lost"]
KINDS: dict[str, tuple[str, ...]] = {
    JOB_ENDED: tuple(COLLECTIONS),
    LAUNCH_ENDED: ("run", "measure"),
}
STATES: dict[str, tuple[str, ...]] = {JOB_ENDED: ENDED, LAUNCH_ENDED: LAUNCH_STATES}
_LOOKUPS = Lookups(most=32, most_each=2)


class WebhookRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/webhooks`. Without `kinds` every kind matches, without `states` every end."""

    url: str
    events: list[Event]
    kinds: list[Kind] = []
    states: list[State] = []
    name: str = ""


@dataclass(frozen=True)
class Asked:
    """A request whose URL was looked up; `keys` are the operator's, `newest` the fingerprint of the
    one for new webhooks."""

    request: WebhookRequest
    url: ReceiverUrl
    keys: Keyring
    newest: str


def parse_webhook(context: RequestContext) -> Asked:
    """Returns the request of the body, its URL checked, before any transaction begins.

    Raises `BadInput` for a receiver that is forbidden or cannot be reached now.
    """
    value = read_object(context.body, context.settings.max_json_depth)
    ask: WebhookRequest = convert(value, WebhookRequest)
    if len(ask.name) > MAX_NAME:
        raise BadInput("too long", field="name", expected=f"at most {MAX_NAME} characters")
    if not ask.events:
        raise BadInput("empty", field="events", expected=f"some of {', '.join(KINDS)}")
    _require_some_of(ask.events, tuple(KINDS), "events")
    for field, by_event in (("kinds", KINDS), ("states", STATES)):
        known = tuple(dict.fromkeys(name for event in ask.events for name in by_event[event]))
        _require_some_of(getattr(ask, field), known, field)
    url = read_receiver_url(ask.url)
    keys, newest = _keys(context)
    _require_reachable(context, url)
    return Asked(ask, url, keys, newest)


def _keys(context: RequestContext) -> tuple[Keyring, str]:
    try:
        keys = keyring(context.settings, make=True)
    except BadInput as error:
        # It names a file of this host: that is for the log, not for the client.
        log.error("%s", error)
        raise Problem("unavailable", "the key of webhooks cannot be read") from None
    newest = keys.newest()
    if newest is None:
        raise Problem("not-configured", "no webhooks: SHARDWISE_WEBHOOK_KEY is not set")
    return keys, newest


def _require_some_of(given: Sequence[str], known: tuple[str, ...], field: str) -> None:
    for name in given:
        if name not in known:
            raise BadInput(
                f"got {name[:40]!r}", field=field, expected=f"some of {', '.join(known)}"
            )
    if len(set(given)) < len(given):
        raise BadInput("a name is repeated", field=field, expected="each name once")


def _require_reachable(context: RequestContext, url: ReceiverUrl) -> None:
    try:
        lookup = _LOOKUPS.start(url.host, url.port, context.tenant)
        permitted(url, lookup.result(LOOKUP_S), reach_of(context.settings))
    except LookupTimeout:
        raise BadInput(
            "its name cannot be looked up in time",
            field="url",
            expected="a host whose name the service can look up",
        ) from None
    except (LookupFailed, NotReachable) as error:
        raise BadInput(str(error), field="url", expected="a public https URL") from None


def post_webhook(context: RequestContext) -> Result:
    """Returns 201 with the webhook and its secret, which is shown only once."""
    asked: Asked = context.parsed
    webhook, new = make_webhook(
        context.session,
        context.tenant,
        max_webhooks=context.room.limit("max_webhooks"),
        once_hash=_once_hash(context),
        once_s=context.settings.idempotency_s,
        key_fingerprint=asked.newest,
        name=asked.request.name,
        url=asked.request.url,
        authority=asked.url.authority,
        events=asked.request.events,
        kinds=asked.request.kinds,
        states=asked.request.states,
    )
    document = webhook_document(webhook)
    if webhook.key_fingerprint in asked.keys.keys:
        document["secret"] = shown(asked.keys.secret(webhook.key_fingerprint, webhook.salt))
    headers = {"Location": document["location"]}
    return Result(201, document, headers=headers if new else headers | REPLAYED)


REPLAYED = {"Idempotency-Replayed": "true"}


def _once_hash(context: RequestContext) -> str | None:
    """Returns the hash that identifies repeats; the answer is a secret and is not stored."""
    if context.idempotency_key is None:
        return None
    return hashlib.sha256(f"{context.idempotency_key}\n".encode() + context.body).hexdigest()


def get_webhooks(context: RequestContext) -> Result:
    """Returns all of the tenant's webhooks."""
    rows = webhooks_of(context.session, context.tenant)
    return Result(document=page(rows, len(rows), by_creation, webhook_document))


def get_webhook(context: RequestContext, webhook_id: str) -> Result:
    """Returns one webhook."""
    return Result(document=webhook_document(_find(context, webhook_id)))


def remove_webhook(context: RequestContext, webhook_id: str) -> Result:
    """Returns 204; the webhook is deleted."""
    delete_webhook(context.session, context.tenant, webhook_id[:80])
    return Result(204)


def post_test(context: RequestContext, webhook_id: str) -> Result:
    """Returns 202 with the delivery of a test event."""
    return Result(
        202, delivery_document(make_test_delivery(context.session, _find(context, webhook_id)))
    )


def get_deliveries(context: RequestContext, webhook_id: str) -> Result:
    """Returns a page of a webhook's deliveries."""
    place, limit = paging(context)
    state = context.query.get("state")
    if state is not None and state not in DELIVERY_STATES:
        raise BadInput(f"got {state[:40]!r}", field="state", expected=", ".join(DELIVERY_STATES))
    rows = list_deliveries(context.session, _find(context, webhook_id), place, limit, state)
    return Result(document=page(rows, limit, by_creation, delivery_document))


def _find(context: RequestContext, webhook_id: str) -> Webhook:
    return find_webhook(context.session, context.tenant, webhook_id[:80])
