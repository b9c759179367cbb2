"""Accuracy of predictions, and profiles refitted from measurements."""

from __future__ import annotations

from typing import Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import not_found
from service.edge.context import RequestContext, Result
from service.handlers.graphs import paging
from service.handlers.hardware import row_summary, summary
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
from shardwise.validation import convert

MOST_RUNS = 1000
"""The newest runs that a profile is fitted from."""

MAX_LAUNCHES = 1000


class RefitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/hardware/{id}/refits`; with an empty body all runs are used."""

    launches: list[str] | None = None


def get_accuracy(context: RequestContext) -> Result:
    """Returns the errors by model and hardware; `graph` and `hardware` (ids) filter."""
    hardware = context.query.get("hardware")
    if hardware in list_builtin():
        hardware = load_hardware(str(hardware)).id
    return Result(
        document=accuracy(context.session, context.tenant, context.query.get("graph"), hardware)
    )


def parse_refit(context: RequestContext) -> RefitRequest:
    """Returns the body, which may be empty."""
    value = read_object(context.body or b"{}", context.settings.max_json_depth)
    ask = convert(value, RefitRequest)
    if ask.launches is not None and not 1 <= len(ask.launches) <= MAX_LAUNCHES:
        raise BadInput(
            f"got {len(ask.launches)}", field="launches", expected=f"1 to {MAX_LAUNCHES}"
        )
    return ask


def post_refit(context: RequestContext, hardware_id: str) -> Result:
    """Returns 201 with the new version; 200 if the fit equals a stored profile."""
    ask: RefitRequest = context.parsed
    before = _profile(context, hardware_id)
    runs = measurements_for(context.session, context.tenant, before.id, ask.launches, MOST_RUNS)
    fitted = refit(hardware_document(before), [run.document for run in runs])
    after = hardware_from_document(fitted)
    new = add_hardware(
        context.session,
        context.tenant,
        after,
        previous_id=before.id,
        origin="refit",
        room=context.room,
    )
    row = context.session.get_one(HardwareProfile, (context.tenant, after.id))
    return Result(
        201 if new else 200,
        {**_version(row), "runs": len(runs)},
        headers={"Location": f"/v1/hardware/{after.id}"},
    )


def get_versions(context: RequestContext, hardware_id: str) -> Result:
    """Returns a page of the tenant's profiles of the same name, newest first."""
    place, limit = paging(context)
    name = _profile(context, hardware_id).name
    rows = list_versions(context.session, context.tenant, name, place, limit)
    document = page(rows, limit, lambda row: (row.created_at, row.hardware_id), _version)
    if name in list_builtin():
        document["builtin"] = [summary(load_hardware(name), builtin=True, created_at=None)]
    return Result(document=document)


def _profile(context: RequestContext, spec: str) -> Hardware:
    """Returns a profile by id or built-in name, as it is stored: without `*NODES`."""
    try:
        return find_hardware(context.session, context.tenant, spec.partition("*")[0])
    except BadInput as error:
        raise not_found("hardware profile", spec[:80]) from error


def _version(row: HardwareProfile) -> dict[str, Any]:
    return {
        **row_summary(row),
        "version": row.version,
        "previous_id": row.previous_id,
    }
