"""Which tenant an administrator's call is about: its own, or for an operator any."""

from __future__ import annotations

from service.edge import Call
from service.problems import not_found
from service.store.tables import Tenant
from service.store.tenant_admin import find_tenant


def tenant_of(call: Call, tenant: str | None) -> str:
    """Returns the tenant that a call may administer; None names the caller's own.

    Raises a problem `not-found` for another tenant, be it there or not, unless an operator asks.
    """
    name = call.tenant if tenant is None else tenant[:80]
    if name != call.tenant and not call.principal.may("operator"):
        raise not_found("tenant", name)
    return name


def tenant_row(call: Call, tenant: str | None) -> Tenant:
    """Returns the row of the tenant that a call may administer; raises `not-found` otherwise."""
    return find_tenant(call.session, tenant_of(call, tenant))


def tell_tenant(call: Call, tenant: str, action: str, target: str, status: int = 200) -> None:
    """Writes into another tenant's audit what an operator did to it.

    The edge writes the same line into the operator's own.
    """
    if tenant != call.tenant:
        call.record(tenant, action, target, status)
