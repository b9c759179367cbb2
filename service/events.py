"""Server-sent events of a job: its document whenever it changes, and once more when it ends.

Events are called `progress` and then `done`, `failed` or `cancelled`; the data is the job's
document without its result. The stream ends after the last one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from time import monotonic

import msgspec
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from service.edge import require_text
from service.state import State, state_of
from service.store.jobs import find_job, has_ended, job_document
from service.store.tables import Job

STILL_THERE_S = 15.0
"""A comment is sent after so long without a change, so that proxies keep the stream."""


async def event_stream(request: Request, job_id: str, kind: str | None) -> Response:
    """The stream, for whoever may read the job."""
    state = state_of(request)
    principal = await state.gate.admit(request, "read")
    require_text(request)
    job = await run_in_threadpool(partial(_find, state, principal.tenant, job_id[:80], kind))
    state.watch.require_room()
    return StreamingResponse(
        _events(state, job),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(state: State, job: Job) -> AsyncIterator[bytes]:
    async with state.watch.on(job) as seen:
        last = b""
        sent_at = monotonic()
        number = 0
        while True:
            last_seen = seen()
            if last_seen is None:
                return  # deleted with its graph
            job = last_seen
            data = msgspec.json.encode(job_document(job))
            if data != last:
                number += 1
                name = job.state if has_ended(job) else "progress"
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), data)
                last, sent_at = data, monotonic()
            elif monotonic() - sent_at > STILL_THERE_S:
                yield b": still there\n\n"
                sent_at = monotonic()
            if has_ended(job) or state.stopping.is_set():
                return
            await state.watch.changed(1.0)


def _find(state: State, tenant: str, job_id: str, kind: str | None) -> Job:
    with state.database.read() as session:
        return find_job(session, tenant, job_id, kind)
