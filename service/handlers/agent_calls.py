"""The edge of agents' own calls: enrolment by token, then each agent by the key bound to it.

Heartbeats and reports are too many to be lines of the audit; enrolments and claims are lines. Of
refused enrolments, the first of an hour for each token is one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec
from fastapi import Request, Response
from sqlalchemy.orm import Session

from service.base.json_body import read_json
from service.base.logs import REQUEST_ID
from service.base.pools import expected_bytes
from service.base.problems import Problem, not_found
from service.base.settings import Settings
from service.cluster.inventory import check_inventory
from service.cluster.reports import EnrolRequest
from service.edge.body import read_body, read_plain_body
from service.edge.context import Handler, RequestContext, Result
from service.edge.http import call_of, lane_of, response_of
from service.edge.perform import NO_SESSION, afterwards, idempotency_key, require_text
from service.edge.state import State, state_of
from service.handlers.agents import claim_assignment, place
from service.store.enrolment import Unenrolled, enrol, looks_like_token, refused_token
from service.store.keys import Principal
from service.store.records import record, record_refusal
from shardwise.errors import BadInput
from shardwise.validation import convert

ENROL_BYTES = 2**20
UNKNOWN_BYTES = 2**16
"""Limit of an enrolment's body if only the body has the token, as earlier releases send it."""

UNKNOWN_S = 10.0
"""Time within which such a body must arrive completely."""

CHALLENGE = {"WWW-Authenticate": "Bearer"}
SLICE_S = 1.0
"""Interval at which a waiting call checks whether the service is to stop."""


async def enrol_agent(request: Request) -> Response:
    """`POST /v1/agents`: no key, the token is the credential."""
    state, call = state_of(request), call_of(request)
    require_text(call)
    await state.gate.admit_enrolment(call.caller)
    once = idempotency_key(call)
    lane = lane_of(request)
    body = await _enrolment_body(request, state, lane, once)
    result = await state.pools.enrolments.run(lane, _enrol, state, body, once, REQUEST_ID.get())
    return response_of(result)


async def _enrolment_body(request: Request, state: State, lane: str, once: str | None) -> bytes:
    """Returns the body; a small one at most if the token is in it and not in a header."""
    token = _shown_token(request)
    if token is None:
        return await read_plain_body(request, UNKNOWN_BYTES, UNKNOWN_S)
    repeated = once is not None
    await state.pools.enrolments.run(lane, _require_token, state, token, repeated, REQUEST_ID.get())
    return await read_body(request, state, lane, ENROL_BYTES)


def _shown_token(request: Request) -> str | None:
    """Returns the token of `Authorization: Bearer TOKEN`; None for a key, which is not one."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    token = text.strip()
    return token if scheme.lower() == "bearer" and looks_like_token(token) else None


def _require_token(state: State, token: str, repeated: bool, request_id: str) -> None:
    """Refuses a token that cannot enrol before a byte of the body is read."""
    with state.database.read() as session:
        refusal = refused_token(session, token, repeated=repeated)
    if refusal is None:
        return
    with state.database.write() as session:
        _record_refusal(session, refusal, request_id)
    state.metrics.agents.enrolments_refused.labels(refusal.why).inc()
    raise _refused()


def _record_refusal(session: Session, refusal: Unenrolled, request_id: str) -> None:
    record_refusal(
        session,
        tenant=refusal.tenant,
        request_id=request_id,
        action="agents.enrol",
        target=f"{refusal.why} token {refusal.token_name!r}",
        about=refusal.token_hash,
    )


def _enrol(state: State, body: bytes, once: str | None, request_id: str) -> Result:
    """Returns the answer. Raises `Problem` for a refused token, which is audited too."""
    ask = _enrolment(body, state.settings)
    if once is not None:
        once = hashlib.sha256(f"{once}\n".encode() + body).hexdigest()
    with state.database.write() as session:
        outcome = enrol(
            session,
            ask.token,
            once,
            name=ask.name,
            inventory=ask.inventory,
            lease_s=state.settings.agent_lease_s,
            max_agents=state.settings.max_agents,
        )
        if isinstance(outcome, Unenrolled):
            _record_refusal(session, outcome, request_id)
        else:
            record(
                session,
                tenant=outcome.tenant,
                key_id=None,
                request_id=request_id,
                action="agents.enrol",
                target=f"/v1/agents/{outcome.agent_id}",
                status=201,
            )
    if isinstance(outcome, Unenrolled):
        state.metrics.agents.enrolments_refused.labels(outcome.why).inc()
        raise _refused()
    document = {
        "schema": "shardwise.enrolled/1",
        "id": outcome.agent_id,
        "key": outcome.key,
        "lease_s": state.settings.agent_lease_s,
        "heartbeat_s": state.settings.agent_heartbeat_s,
    }
    location = {"Location": f"/v1/agents/{outcome.agent_id}"}
    result = Result(201, document, headers=location, after=[place])
    afterwards(state, result)
    return result


def _enrolment(body: bytes, settings: Settings) -> EnrolRequest:
    """Returns the request. A missing token is refused in the same way as a wrong one."""
    try:
        value = read_json(body, settings.max_json_depth)
    except Problem:
        raise _refused() from None
    if not isinstance(value, dict) or not isinstance(value.get("token"), str):
        raise _refused()
    ask = convert(value, EnrolRequest)
    check_inventory(ask.inventory)
    if len(ask.name) > 200:
        raise BadInput("too long", field="name", expected="at most 200 characters")
    return ask


def _refused() -> Problem:
    return Problem(
        "enrolment-refused", "the token is unknown, used up or expired", headers=CHALLENGE
    )


async def from_agent(
    request: Request, agent_id: str, handler: Handler, parse: Callable[[RequestContext], Any]
) -> Response:
    """Performs an agent's call about itself: stored, but not a line of the audit."""
    principal = await _admit(request, agent_id)
    state = state_of(request)
    limit = state.settings.max_report_bytes
    most = expected_bytes(request, limit, state.settings.max_gzip_ratio)
    with state.pools.bodies.take(principal.lane, most) as resize:
        body = await read_body(request, state, principal.lane, limit)
        resize(len(body))

        def run() -> Result:
            context = RequestContext(state, NO_SESSION, principal, REQUEST_ID.get(), body=body)
            context.parsed = parse(context)
            return _commit(context, handler)

        return response_of(await state.pools.writes.run(principal.lane, run))


async def assignment(request: Request, agent_id: str) -> Response:
    """`GET …/assignments?wait_s=`: waits for the agent's next assignment."""
    principal = await _admit(request, agent_id)
    state = state_of(request)
    wait_s = _wait_s(request, state.settings.max_poll_s)
    context = RequestContext(state, NO_SESSION, principal, REQUEST_ID.get())
    until = monotonic() + wait_s
    async with state.gangs.waiting(agent_id, context.lane) as woken:
        due = await state.pools.reads.run(context.lane, state.gangs.has_work, agent_id)
        while True:
            if due:
                result = await state.pools.writes.run(
                    context.lane, _commit, context, claim_assignment
                )
                if result.document["assignment"] is not None:
                    return response_of(result)
            woken.clear()
            if not await _woken(woken, until, state):
                return Response(
                    msgspec.json.encode({"assignment": None}), media_type="application/json"
                )
            if await request.is_disconnected():
                return Response(status_code=204)
            due = True


async def _woken(woken: asyncio.Event, until: float, state: State) -> bool:
    """Waits for the event. Returns False when the time is up or the service stops."""
    while not woken.is_set():
        left_s = until - monotonic()
        if left_s <= 0 or state.stopping.is_set():
            return False
        try:
            await asyncio.wait_for(woken.wait(), min(left_s, SLICE_S))
        except TimeoutError:
            continue
    return True


def _wait_s(request: Request, most_s: float) -> float:
    text = request.query_params.get("wait_s", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= 1e6:
        raise BadInput(f"got {text[:40]!r}", field="wait_s", expected="seconds from 0")
    return min(wait_s, most_s)


def _commit(context: RequestContext, handler: Handler) -> Result:
    with context.state.database.write() as session:
        context.session = session
        result = handler(context)
    afterwards(context.state, result)
    return result


async def _admit(request: Request, agent_id: str) -> Principal:
    """Returns the principal of the agent's own key, which is bound to this id.

    For every other key the agent is not found.
    """
    call = call_of(request)
    principal = await state_of(request).gate.admit(call.caller, "agent")
    require_text(call)
    if principal.key_id is None:
        raise Problem("unauthenticated", "an agent's own key is needed", headers=CHALLENGE)
    if principal.agent_id != agent_id:
        raise not_found("agent", agent_id[:80])
    return principal
