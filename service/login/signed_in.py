"""Who is signed in at the page, as it goes from the page's edge to the edge of the calls."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from service.store.keys import Principal

TENANT_HEADER = "shardwise-tenant"
"""Which of its tenants an access token is used in; a key has one alone."""

CARRIED = "shardwise.signed_in"
"""Where a request's ASGI scope has it. No header can: the server fills only the standard ones."""


@dataclass(frozen=True)
class SignedIn:
    """A person in one tenant, and all the tenants that he or she may choose from."""

    principal: Principal
    name: str
    tenants: tuple[str, ...]


def carried(request: Request) -> SignedIn | None:
    """Returns who is signed in, if the page has put that into the request."""
    found = request.scope.get(CARRIED)
    return found if isinstance(found, SignedIn) else None
