"""`/audit`: who changed what, as a table."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlencode

from fastapi import Request, Response

from service.base.problems import problem_of
from service.handlers.audit import get_audit
from service.page.inner import read_and_rights
from service.page.render import respond
from shardwise.errors import BadInput

PAGE = "100"
FILTERS = ("tenant", "action", "key", "since", "until")


async def show(request: Request) -> Response:
    """Returns the lines that match the filters, newest first."""
    chosen = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    chosen = {name: text for name, text in chosen.items() if text}
    query = {"limit": PAGE, **chosen}
    if cursor := request.query_params.get("cursor"):
        query["cursor"] = cursor
    handler, problem = partial(get_audit, lines=False), None
    try:
        page, rights = await read_and_rights(request, handler, query, scope="admin")
    except BadInput as error:
        problem = problem_of(error)
        page, rights = await read_and_rights(request, handler, {"limit": PAGE}, scope="admin")
    older = urlencode({**chosen, "cursor": page["next"]}) if page["next"] else None
    return await respond(
        request,
        "audit.html",
        status=200 if problem is None else problem.status,
        lines=page["items"],
        older=older,
        chosen=chosen,
        rights=rights,
        problem=problem,
    )
