"""The scope that the key of a call must have, as the OpenAPI document states it.

The routes themselves ask the gate for their scopes (service/edge/perform.py); a test calls every
one of them with keys of each scope and compares.
"""

from __future__ import annotations

from typing import Any

_OPEN = {("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics"), ("post", "/v1/agents")}
"""Calls without a key; an enrolment's credential is its token."""


_OWN_TENANT = {("get", "/v1/tenants/{tenant}"), ("get", "/v1/tenants/{tenant}/export")}
"""Calls that a tenant's administrator may make for it; for other tenants only an operator may."""


def scope_of(method: str, path: str) -> str | None:
    """Returns the scope of a call by its method and path template; None if it needs no key."""
    if (method, path) in _OPEN:
        return None
    if path.startswith("/v1/agents"):
        if path.endswith(("/heartbeat", "/assignments", "/reports")):
            return "agent"
        return "read" if method == "get" else "admin"
    if path.startswith("/v1/tenants"):
        return "admin" if (method, path) in _OWN_TENANT else "operator"
    if path.startswith(("/v1/keys", "/v1/audit")):
        return "admin"
    if path.startswith("/v1/launches/{launch_id}/runs"):
        return "admin"  # what counts as measured decides about everybody's plans
    if path.startswith("/v1/webhooks"):
        return "admin"  # a receiver's URL is often a secret, and what is sent there leaves
    return "read" if method == "get" else "submit"


def security_of(method: str, path: str) -> list[dict[str, Any]]:
    """Returns an operation's `security`: the key with its scope as its role, or none if no key is
    needed.

    A service on loopback without keys requires one only from its agents.
    """
    scope = scope_of(method, path)
    if scope is None:
        return []
    return [{"key": [scope]}] if scope == "agent" else [{"key": [scope]}, {}]
