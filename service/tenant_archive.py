"""`GET /v1/tenants/{tenant}/export`: a tenant's archive, sent while it is read.

A process writes few of them at once, since each keeps a thread busy; the archive's line stands in
the audit before its first byte is sent.
"""

from __future__ import annotations

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.archive import tar_gz
from service.edge import NO_SESSION, Call, require_text
from service.handlers.tenant_access import tell_tenant, tenant_row
from service.logs import REQUEST_ID
from service.problems import Problem
from service.state import State, state_of
from service.store.database import clock
from service.store.tenant_export import tenant_files

MEDIA_TYPE = "application/gzip"
ACTION = "tenants.export"


async def export_tenant(request: Request, tenant: str) -> Response:
    """The archive, for the tenant's own administrator and for operators."""
    state = state_of(request)
    principal = await state.gate.admit(request, "admin")
    require_text(request)
    call = Call(state, NO_SESSION, principal, REQUEST_ID.get())
    name, at = await run_in_threadpool(_begin, call, tenant)
    if not state.exports.acquire(blocking=False):
        raise Problem(
            "rate-limited",
            "as many archives as may be are being written",
            headers={"Retry-After": "30"},
        )
    return _Archive(state, name, at)


class _Archive(StreamingResponse):
    """The answer; its place is free again however its sending ends."""

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


def _begin(call: Call, tenant: str) -> tuple[str, float]:
    """Writes the audit. Returns the tenant's name and the database's time."""
    with call.state.database.write() as session:
        call.session = session
        name = tenant_row(call, tenant).id
        target = f"/v1/tenants/{name}/export"
        call.record(call.tenant, ACTION, target, 200)
        tell_tenant(call, name, ACTION, target)
        return name, clock(session)
