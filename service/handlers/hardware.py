"""Hardware profiles: uploaded, listed with the built-in ones, shown, deleted."""

from __future__ import annotations

from typing import Any

from service.edge import Answer, Call
from service.handlers.graphs import paging
from service.json_body import read_object
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


def parse_hardware(call: Call) -> Hardware:
    """The profile of the body."""
    expected = "a shardwise.hardware/1 document"
    document = read_object(call.body, call.settings.max_json_depth, expected)
    for field in ("collectives", "operators"):
        rows = document.get(field)
        if isinstance(rows, list) and len(rows) > MAX_ROWS:
            raise BadInput(f"{len(rows)} rows", field=field, expected=f"at most {MAX_ROWS}")
    hardware = hardware_from_document(document)
    check_sizes(hardware)
    return hardware


def post_hardware(call: Call) -> Answer:
    """201 for a profile that is new to the tenant, 200 for one that it has."""
    hardware: Hardware = call.parsed
    new = add_hardware(call.session, call.tenant, hardware, room=call.room)
    return Answer(
        201 if new else 200,
        summary(hardware, builtin=False, created_at=None),
        headers={"Location": f"/v1/hardware/{hardware.id}"},
        stores=new,
    )


def get_hardware_list(call: Call) -> Answer:
    """A page of the tenant's profiles; the first one ends with the built-in ones."""
    place, limit = paging(call)
    rows = list_hardware(call.session, call.tenant, place, limit)
    document = page(
        rows,
        limit,
        lambda row: (row.created_at, row.hardware_id),
        row_summary,
    )
    document["builtin"] = [
        summary(load_hardware(name), builtin=True, created_at=None) for name in list_builtin()
    ]
    return Answer(document=document)


def get_hardware(call: Call, spec: str) -> Answer:
    """The `shardwise.hardware/1` document of an id or a built-in name."""
    try:
        hardware = find_hardware(call.session, call.tenant, spec)
    except BadInput as error:
        from service.problems import not_found

        raise not_found("hardware profile", spec[:80]) from error
    return Answer(document=hardware_document(hardware), headers={"ETag": f'"{hardware.id}"'})


def remove_hardware(call: Call, hardware_id: str) -> Answer:
    """204."""
    delete_hardware(call.session, call.tenant, hardware_id)
    return Answer(204)


def summary(hardware: Hardware, *, builtin: bool, created_at: float | None) -> dict[str, Any]:
    """A profile as lists show it."""
    return {**hardware_summary(hardware, builtin=builtin), "created_at": iso(created_at)}


def row_summary(row: HardwareProfile) -> dict[str, Any]:
    """A stored profile as lists show it."""
    return {**profile_summary(row), "created_at": iso(row.created_at)}
