"""Webhooks as flows, and what receivers check: a signature as Standard Webhooks specifies it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from time import time
from typing import Any

from shardwise.errors import BadInput

Document = dict[str, Any]
TOLERANCE_S = 300.0


def webhook_body(
    url: str, events: Sequence[str], kinds: Sequence[str], states: Sequence[str], name: str
) -> Document:
    """Returns the document of `POST /v1/webhooks`."""
    whole: Document = {"url": url, "events": list(events)}
    for field, value in (("kinds", list(kinds)), ("states", list(states)), ("name", name)):
        if value:
            whole[field] = value
    return whole


def verify_webhook(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> str:
    """Returns the id of a delivery whose signature is right: the same for every attempt.

    `secret` is the `whsec_…` that was shown when the webhook was made, `headers` and `body` are as
    received. A delivery may arrive twice: keep the ids that were handled. Raises `BadInput` if
    a header is missing, the signature is wrong, or the delivery was signed more than `tolerance_s`
    seconds before or after `now` (default: this host's clock).
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, stamp = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split()
        at = int(stamp)
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except KeyError as error:
        raise BadInput(
            "missing",
            field=str(error.args[0]),
            expected="the headers webhook-id, webhook-timestamp and webhook-signature",
        ) from None
    except binascii.Error:
        raise BadInput("not a secret", field="secret", expected="whsec_…") from None
    except ValueError:
        raise BadInput(
            "not a number", field="webhook-timestamp", expected="seconds since 1970"
        ) from None
    signed = f"{message_id}.{stamp}.".encode() + body
    right = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    if not any(hmac.compare_digest(right.encode(), one.encode()) for one in signatures):
        raise BadInput(
            "wrong", field="webhook-signature", expected="a signature by the secret of this webhook"
        )
    if abs((time() if now is None else now) - at) > tolerance_s:
        raise BadInput(
            "too old, or from the future",
            field="webhook-timestamp",
            expected="a message of the last minutes, and clocks that agree",
        )
    return message_id
