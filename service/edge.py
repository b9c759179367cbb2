"""The request edge: admits, reads the body, calls one handler, commits, then rings.

Nothing but this edge commits. A handler gets a `Call` and gives an `Answer`; what it stored, the
audit's line and the Idempotency-Key are one transaction, and workers are told when it stands.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy.orm import Session
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from service.base.fair_slots import unless_gone
from service.body import read_body
from service.conditional import matches
from service.idempotency import kept, repeated
from service.ingest_process import Reading
from service.logs import REQUEST_ID
from service.pools import LARGE_BYTES, expected_bytes, gone_of
from service.problems import Problem
from service.redact import redacted
from service.settings import Settings
from service.state import State, state_of
from service.store.database import StoreFull, StoreUnavailable
from service.store.keys import Principal, require_open
from service.store.quotas import Room, accept_bytes
from service.store.records import record, remember, reserve
from service.traces import current_parent

log = logging.getLogger(__name__)
IDEMPOTENCY_HEADER = "idempotency-key"
FREEING = (".delete", ".cancel")
"""Ends of the actions that free space, or must come before one that does."""

_READABLE = re.compile(r"[!-~]{1,255}")


@dataclass
class Call:
    """What a handler is called with."""

    state: State
    session: Session
    principal: Principal
    request_id: str
    body: bytes = b""
    content_type: str = ""
    query: QueryParams = field(default_factory=QueryParams)
    trace: str | None = None
    parsed: Any = None
    idempotency_key: str | None = None
    reading: Reading = field(default_factory=Reading)

    @property
    def tenant(self) -> str:
        """Whose request this is."""
        return self.principal.tenant

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.state.settings

    @property
    def room(self) -> Room:
        """What the tenant may store."""
        return Room(self.tenant, self.settings, self.principal.limits)

    def record(self, tenant: str, action: str, target: str, status: int) -> None:
        """Adds a line to a tenant's audit: who asks, what was done to what, and how it ended."""
        record(
            self.session,
            tenant=tenant,
            key_id=self.principal.key_id,
            request_id=self.request_id,
            action=action,
            target=target,
            status=status,
            actor=self.principal.actor,
        )

    def limit(self, name: str) -> Any:
        """A setting, or the tenant's own value of it."""
        return self.principal.limits.get(name, getattr(self.settings, name))


@dataclass
class Answer:
    """What a handler gives.

    `ring` are the jobs that workers are to be told of; `after` is done when the answer's
    transaction stands, off the event loop. `stores`: the request's body counts to the bytes that
    the tenant had stored today. `recall` names what an answer is of (job or launch, and its id),
    and `repeatable` says that the handler may run again: how a large answer is given again for
    its Idempotency-Key (service/idempotency.py).
    """

    status: int = 200
    document: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ring: list[str] = field(default_factory=list)
    media_type: str = "application/json"
    after: list[Callable[[State], None]] = field(default_factory=list)
    stores: bool = True
    recall: tuple[str, str] | None = None
    repeatable: bool = False

    def sent(self) -> bytes:
        """The body's bytes."""
        if self.content is not None:
            return self.content
        return b"" if self.status == 204 else msgspec.json.encode(self.document)

    def response(self) -> Response:
        """As starlette sends it."""
        content = self.sent()
        # No lines at all are JSON lines too.
        media_type = None if self.status == 204 else self.media_type
        return Response(content, self.status, self.headers, media_type)


Handler = Callable[[Call], Answer]


async def look(
    request: Request,
    handler: Handler,
    scope: str = "read",
    before: Callable[[State], None] | None = None,
) -> Response:
    """A request that only reads; `before` is done first, outside of any session."""
    state = state_of(request)
    principal = await state.gate.admit(request, scope)
    require_text(request)
    request_id = REQUEST_ID.get()

    def run() -> Answer:
        if before is not None:
            before(state)
        with state.database.read() as session:
            call = Call(state, session, principal, request_id, query=request.query_params)
            answer = handler(call)
        answer.content = answer.sent()
        return answer

    answer = await state.pools.reads.run_unless(gone_of(request), principal.tenant, run)
    etag = answer.headers.get("ETag")
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=answer.headers)
    return answer.response()


async def change(
    request: Request,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[Call], Any] | None = None,
    *,
    secret: bool = False,
    upload: bool = False,
) -> Response:
    """A request that stores, starts, cancels or deletes something.

    `parse` runs before the transaction, on the body alone; the handler finds what it gave in
    `call.parsed`. A `secret` answer is not kept for a repeat of its Idempotency-Key: the handler
    sees to that. An `upload` is admitted as one before its body is read, and parsed among uploads.
    """
    async with _received(request, scope, parse, upload=upload) as call:
        return (await _change(request, call, handler, action, secret=secret)).response()


async def change_unless(
    request: Request,
    known: Handler,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[Call], Any] | None = None,
) -> Response:
    """As `change`, unless `known`, which only reads, can answer with 200."""
    async with _received(request, scope, parse) as call:
        answer = await _look(request, call, known)
        if answer.status != 200:
            answer = await _change(request, call, handler, action)
        return answer.response()


async def change_within(
    request: Request,
    known: Handler,
    handler: Handler,
    late: Handler,
    within_s: float,
    action: str,
    parse: Callable[[Call], Any],
    scope: str = "submit",
) -> Response:
    """As `change_unless` for a caller that cannot ask again: waits for `known` to have it.

    After `within_s` it answers what `late` gives. A repeat asks the same, so that an
    Idempotency-Key has nothing to do here.
    """
    async with _received(request, scope, parse) as call:
        call.idempotency_key = None
        answer = await _look(request, call, known)
        if answer.status != 200:
            await _change(request, call, handler, action)
            until = monotonic() + within_s
            while answer.status != 200:
                if monotonic() > until or call.state.stopping.is_set():
                    answer = late(call)
                    break
                await asyncio.sleep(call.settings.watch_s)
                answer = await _look(request, call, known)
        return answer.response()


@asynccontextmanager
async def _received(
    request: Request,
    scope: str,
    parse: Callable[[Call], Any] | None,
    *,
    upload: bool = False,
) -> AsyncIterator[Call]:
    """Admitted, with the body read and parsed; without a session yet.

    What the body takes of the tenant's share is held until the block ends.
    """
    state = state_of(request)
    principal = await state.gate.admit(request, scope)
    require_text(request)
    most = expected_bytes(request, state.settings.max_body_bytes, state.settings.max_gzip_ratio)
    with ExitStack() as held:
        if upload:
            held.enter_context(state.pools.uploads.one(principal.tenant))
        resize = held.enter_context(state.pools.bodies.take(principal.tenant, most))
        body = await read_body(request, state.settings)
        resize(len(body))
        call = Call(
            state,
            session=NO_SESSION,
            principal=principal,
            request_id=REQUEST_ID.get(),
            body=body,
            content_type=request.headers.get("content-type", "").partition(";")[0].strip().lower(),
            query=request.query_params,
            trace=current_parent(),
            idempotency_key=idempotency_key(request),
        )
        if parse is not None:
            await _parse(request, call, parse, upload=upload)
        yield call


async def _parse(
    request: Request, call: Call, parse: Callable[[Call], Any], *, upload: bool
) -> None:
    """Parse beside the event loop; what it costs ends with the client's going."""
    gone, pools = gone_of(request), call.state.pools
    if not upload and len(call.body) <= LARGE_BYTES:
        call.parsed = await pools.reads.run_unless(gone, call.tenant, parse, call)
        return
    await pools.ingest.slots.take(call.tenant, gone)
    parsing = asyncio.ensure_future(pools.ingest.run_taken(call.tenant, parse, call))
    try:
        await unless_gone(parsing, gone)
        call.parsed = parsing.result()
    finally:
        call.reading.stop()


def idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key of a POST; a problem when it is not readable."""
    key = request.headers.get(IDEMPOTENCY_HEADER) if request.method == "POST" else None
    if key is not None and not _READABLE.fullmatch(key):
        raise Problem(
            "invalid",
            "the Idempotency-Key is not readable",
            field="Idempotency-Key",
            expected="1 to 255 visible ASCII characters",
        )
    return key


def require_text(request: Request) -> None:
    """A problem for the character 0 in path or query: PostgreSQL's text cannot hold it."""
    if "\0" in request.scope["path"]:
        raise Problem("not-found", "a path holds no character 0")
    if b"%00" in request.scope["query_string"] or b"\0" in request.scope["query_string"]:
        raise Problem("invalid", "a query holds no character 0")


NO_SESSION = Session()
"""Stands in a call until its session is opened; bound to no database, it can do nothing."""


async def _look(request: Request, call: Call, known: Handler) -> Answer:
    pool = call.state.pools.reads
    return await pool.run_unless(gone_of(request), call.tenant, _read, call, known)


def _read(call: Call, handler: Handler) -> Answer:
    with call.state.database.read() as session:
        call.session = session
        return handler(call)


async def _change(
    request: Request, call: Call, handler: Handler, action: str, *, secret: bool = False
) -> Answer:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    pools, gone = call.state.pools, gone_of(request)
    answer = await pools.writes.run_unless(
        gone, call.tenant, _commit, call, handler, action, target, secret
    )
    if answer.ring:
        await pools.rings.run(call.tenant, ring, call.state, answer.ring)
    if answer.after:
        await pools.writes.run(call.tenant, afterwards, call.state, answer)
    return answer


def _commit(call: Call, handler: Handler, action: str, target: str, secret: bool) -> Answer:
    """The answer once it stands. What frees space is helped over a full disk."""
    try:
        return _store(call, handler, action, target, secret)
    except StoreFull:
        if not action.endswith(FREEING):
            raise
    return _free(call, handler, action, target)


def _free(call: Call, handler: Handler, action: str, target: str) -> Answer:
    """As `_commit` on a full disk: on the ballast, and without audit if even that does not do.

    The line that the audit lacks is in the log.
    """
    database = call.state.database
    try:
        if database.ballast is not None and database.ballast.give_up():
            with suppress(StoreFull):
                return _store(call, handler, action, target, secret=False)
        answer = _store(call, handler, action, target, secret=False, audited=False)
        log.warning(
            "not in the audit, whose disk is full: %s of %s",
            action,
            redacted(target)[:500],
            extra={"tenant": call.tenant, "key": call.principal.key_id, "status": answer.status},
        )
        return answer
    finally:
        database.tidy()


def _store(
    call: Call,
    handler: Handler,
    action: str,
    target: str,
    secret: bool,
    audited: bool = True,
) -> Answer:
    """Handler, audit and Idempotency-Key in one transaction."""
    key = None if secret else call.idempotency_key
    with call.state.database.write() as session:
        call.session = session
        require_open(session, call.principal)
        if key is not None:
            digest = hashlib.sha256(f"{action}\n{target}\n".encode() + call.body).hexdigest()
            before = reserve(session, call.tenant, key, digest)
            if before is not None:
                if before.request_hash != digest:
                    raise Problem(
                        "idempotency-key-reused",
                        "this Idempotency-Key was used for another request",
                        field="Idempotency-Key",
                    )
                return repeated(call, before, handler)
        answer = handler(call)
        if key is not None:
            content, reference = kept(answer)
            remember(
                session, call.tenant, key, answer.status, dict(answer.headers), content, reference
            )
        if audited:
            where = answer.headers.get("Location", target)
            call.record(call.tenant, action, where, answer.status)
        if answer.stores and call.body:
            accept_bytes(session, call.room, len(call.body))
        return answer


def afterwards(state: State, answer: Answer) -> None:
    """Do what is to be done once the answer stands; it stands even if the database is away now.

    What is left undone the sweeper does.
    """
    for act in answer.after:
        try:
            act(state)
        except StoreUnavailable as error:
            log.warning("left to the sweeper: %s", error)


def ring(state: State, job_ids: list[str]) -> None:
    """Tell the workers; counted either way."""
    rung = state.doorbell.ring(job_ids)
    state.metrics.rings.labels("sent" if rung else "failed").inc(len(job_ids))
