"""`GET /v1/curves`: schedulers call it all the time, so a known answer takes a short path.

First memory, by tenant and query (service/edge/curve_key.py); then the store; only then a job.
"""

from __future__ import annotations

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.conditional import matches
from service.base.logs import REQUEST_ID
from service.edge.context import RequestContext
from service.edge.curve_forms import rendered, wanted
from service.edge.http import call_of, caller_of, write
from service.edge.metrics import ANSWERED
from service.edge.perform import require_text
from service.edge.state import State, state_of
from service.handlers.graphs import learn_names
from service.handlers.jobs import known_curve, start_curve, whole_from_query
from service.store.curve_answers import is_whole
from service.store.keys import Principal
from service.store.results import Stored
from shardwise.step_sizes import NAMES as SIZES
from shardwise.step_sizes import StepSizes, sized

PATH = "/v1/curves"
CACHE_CONTROL = "private, no-cache"
"""A cache may keep the answer if it revalidates it by its ETag."""

AWAY_S = 600.0
"""While the database is away, known answers are served for at most this time."""


class KnownCurves:
    """Answers a known curve before routing, which would double the cost; else passes on.

    It has no state of its own: key, rate, cache and bytes are those of the route.
    """

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET":
            response = await self._known(Request(scope))
            if response is not None:
                scope[ANSWERED] = PATH
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _known(self, request: Request) -> Response | None:
        late_s = AWAY_S if self._state.database.is_away else 0.0
        caller = caller_of(request)
        principal = self._state.gate.remembered(caller, late_s=late_s)
        if principal is None or not principal.may("read"):
            return None
        digest = self._state.curve_keys.of(request.scope["query_string"])
        if digest is None:
            return None
        stored = self._state.answers.get((principal.tenant, digest), late_s=late_s)
        if stored is None or not await self._state.gate.spends(principal, caller):
            return None
        self._state.pools.times.note(principal.lane)
        self._state.metrics.answers.labels("curve", "memory").inc()
        return known(request, stored)


async def get_curve(request: Request) -> Response:
    """The shortest iteration time for every GPU count: 200 when known, else 202."""
    state, call = state_of(request), call_of(request)
    principal = await state.gate.admit(call.caller, "read")
    require_text(call)
    want = wanted(request.query_params)
    digest = state.curve_keys.of(request.scope["query_string"])
    stored = None if digest is None else state.answers.get((principal.tenant, digest))
    if stored is not None:
        state.metrics.answers.labels("curve", "memory").inc()
        return known(request, stored)
    reads, gone = state.pools.reads, call.gone
    stored = await reads.run_unless(gone, principal.lane, _read, state, principal, request)
    if stored is None:
        result = await write(request, start_curve, "curves.create", parse=learn_of_query)
        if result.status_code != 200:
            return result
        stored = await reads.run_unless(gone, principal.lane, _read, state, principal, request)
        if stored is None:
            return result
    # One with counts that were left out goes on later.
    final = is_whole(stored.content)
    stored = rendered(stored, want)
    if digest is not None and final:
        state.answers.put((principal.tenant, digest), stored)
    state.metrics.answers.labels("curve", "store").inc()
    return known(request, stored)


def learn_of_query(context: RequestContext) -> None:
    """As `learn_names`, for a query."""
    query = context.query
    sizes = StepSizes(**{n: whole_from_query(query[n], n) for n in SIZES if n in query})
    learn_names(context, sized(query.get("graph", ""), sizes), dict(query))


def known(request: Request, stored: Stored) -> Response:
    """Returns 304 if the client has the curve, else the stored bytes."""
    headers = {"ETag": stored.etag, "Cache-Control": CACHE_CONTROL, "Vary": "Authorization"}
    if matches(request.headers.get("if-none-match"), stored.etag):
        return Response(status_code=304, headers=headers)
    return Response(stored.content, headers=headers, media_type=stored.media_type)


def _read(state: State, principal: Principal, request: Request) -> Stored | None:
    with state.database.read() as session:
        context = RequestContext(
            state, session, principal, REQUEST_ID.get(), query=request.query_params
        )
        return known_curve(context)
