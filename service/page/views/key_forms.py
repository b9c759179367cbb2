"""The forms of keys as bodies of the HTTP calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.page.forms import number, set_if
from service.page.inner import Rights

DAY_S = 86400.0


def key_body(values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body of `POST /v1/keys`. Raises `BadInput`, naming the field."""
    body: dict[str, Any] = {"name": values.get("name", "")}
    body["scopes"] = [part for part in values.get("scopes", "").split(",") if part]
    set_if(body, values, "rate_per_s", number)
    if "expires_days" in values:
        body["expires_s"] = DAY_S * number(values["expires_days"], "expires_days")
    return body


def rotate_body(values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body of a rotation. Raises `BadInput`, naming the field."""
    if "overlap_h" not in values:
        return {}
    return {"overlap_s": 3600.0 * number(values["overlap_h"], "overlap_h")}


def scopes_offered(rights: Rights) -> list[tuple[str, str]]:
    """Returns the scopes that the user may grant, each with its meaning."""
    scopes = [
        ("read", "read everything of the tenant"),
        ("submit", "upload, ask, start, cancel, delete"),
        ("admin", "all of that, keys and agents"),
    ]
    return [*scopes, ("operator", "all tenants")] if rights.operator else scopes
