"""The tenant's row as a lock, for what must be counted or numbered without a race."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.tables import Tenant


def lock_tenant(session: Session, tenant: str) -> None:
    """Locks the tenant's row until the transaction ends; others may still refer to it."""
    session.execute(select(Tenant.id).where(Tenant.id == tenant).with_for_update(key_share=True))
