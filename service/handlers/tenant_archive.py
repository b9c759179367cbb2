"""`GET /v1/tenants/{tenant}/export`: a tenant's archive, sent while it is read.

A process writes few of them at once, since each keeps a thread busy; the archive's line is in the
audit before its first byte is sent.
"""

from __future__ import annotations

from fastapi import Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.base.archive import tar_gz
from service.base.logs import REQUEST_ID
from service.base.problems import Problem
from service.edge.call import Call
from service.edge.context import RequestContext
from service.edge.perform import NO_SESSION, require_text
from service.edge.state import State
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
    name, at = await run_in_threadpool(_begin, context, tenant)
    if not state.exports.acquire(blocking=False):
        raise Problem(
            "rate-limited",
            "too many archives are being written",
            headers={"Retry-After": "30"},
        )
    return _Archive(state, name, at)


class _Archive(StreamingResponse):
    """The response; its slot is released however sending ends."""

    def __init__(self, state: State, tenant: str, at: float) -> None:
        super().__init__(
            tar_gz(tenant_files(state.database, tenant), at),
            media_type=MEDIA_TYPE,
            headers={
                "Content-Disposition": f'attachment; filename="{tenant}.tar.gz"',
                "Cache-Control": "no-store",
            },
        )
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._state.exports.release()


def _begin(context: RequestContext, tenant: str) -> tuple[str, float]:
    """Writes the audit. Returns the tenant's name and the database's time."""
    with context.state.database.write() as session:
        context.session = session
        name = tenant_row(context, tenant).id
        target = f"/v1/tenants/{name}/export"
        context.record(context.tenant, ACTION, target, 200)
        tell_tenant(context, name, ACTION, target)
        return name, clock(session)
