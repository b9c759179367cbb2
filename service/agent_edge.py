"""The edge of agents' own calls: enrolment by token, then each agent by the key bound to it.

Heartbeats and reports are many, and are no line of the audit each; enrolments and claims are. Of
enrolments that are refused, the first of an hour for each token is.
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

from service.body import read_body, read_plain_body
from service.edge import (
    NO_SESSION,
    Answer,
    Call,
    Handler,
    afterwards,
    idempotency_key,
    require_text,
)
from service.handlers.agents import claim_assignment, place
from service.inventory import check_inventory
from service.json_body import convert, read_json
from service.logs import REQUEST_ID
from service.problems import Problem, not_found
from service.report_shapes import EnrolRequest
from service.settings import Settings
from service.state import State, state_of
from service.store.enrolment import Unenrolled, enrol, looks_like_token, refused_token
from service.store.keys import Principal
from service.store.records import record, record_refusal
from shardwise.errors import BadInput

ENROL_BYTES = 2**20
UNKNOWN_BYTES = 2**16
"""An enrolment's body whose token is in it alone, as agents of earlier releases send it."""

UNKNOWN_S = 10.0
"""Such a body is all there within this time."""

CHALLENGE = {"WWW-Authenticate": "Bearer"}
SLICE_S = 1.0
"""A waiting call looks so often whether the service is to stop."""


async def enrol_agent(request: Request) -> Response:
    """`POST /v1/agents`: no key, the token is the credential."""
    state = state_of(request)
    require_text(request)
    await state.gate.admit_enrolment(request)
    once = idempotency_key(request)
    body = await _enrolment_body(request, state, once)
    answer = await state.pools.writes.run("", _enrol, state, body, once, REQUEST_ID.get())
    return answer.response()


async def _enrolment_body(request: Request, state: State, once: str | None) -> bytes:
    """The body of whoever has shown a token; of others, whose token is in it, a small one."""
    token = _shown_token(request)
    if token is None:
        return await read_plain_body(request, UNKNOWN_BYTES, UNKNOWN_S)
    repeated = once is not None
    await state.pools.writes.run("", _require_token, state, token, repeated, REQUEST_ID.get())
    return await read_body(request, state.settings, ENROL_BYTES)


def _shown_token(request: Request) -> str | None:
    """The token of `Authorization: Bearer TOKEN`; a key there is none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    token = text.strip()
    return token if scheme.lower() == "bearer" and looks_like_token(token) else None


def _require_token(state: State, token: str, repeated: bool, request_id: str) -> None:
    """Refuses a token that cannot enrol before a byte of the body is read."""
    with state.database.read() as session:
        found = refused_token(session, token, repeated=repeated)
    if found is None:
        return
    with state.database.write() as session:
        _record_refusal(session, found, request_id)
    state.metrics.agents.enrolments_refused.labels(found.why).inc()
    raise _refused()


def _record_refusal(session: Session, found: Unenrolled, request_id: str) -> None:
    record_refusal(
        session,
        tenant=found.tenant,
        request_id=request_id,
        action="agents.enrol",
        target=f"{found.why} token {found.token_name!r}",
        about=found.token_hash,
    )


def _enrol(state: State, body: bytes, once: str | None, request_id: str) -> Answer:
    """The answer; a problem when the token is refused, which the audit tells too."""
    ask = _enrolment(body, state.settings)
    if once is not None:
        once = hashlib.sha256(f"{once}\n".encode() + body).hexdigest()
    with state.database.write() as session:
        found = enrol(
            session,
            ask.token,
            once,
            name=ask.name,
            inventory=ask.inventory,
            lease_s=state.settings.agent_lease_s,
            max_agents=state.settings.max_agents,
        )
        if isinstance(found, Unenrolled):
            _record_refusal(session, found, request_id)
        else:
            record(
                session,
                tenant=found.tenant,
                key_id=None,
                request_id=request_id,
                action="agents.enrol",
                target=f"/v1/agents/{found.agent_id}",
                status=201,
            )
    if isinstance(found, Unenrolled):
        state.metrics.agents.enrolments_refused.labels(found.why).inc()
        raise _refused()
    document = {
        "schema": "shardwise.enrolled/1",
        "id": found.agent_id,
        "key": found.key,
        "lease_s": state.settings.agent_lease_s,
        "heartbeat_s": state.settings.agent_heartbeat_s,
    }
    location = {"Location": f"/v1/agents/{found.agent_id}"}
    answer = Answer(201, document, headers=location, after=[place])
    afterwards(state, answer)
    return answer


def _enrolment(body: bytes, settings: Settings) -> EnrolRequest:
    """What is asked; without a token it is refused as with a wrong one."""
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
    request: Request, agent_id: str, handler: Handler, parse: Callable[[Call], Any]
) -> Response:
    """A call of an agent about itself: stored, but no line of the audit."""
    principal = await _admit(request, agent_id)
    state = state_of(request)
    body = await read_body(request, state.settings, state.settings.max_report_bytes)

    def run() -> Answer:
        call = Call(state, NO_SESSION, principal, REQUEST_ID.get(), body=body)
        call.parsed = parse(call)
        return _commit(call, handler)

    return (await state.pools.writes.run(principal.tenant, run)).response()


async def assignment(request: Request, agent_id: str) -> Response:
    """`GET …/assignments?wait_s=`: the agent's next assignment, waited for."""
    principal = await _admit(request, agent_id)
    state = state_of(request)
    wait_s = _wait_s(request, state.settings.max_poll_s)
    call = Call(state, NO_SESSION, principal, REQUEST_ID.get())
    until = monotonic() + wait_s
    async with state.gangs.waiting(agent_id) as woken:
        due = await state.pools.reads.run(call.tenant, state.gangs.has_work, agent_id)
        while True:
            if due:
                answer = await state.pools.writes.run(call.tenant, _commit, call, claim_assignment)
                if answer.document["assignment"] is not None:
                    return answer.response()
            woken.clear()
            if not await _woken(woken, until, state):
                return Response(
                    msgspec.json.encode({"assignment": None}), media_type="application/json"
                )
            if await request.is_disconnected():
                return Response(status_code=204)
            due = True


async def _woken(woken: asyncio.Event, until: float, state: State) -> bool:
    """Wait for the event; False when the time is up or the service stops."""
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
        raise BadInput(f"{text[:40]!r}", field="wait_s", expected="seconds from 0")
    return min(wait_s, most_s)


def _commit(call: Call, handler: Handler) -> Answer:
    with call.state.database.write() as session:
        call.session = session
        answer = handler(call)
    afterwards(call.state, answer)
    return answer


async def _admit(request: Request, agent_id: str) -> Principal:
    """The agent itself: a key that is bound to this id. To every other key there is no such."""
    principal = await state_of(request).gate.admit(request, "agent")
    require_text(request)
    if principal.key_id is None:
        raise Problem("unauthenticated", "an agent's own key is needed", headers=CHALLENGE)
    if principal.agent_id != agent_id:
        raise not_found("agent", agent_id[:80])
    return principal
