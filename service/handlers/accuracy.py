"""How near predictions came, and profiles fitted anew from what was measured."""

from __future__ import annotations

from typing import Any

import msgspec

from service.edge import Answer, Call
from service.handlers.graphs import paging
from service.handlers.hardware import row_summary, summary
from service.json_body import convert, read_object
from service.problems import not_found
from service.store.hardware import add_hardware, find_hardware, list_versions
from service.store.pages import page
from service.store.runs import accuracy, measurements_for
from service.store.tables import HardwareProfile
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
)
from shardwise.measure.refit import refit

MOST_RUNS = 1000
"""The newest runs that a profile is fitted from."""

MAX_LAUNCHES = 1000


class RefitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/hardware/{id}/refits`, whose body may be empty: then from all runs."""

    launches: list[str] | None = None


def get_accuracy(call: Call) -> Answer:
    """The errors by model and hardware; `graph` and `hardware` (ids) filter."""
    hardware = call.query.get("hardware")
    if hardware in list_builtin():
        hardware = load_hardware(str(hardware)).id
    return Answer(document=accuracy(call.session, call.tenant, call.query.get("graph"), hardware))


def parse_refit(call: Call) -> RefitRequest:
    """The body, which may be empty."""
    value = read_object(call.body or b"{}", call.settings.max_json_depth)
    ask = convert(value, RefitRequest)
    if ask.launches is not None and not 1 <= len(ask.launches) <= MAX_LAUNCHES:
        raise BadInput(f"{len(ask.launches)}", field="launches", expected=f"1 to {MAX_LAUNCHES}")
    return ask


def post_refit(call: Call, hardware_id: str) -> Answer:
    """201 with the new version; 200 when the runs fit to what is stored already."""
    ask: RefitRequest = call.parsed
    before = _profile(call, hardware_id)
    runs = measurements_for(call.session, call.tenant, before.id, ask.launches, MOST_RUNS)
    fitted = refit(hardware_document(before), [run.document for run in runs])
    after = hardware_from_document(fitted)
    new = add_hardware(
        call.session, call.tenant, after, previous_id=before.id, origin="refit", room=call.room
    )
    row = call.session.get_one(HardwareProfile, (call.tenant, after.id))
    return Answer(
        201 if new else 200,
        {**_version(row), "runs": len(runs)},
        headers={"Location": f"/v1/hardware/{after.id}"},
    )


def get_versions(call: Call, hardware_id: str) -> Answer:
    """A page of the tenant's profiles of the same name, newest first."""
    place, limit = paging(call)
    name = _profile(call, hardware_id).name
    rows = list_versions(call.session, call.tenant, name, place, limit)
    document = page(rows, limit, lambda row: (row.created_at, row.hardware_id), _version)
    if name in list_builtin():
        document["builtin"] = [summary(load_hardware(name), builtin=True, created_at=None)]
    return Answer(document=document)


def _profile(call: Call, spec: str) -> Hardware:
    """A profile by id or built-in name, as it is stored: without `*NODES`."""
    try:
        return find_hardware(call.session, call.tenant, spec.partition("*")[0])
    except BadInput as error:
        raise not_found("hardware profile", spec[:80]) from error


def _version(row: HardwareProfile) -> dict[str, Any]:
    return {
        **row_summary(row),
        "version": row.version,
        "previous_id": row.previous_id,
    }
