"""Server-sent events of a job or a launch: its document whenever it changes, and at its end.

Events are called `progress` and then as the last state (`done`, `failed`, `cancelled`; of a launch
`done`, `failed`, `stopped`, `lost`); the data is the document, a job's without its result. Those of
a curve's job have the points that have become known since the event before. The stream ends after
the last one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from fastapi import Response
from sqlalchemy.orm import Session

from service.edge.call import Call
from service.edge.new_points import NewPoints
from service.edge.perform import require_text
from service.edge.state import State
from service.edge.streamed import Streamed
from service.edge.watch import Row, Watch
from service.store.jobs import find_job, has_ended, job_document
from service.store.keys import Principal
from service.store.launches import find_launch, launch_document, launch_has_ended
from service.store.tables import Job

STILL_THERE_S = 15.0
"""A comment is sent after this time without a change, so that proxies keep the stream open."""


async def job_events(state: State, call: Call, job_id: str, kind: str | None) -> Response:
    """Returns the event stream of a job. Raises `Problem` if the caller may not read it."""

    def find(session: Session, tenant: str) -> Any:
        return find_job(session, tenant, job_id[:80], kind)

    def document(job: Job) -> dict[str, Any]:
        return job_document(job, state.queue.of(job))

    new_points = NewPoints(state.curves)
    return await _stream(state, call, find, state.watch, document, has_ended, new_points.of)


async def follow_job(state: State, call: Call, job_id: str) -> AsyncGenerator[Job]:
    """Yields a job as it is now and whenever it was read again, until it has ended, was deleted,
    or the service stops. Raises `Problem` if the caller may not read it, or has no stream left."""

    def find(session: Session, tenant: str) -> Job:
        return find_job(session, tenant, job_id[:80], None)

    principal = await _admitted(state, call)
    with state.pools.streams.one(principal.lane):
        job = await _row(state, principal, find)
        async with state.watch.on(job) as seen:
            while (last := seen()) is not None:
                yield last
                if has_ended(last) or state.stopping.is_set():
                    return
                await state.watch.changed(1.0)


async def launch_events(state: State, call: Call, launch_id: str) -> Response:
    """Returns the event stream of a launch. Raises `Problem` if the caller may not read it."""

    def find(session: Session, tenant: str) -> Any:
        return find_launch(session, tenant, launch_id[:80])

    return await _stream(state, call, find, state.launches, launch_document, launch_has_ended)


async def _stream(
    state: State,
    call: Call,
    find: Callable[[Session, str], Row],
    watch: Watch[Row],
    document: Callable[[Row], dict[str, Any]],
    is_over: Callable[[Row], bool],
    more: Callable[[str, Row], Awaitable[dict[str, Any]]] | None = None,
) -> Response:
    principal = await _admitted(state, call)
    with ExitStack() as held:
        held.enter_context(state.pools.streams.one(principal.lane))
        row = await _row(state, principal, find)
        added = None if more is None else partial(more, principal.lane)
        return Streamed(
            held.pop_all(),
            _events(state, watch, row, document, is_over, added),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


async def _admitted(state: State, call: Call) -> Principal:
    principal = await state.gate.admit(call.caller, "read")
    require_text(call)
    return principal


async def _row(state: State, principal: Principal, find: Callable[[Session, str], Row]) -> Row:
    """Returns the row that a caller wants to watch."""

    def read() -> Row:
        with state.database.read() as session:
            return find(session, principal.tenant)

    return await state.pools.reads.run(principal.lane, read)


async def _events(
    state: State,
    watch: Watch[Row],
    row: Row,
    document: Callable[[Row], dict[str, Any]],
    is_over: Callable[[Row], bool],
    more: Callable[[Row], Awaitable[dict[str, Any]]] | None,
) -> AsyncIterator[bytes]:
    async with watch.on(row) as seen:
        last = b""
        sent_at = monotonic()
        number = 0
        while True:
            last_seen = seen()
            if last_seen is None:
                return  # deleted with its graph
            row = last_seen
            shown = document(row)
            data = msgspec.json.encode(shown)
            if data != last:
                number += 1
                name = row.state if is_over(row) else "progress"
                added = {} if more is None else await more(row)
                sent = msgspec.json.encode({**shown, **added}) if added else data
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), sent)
                last, sent_at = data, monotonic()
            elif monotonic() - sent_at > STILL_THERE_S:
                yield b": still there\n\n"
                sent_at = monotonic()
            if is_over(row) or state.stopping.is_set():
                return
            await watch.changed(1.0)
