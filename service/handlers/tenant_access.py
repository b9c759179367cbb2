"""Which tenant an administrator's call is about: its own, or any for an operator."""

from __future__ import annotations

from service.base.problems import not_found
from service.edge.context import RequestContext
from service.store.tables import Tenant
from service.store.tenant_admin import find_tenant


def tenant_of(context: RequestContext, tenant: str | None) -> str:
    """Returns the tenant that a call may administer; None names the caller's own.

    Raises a problem `not-found` for another tenant, existing or not, unless an operator asks.
    """
    name = context.tenant if tenant is None else tenant[:80]
    if name != context.tenant and not context.principal.may("operator"):
        raise not_found("tenant", name)
    return name


def tenant_row(context: RequestContext, tenant: str | None) -> Tenant:
    """Returns the row of the tenant that a call may administer; raises `not-found` otherwise."""
    return find_tenant(context.session, tenant_of(context, tenant))


def tell_tenant(
    context: RequestContext, tenant: str, action: str, target: str, status: int = 200
) -> None:
    """Writes into another tenant's audit what an operator did to it.

    The edge writes the same line into the operator's own.
    """
    if tenant != context.tenant:
        context.record(tenant, action, target, status)
