"""`GET /v1/tenants/{tenant}/export`: a tenant's archive, sent while it is read.

Each piece is made in a thread of the caller's share, so that a slow reader costs a place and no
thread; the archive's line is in the audit before its first byte is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

from fastapi import Response

from service.base.archive import tar_gz
from service.base.logs import REQUEST_ID
from service.edge.call import Call
from service.edge.context import RequestContext
from service.edge.perform import NO_SESSION, require_text
from service.edge.state import State
from service.edge.streamed import Streamed
from service.handlers.tenant_access import tell_tenant, tenant_row
from service.store.database import clock
from service.store.tenant_export import tenant_files

MEDIA_TYPE = "application/gzip"
ACTION = "tenants.export"


async def export_tenant(state: State, call: Call, tenant: str) -> Response:
    """Returns the archive, for the tenant's own administrator and for operators."""
    principal = await state.gate.admit(call.caller, "admin")
    require_text(call)
    context = RequestContext(state, NO_SESSION, principal, REQUEST_ID.get())
    with ExitStack() as held:
        held.enter_context(state.pools.archives.one(principal.lane))
        name, at = await state.pools.writes.run(principal.lane, _begin, context, tenant)
        pieces = tar_gz(tenant_files(state.database, name), at)
        return Streamed(
            held.pop_all(),
            _made(state, principal.lane, pieces),
            media_type=MEDIA_TYPE,
            headers={
                "Content-Disposition": f'attachment; filename="{name}.tar.gz"',
                "Cache-Control": "no-store",
            },
        )


async def _made(state: State, lane: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the pieces, each made in a thread of the lane's share."""
    while (piece := await state.pools.packing.run(lane, next, pieces, None)) is not None:
        yield piece


def _begin(context: RequestContext, tenant: str) -> tuple[str, float]:
    """Writes the audit. Returns the tenant's name and the database's time."""
    with context.state.database.write() as session:
        context.session = session
        name = tenant_row(context, tenant).id
        target = f"/v1/tenants/{name}/export"
        context.record(context.tenant, ACTION, target, 200)
        tell_tenant(context, name, ACTION, target)
        return name, clock(session)
