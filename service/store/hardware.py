"""Hardware profiles: the built-in ones for everybody, uploaded ones per tenant."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.problems import not_found
from service.store.database import now
from service.store.insert import insert_new
from service.store.pages import Place, after
from service.store.tables import HardwareProfile
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
)


def add_hardware(session: Session, tenant: str, hardware: Hardware) -> bool:
    """Store a profile for a tenant; whether it is new to that tenant."""
    return insert_new(
        session,
        HardwareProfile,
        tenant_id=tenant,
        hardware_id=hardware.id,
        created_at=now(),
        name=hardware.name,
        document=hardware_document(hardware),
    )


def find_hardware(session: Session, tenant: str, spec: str) -> Hardware:
    """A profile by built-in name or by id, either with `*NODES`.

    A `not-found` problem for an id that the tenant has not; BadInput for an unknown name or a node
    count out of range. A name is never taken for a file.
    """
    if not spec.startswith("sha256:"):
        if spec.partition("*")[0] not in list_builtin():
            raise BadInput(
                f"unknown hardware {spec[:100]!r}",
                field="hardware",
                expected=f"the id of a profile or one of {', '.join(list_builtin())}",
            )
        return load_hardware(spec)
    hardware_id, star, nodes = spec.partition("*")
    row = session.get(HardwareProfile, (tenant, hardware_id))
    if row is None:
        raise not_found("hardware profile", hardware_id[:80])
    hardware = hardware_from_document(row.document)
    if not star:
        return hardware
    most = hardware.levels[-1].size
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) < 10 and 1 <= int(nodes) <= most):
        raise BadInput(
            f"{nodes[:20]!r} nodes", field="hardware", expected=f"ID*NODES with 1 to {most} nodes"
        )
    return hardware.with_nodes(int(nodes))


def list_hardware(
    session: Session, tenant: str, place: Place | None, limit: int
) -> list[HardwareProfile]:
    """The tenant's profiles, newest first."""
    query = select(HardwareProfile).where(HardwareProfile.tenant_id == tenant)
    columns = (HardwareProfile.created_at, HardwareProfile.hardware_id)
    return list(session.scalars(after(query, *columns, place, limit)))


def delete_hardware(session: Session, tenant: str, hardware_id: str) -> None:
    """Forget a tenant's profile; answers that used it stay."""
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.hardware_id == hardware_id)
    gone = session.scalar(
        delete(HardwareProfile).where(*mine).returning(HardwareProfile.hardware_id)
    )
    if gone is None:
        raise not_found("hardware profile", hardware_id)
