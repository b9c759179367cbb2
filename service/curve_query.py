"""`GET /v1/curves`: the call that schedulers make all the time, so its known answer is short.

Memory first, by tenant and the query as it came; then the store; only then a job.
"""

from __future__ import annotations

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.conditional import matches
from service.edge import Call, change
from service.handlers.jobs import known_curve, start_curve
from service.logs import REQUEST_ID
from service.state import State, state_of
from service.store.keys import Principal
from service.store.results import Stored

CACHE_CONTROL = "private, no-cache"
"""A cache may keep the answer if it asks with its ETag whether it still stands."""


async def get_curve(request: Request) -> Response:
    """The shortest iteration time for every GPU count: 200 when known, else 202."""
    state = state_of(request)
    principal = await state.gate.admit(request, "read")
    key = (principal.tenant, request.url.query)
    stored = state.answers.get(key)
    if stored is not None:
        state.metrics.answers.labels("curve", "memory").inc()
        return known(request, stored)
    stored = await run_in_threadpool(_look, state, principal, request)
    if stored is None:
        answer = await change(request, start_curve, "curves.create")
        if answer.status_code != 200:
            return answer
        stored = await run_in_threadpool(_look, state, principal, request)
        if stored is None:
            return answer
    state.answers.put(key, stored)
    state.metrics.answers.labels("curve", "store").inc()
    return known(request, stored)


def known(request: Request, stored: Stored) -> Response:
    """304 when the client has it, else the bytes as they are stored."""
    headers = {"ETag": stored.etag, "Cache-Control": CACHE_CONTROL, "Vary": "Authorization"}
    if matches(request.headers.get("if-none-match"), stored.etag):
        return Response(status_code=304, headers=headers)
    return Response(stored.content, headers=headers, media_type="application/json")


def _look(state: State, principal: Principal, request: Request) -> Stored | None:
    with state.database.read() as session:
        call = Call(state, session, principal, REQUEST_ID.get(), query=request.query_params)
        return known_curve(call)
