"""Hardware profiles: uploaded, listed with the built-in ones, shown, deleted."""

from __future__ import annotations

from typing import Any

from service.base.json_body import read_object
from service.edge.context import RequestContext, Result
from service.handlers.graphs import paging
from service.store.hardware import (
    MAX_ROWS,
    add_hardware,
    check_sizes,
    delete_hardware,
    find_hardware,
    list_hardware,
    profile_summary,
)
from service.store.ids import iso
from service.store.pages import page
from service.store.summaries import hardware_summary
from service.store.tables import HardwareProfile
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
)


def parse_hardware(context: RequestContext) -> Hardware:
    """Returns the profile of the body."""
    expected = "a shardwise.hardware/1 document"
    document = read_object(context.body, context.settings.max_json_depth, expected)
    for field in ("collectives", "operators"):
        rows = document.get(field)
        if isinstance(rows, list) and len(rows) > MAX_ROWS:
            raise BadInput(f"{len(rows)} rows", field=field, expected=f"at most {MAX_ROWS}")
    hardware = hardware_from_document(document)
    check_sizes(hardware)
    return hardware


def post_hardware(context: RequestContext) -> Result:
    """Returns 201 for a profile that is new to the tenant, 200 for one that it has."""
    hardware: Hardware = context.parsed
    new = add_hardware(context.session, context.tenant, hardware, room=context.room)
    return Result(
        201 if new else 200,
        summary(hardware, builtin=False, created_at=None),
        headers={"Location": f"/v1/hardware/{hardware.id}"},
        stores=new,
    )


def get_hardware_list(context: RequestContext) -> Result:
    """Returns a page of the tenant's profiles; the first one ends with the built-in ones."""
    place, limit = paging(context)
    rows = list_hardware(context.session, context.tenant, place, limit)
    document = page(
        rows,
        limit,
        lambda row: (row.created_at, row.hardware_id),
        row_summary,
    )
    document["builtin"] = [
        summary(load_hardware(name), builtin=True, created_at=None) for name in list_builtin()
    ]
    return Result(document=document)


def get_hardware(context: RequestContext, spec: str) -> Result:
    """Returns the `shardwise.hardware/1` document of an id or a built-in name."""
    try:
        hardware = find_hardware(context.session, context.tenant, spec)
    except BadInput as error:
        from service.base.problems import not_found

        raise not_found("hardware profile", spec[:80]) from error
    return Result(document=hardware_document(hardware), headers={"ETag": f'"{hardware.id}"'})


def remove_hardware(context: RequestContext, hardware_id: str) -> Result:
    """Returns 204; the profile is deleted."""
    delete_hardware(context.session, context.tenant, hardware_id)
    return Result(204)


def summary(hardware: Hardware, *, builtin: bool, created_at: float | None) -> dict[str, Any]:
    """Returns a profile as lists show it."""
    return {**hardware_summary(hardware, builtin=builtin), "created_at": iso(created_at)}


def row_summary(row: HardwareProfile) -> dict[str, Any]:
    """Returns a stored profile as lists show it."""
    return {**profile_summary(row), "created_at": iso(row.created_at)}
