"""Hardware profiles: the built-in ones for everybody, uploaded ones per tenant."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.problems import not_found
from service.store.database import now
from service.store.insert import insert_new
from service.store.pages import Place, after
from service.store.tables import HardwareProfile
from service.store.tenants import lock_tenant
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
)

MAX_ROWS = 10_000
"""Rows of one measured table."""

MAX_VERSIONS = 100
"""Versions of a profile that are searched for the one that a plan stands on."""


def check_sizes(hardware: Hardware) -> None:
    """BadInput for counts beyond every real machine: they overflow the search's arithmetic."""
    for name in ("collectives", "operators"):
        rows = getattr(hardware, name)
        if len(rows) > MAX_ROWS:
            raise BadInput(f"{len(rows)} rows", field=name, expected=f"at most {MAX_ROWS}")
    for i, device in enumerate(hardware.devices):
        if device.count > MAX_ROWS:
            raise BadInput(
                f"{device.count}", field=f"devices[{i}].count", expected=f"at most {MAX_ROWS}"
            )
    for i, level in enumerate(hardware.levels):
        if level.size > 10**6:
            raise BadInput(f"{level.size}", field=f"levels[{i}].size", expected="at most 1000000")


def add_hardware(
    session: Session, tenant: str, hardware: Hardware, previous_id: str | None = None
) -> bool:
    """Store a profile for a tenant, as the newest version of its name; whether it is new to it."""
    lock_tenant(session, tenant)
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.name == hardware.name)
    newest = session.scalar(select(func.max(HardwareProfile.version)).where(*mine)) or 0
    return insert_new(
        session,
        HardwareProfile,
        tenant_id=tenant,
        hardware_id=hardware.id,
        created_at=now(),
        name=hardware.name,
        document=hardware_document(hardware),
        version=newest + 1,
        previous_id=previous_id,
    )


def list_versions(
    session: Session, tenant: str, name: str, place: Place | None, limit: int
) -> list[HardwareProfile]:
    """The tenant's profiles of this name, newest first."""
    query = select(HardwareProfile).where(
        HardwareProfile.tenant_id == tenant, HardwareProfile.name == name
    )
    columns = (HardwareProfile.created_at, HardwareProfile.hardware_id)
    return list(session.scalars(after(query, *columns, place, limit)))


def base_of(
    session: Session, tenant: str, name: str, hardware_id: str | None, nodes: int | None
) -> tuple[str, str]:
    """(id, name) of the profile that a plan stands on, which `*NODES` may have given another id.

    What the tenant has not (any more) keeps the id that the plan has.
    """
    own = session.execute(
        select(HardwareProfile.hardware_id, HardwareProfile.document)
        .where(HardwareProfile.tenant_id == tenant, HardwareProfile.name == name)
        .order_by(HardwareProfile.created_at.desc(), HardwareProfile.hardware_id.desc())
        .limit(MAX_VERSIONS)
    ).all()
    known = [hardware_from_document(document) for _, document in own]
    if name in list_builtin():
        known.append(load_hardware(name))
    for profile in known:
        if profile.id == hardware_id or (
            nodes is not None and profile.with_nodes(nodes).id == hardware_id
        ):
            return profile.id, profile.name
    if hardware_id is None and known:
        return known[0].id, known[0].name
    return (hardware_id or "")[:71], name


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
