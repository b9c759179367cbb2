"""Hardware profiles: the built-in ones for all tenants, uploaded ones per tenant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, delete, func, or_, select
from sqlalchemy.orm import Session, defer

from service.base.problems import not_found
from service.store.database import now
from service.store.insert import insert_new
from service.store.pages import Place, after
from service.store.quotas import Room
from service.store.summaries import hardware_summary, size_of, summary_of_document
from service.store.tables import HardwareProfile
from service.store.tenants import lock_tenant
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    builtin_name,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
    unknown_hardware,
)

MAX_ROWS = 10_000
"""Rows of one measured table."""

MAX_GROUPS = 64
"""Groups of devices of a profile."""

MAX_VERSIONS = 100
"""Versions of a profile that are searched for the one that a plan is based on."""


def check_sizes(hardware: Hardware) -> None:
    """Raises BadInput for counts beyond any real machine: they overflow the search's arithmetic."""
    for name in ("collectives", "operators"):
        rows = getattr(hardware, name)
        if len(rows) > MAX_ROWS:
            raise BadInput(f"{len(rows)} rows", field=name, expected=f"at most {MAX_ROWS}")
    if len(hardware.groups) > MAX_GROUPS:
        raise BadInput(
            f"{len(hardware.groups)} groups", field="groups", expected=f"at most {MAX_GROUPS}"
        )
    for i, group in enumerate(hardware.groups):
        if group.per_node > MAX_ROWS:
            raise BadInput(
                f"got {group.per_node}",
                field=f"groups[{i}].per_node",
                expected=f"at most {MAX_ROWS}",
            )
    for i, device in enumerate(hardware.devices):
        if device.count > MAX_ROWS:
            raise BadInput(
                f"got {device.count}", field=f"devices[{i}].count", expected=f"at most {MAX_ROWS}"
            )
    for i, level in enumerate(hardware.levels):
        if level.size > 10**6:
            raise BadInput(
                f"got {level.size}", field=f"levels[{i}].size", expected="at most 1000000"
            )


def add_hardware(
    session: Session,
    tenant: str,
    hardware: Hardware,
    previous_id: str | None = None,
    *,
    origin: str = "uploaded",
    room: Room | None = None,
) -> bool:
    """Stores a profile as the newest version of its name. Returns True if it is new.

    `origin`: uploaded, measured or refit. Raises a problem `quota` if it does not fit into `room`.
    """
    lock_tenant(session, tenant)
    if session.get(HardwareProfile, (tenant, hardware.id)) is not None:
        return False
    document = hardware_document(hardware)
    size = size_of(document)
    if room is not None:
        room.require(session, max_profiles=1, max_profile_bytes=size)
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.name == hardware.name)
    newest = session.scalar(select(func.max(HardwareProfile.version)).where(*mine)) or 0
    return insert_new(
        session,
        HardwareProfile,
        tenant_id=tenant,
        hardware_id=hardware.id,
        created_at=now(),
        name=hardware.name,
        document=document,
        version=newest + 1,
        previous_id=previous_id,
        size_bytes=size,
        summary=hardware_summary(hardware, builtin=False),
        origin=origin,
    )


def list_versions(
    session: Session, tenant: str, name: str, place: Place | None, limit: int
) -> list[HardwareProfile]:
    """Returns the tenant's profiles of this name, newest first."""
    query = select(HardwareProfile).where(
        HardwareProfile.tenant_id == tenant, HardwareProfile.name == name
    )
    return _page_of(session, query, place, limit)


def _page_of(
    session: Session, query: Select[Any], place: Place | None, limit: int
) -> list[HardwareProfile]:
    """Returns a page of profiles without their documents, which stay in the database."""
    columns = (HardwareProfile.created_at, HardwareProfile.hardware_id)
    query = after(query, *columns, place, limit)
    return list(session.scalars(query.options(defer(HardwareProfile.document))))


def profile_summary(row: HardwareProfile) -> dict[str, Any]:
    """Returns a profile as lists show it.

    Its document is read only if an earlier release stored the profile.
    """
    return row.summary or summary_of_document(row.document)


def base_of(
    session: Session, tenant: str, name: str, hardware_id: str | None, nodes: int | None
) -> tuple[str, str]:
    """Returns id and name of a plan's profile, which `*NODES` may have given another id.

    A profile that the tenant does not have (any more) keeps the id that the plan has.
    """
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.name == name)
    ids = session.scalars(
        select(HardwareProfile.hardware_id)
        .where(*mine)
        .order_by(HardwareProfile.created_at.desc(), HardwareProfile.hardware_id.desc())
        .limit(MAX_VERSIONS)
    ).all()
    if hardware_id in ids or (hardware_id is None and ids):
        return hardware_id or ids[0], name
    builtin = load_hardware(name) if name in list_builtin() else None
    if builtin is not None and hardware_id in (None, builtin.id):
        return builtin.id, name
    if nodes is not None:
        # One document at a time: there may be many, and large.
        for own_id in ids:
            document = session.scalar(
                select(HardwareProfile.document).where(*mine, HardwareProfile.hardware_id == own_id)
            )
            if _is_with_nodes(hardware_from_document(document), nodes, hardware_id):
                return own_id, name
        if builtin is not None and _is_with_nodes(builtin, nodes, hardware_id):
            return builtin.id, name
    return (hardware_id or "")[:71], name


def known_profile(session: Session, tenant: str, hardware_id: str, name: str) -> Hardware | None:
    """Returns the tenant's profile of this id, else the built-in one of this name."""
    row = session.get(HardwareProfile, (tenant, hardware_id))
    if row is not None:
        return hardware_from_document(row.document)
    return load_hardware(name) if name in list_builtin() else None


def uploaded_profile(session: Session, tenant: str, name: str) -> Hardware | None:
    """Returns what bounds measurements of this name: the newest profile of it that the tenant
    uploaded, else the built-in one; measured ones come from the same agents."""
    document = session.scalar(
        select(HardwareProfile.document)
        .where(HardwareProfile.tenant_id == tenant, HardwareProfile.name == name)
        .where(or_(HardwareProfile.origin.is_(None), HardwareProfile.origin == "uploaded"))
        .order_by(HardwareProfile.created_at.desc())
        .limit(1)
    )
    if document is not None:
        return hardware_from_document(document)
    return load_hardware(name) if name in list_builtin() else None


def _is_with_nodes(hardware: Hardware, nodes: int, hardware_id: str | None) -> bool:
    """Returns whether a profile with this many nodes has this id; one with groups has no such."""
    return not hardware.groups and hardware.with_nodes(nodes).id == hardware_id


def find_hardware(session: Session, tenant: str, spec: str) -> Hardware:
    """Returns a profile by built-in name or by id, either with `*NODES`.

    Raises a problem `not-found` for an id that the tenant does not have, BadInput for an unknown
    name or a node count out of range. A name is never taken for a file.
    """
    if not spec.startswith("sha256:"):
        if builtin_name(spec.partition("*")[0]) is None:
            raise unknown_hardware(spec, "the id of a profile")
        return load_hardware(spec)
    hardware_id, star, nodes = spec.partition("*")
    row = session.get(HardwareProfile, (tenant, hardware_id))
    if row is None:
        raise not_found("hardware profile", hardware_id[:80])
    hardware = hardware_from_document(row.document)
    if not star:
        return hardware
    hardware.require_no_groups("hardware")
    most = hardware.most_nodes
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) < 10 and 1 <= int(nodes) <= most):
        raise BadInput(
            f"{nodes[:20]!r} nodes", field="hardware", expected=f"ID*NODES with 1 to {most} nodes"
        )
    return hardware.with_nodes(int(nodes))


def list_hardware(
    session: Session, tenant: str, place: Place | None, limit: int
) -> list[HardwareProfile]:
    """Returns the tenant's profiles, newest first."""
    query = select(HardwareProfile).where(HardwareProfile.tenant_id == tenant)
    return _page_of(session, query, place, limit)


def delete_hardware(session: Session, tenant: str, hardware_id: str) -> None:
    """Deletes a tenant's profile; answers that used it stay."""
    mine = (HardwareProfile.tenant_id == tenant, HardwareProfile.hardware_id == hardware_id)
    gone = session.scalar(
        delete(HardwareProfile).where(*mine).returning(HardwareProfile.hardware_id)
    )
    if gone is None:
        raise not_found("hardware profile", hardware_id)
