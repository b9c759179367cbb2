"""The person signed in at the page, as passed from the page's edge to the edge of the calls."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from service.store.keys import Principal

TENANT_HEADER = "shardwise-tenant"
"""Header that names the tenant in which an access token is used; a key has only one."""

CARRIED = "shardwise.signed_in"
"""Member of a request's ASGI scope. No header can set it: the server fills standard ones only."""


@dataclass(frozen=True)
class SignedIn:
    """A person in one tenant, and all the tenants that they may choose from."""

    principal: Principal
    name: str
    tenants: tuple[str, ...]


def carried(request: Request) -> SignedIn | None:
    """Returns who is signed in, if the page has put that into the request."""
    signed_in = request.scope.get(CARRIED)
    return signed_in if isinstance(signed_in, SignedIn) else None
