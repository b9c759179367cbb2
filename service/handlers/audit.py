"""The audit over HTTP: a page of it, or JSON lines."""

from __future__ import annotations

import msgspec

from service.base.durations import moment_of
from service.edge.context import RequestContext, Result
from service.handlers.graphs import paging
from service.handlers.tenant_access import tenant_of
from service.store.audit import AuditFilter, audit_document, list_audit
from service.store.pages import page, read_cursor, write_cursor
from shardwise.errors import BadInput

LINES = "application/jsonl"
FORMATS = ("json", "jsonl")
MOST_LINES = 5000
USUAL_LINES = 1000
NEXT_HEADER = "Shardwise-Next"
MOST_TEXT = 100


def get_audit(context: RequestContext, lines: bool = False) -> Result:
    """Returns a page of a tenant's audit.

    With `lines` as JSON lines, and the next cursor in a header.
    """
    tenant = tenant_of(context, context.query.get("tenant"))
    wanted = _wanted(context)
    if not lines:
        place, limit = paging(context)
        rows = list_audit(context.session, tenant, wanted, place, limit)
        return Result(document=page(rows, limit, lambda row: (row.at, row.id), audit_document))
    limit = _line_limit(context)
    place = read_cursor(context.query.get("cursor"))
    rows = list_audit(context.session, tenant, wanted, place, limit)
    shown = rows[:limit]
    content = b"".join(msgspec.json.encode(audit_document(row)) + b"\n" for row in shown)
    headers = {"Cache-Control": "no-store"}
    if len(rows) > limit:
        headers[NEXT_HEADER] = write_cursor((shown[-1].at, shown[-1].id))
    return Result(content=content, headers=headers, media_type=LINES)


def _wanted(context: RequestContext) -> AuditFilter:
    moments = {}
    for name in ("since", "until"):
        text = context.query.get(name)
        moments[name] = None if text is None else moment_of(text, name)
    return AuditFilter(_text(context, "action"), _text(context, "key"), **moments)


def _text(context: RequestContext, name: str) -> str | None:
    text = context.query.get(name)
    return None if text is None else text[:MOST_TEXT]


def _line_limit(context: RequestContext) -> int:
    text = context.query.get("limit", str(USUAL_LINES))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_LINES):
        raise BadInput(f"got {text[:40]!r}", field="limit", expected=f"1 to {MOST_LINES}")
    return int(text)
