"""Which scope the key of a call must have: what the OpenAPI document says of it.

The routes themselves ask the gate for their scopes (service/edge/perform.py); a test calls every
one of them with keys of each scope and compares.
"""

from __future__ import annotations

from typing import Any

_OPEN = {("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics"), ("post", "/v1/agents")}
"""Calls without a key; an enrolment's credential is its token."""


_OWN_TENANT = {("get", "/v1/tenants/{tenant}"), ("get", "/v1/tenants/{tenant}/export")}
"""What a tenant's own administrator may ask of it; of other tenants an operator alone."""


def scope_of(method: str, path: str) -> str | None:
    """Returns the scope of a call by its method and template; None: it needs no key."""
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
    if path.startswith("/v1/webhooks"):
        return "admin"  # a receiver's URL is often a secret, and what is sent there leaves
    return "read" if method == "get" else "submit"


def security_of(method: str, path: str) -> list[dict[str, Any]]:
    """Returns an operation's `security`: the key with its scope as its role, or none where none is
    needed.

    A service on loopback without keys asks nobody but its agents for one.
    """
    scope = scope_of(method, path)
    if scope is None:
        return []
    return [{"key": [scope]}] if scope == "agent" else [{"key": [scope]}, {}]
