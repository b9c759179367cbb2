"""The edge: admits a call, reads its body, calls one handler, commits, then rings.

Only this module commits. A handler takes a `RequestContext` and returns a `Result`. What it stored,
the audit's line and the Idempotency-Key are one transaction; workers are notified once it is
committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.base.fair_slots import Gone, unless_gone
from service.base.logs import REQUEST_ID
from service.base.pools import LARGE_BYTES, Pools
from service.base.problems import Problem
from service.base.redact import redacted
from service.base.store_failures import StoreFull, StoreUnavailable
from service.base.traces import current_parent
from service.edge.call import Call
from service.edge.context import Handler, RequestContext, Result
from service.edge.idempotency import repeated, replay_record
from service.edge.state import State
from service.questions.ingest_process import Reading
from service.store.keys import require_open
from service.store.quotas import accept_bytes
from service.store.records import remember, reserve

T = TypeVar("T")
log = logging.getLogger(__name__)
FREEING = (".delete", ".cancel")
"""Suffixes of the actions that free space, or must come before one that does."""

_READABLE = re.compile(r"[!-~]{1,255}")


async def read(
    state: State,
    call: Call,
    handler: Handler,
    scope: str = "read",
    before: Callable[[State], None] | None = None,
    finish: Callable[[Result], None] | None = None,
) -> Result:
    """Returns the result of a call that only reads.

    `before` runs first, outside of any session; `finish` runs last, off the event loop.
    """
    principal = await state.gate.admit(call.caller, scope)
    require_text(call)
    request_id = REQUEST_ID.get()

    def run() -> Result:
        if before is not None:
            before(state)
        with state.database.read() as session:
            context = RequestContext(state, session, principal, request_id, query=call.query)
            result = handler(context)
        if finish is not None:
            finish(result)
        return result

    return await state.pools.reads.run_unless(call.gone, principal.lane, run)


async def write(
    state: State,
    call: Call,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[RequestContext], Any] | None = None,
    *,
    secret: bool = False,
    upload: bool = False,
) -> Result:
    """Returns the result of a call that stores, starts, cancels or deletes something.

    `parse` runs before the transaction, on the body alone; the handler finds its result in
    `context.parsed`. A `secret` answer is not stored for repeats of its Idempotency-Key: the
    handler deals with those. An `upload` needs a free upload slot before its body is read, and is
    parsed among uploads.
    """
    async with _received(state, call, scope, parse, upload=upload) as context:
        return await _write(call, context, handler, action, secret=secret)


async def write_unless_cached(
    state: State,
    call: Call,
    known: Handler,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[RequestContext], Any] | None = None,
) -> Result:
    """As `write`, unless `known`, which only reads, can answer with 200."""
    async with _received(state, call, scope, parse) as context:
        result = await _read(call, context, known)
        if result.status != 200:
            result = await _write(call, context, handler, action)
        return result


async def write_and_wait(
    state: State,
    call: Call,
    known: Handler,
    handler: Handler,
    late: Handler,
    within_s: float,
    action: str,
    parse: Callable[[RequestContext], Any],
    scope: str = "submit",
) -> Result:
    """As `write_unless_cached` for a caller that cannot ask again: waits until `known` succeeds.

    After `within_s` it returns the result of `late`. A repeat asks the same question, so an
    Idempotency-Key is not needed and is ignored.
    """
    async with _received(state, call, scope, parse) as context:
        context.idempotency_key = None
        result = await _read(call, context, known)
        if result.status != 200:
            await _write(call, context, handler, action)
            until = monotonic() + within_s
            while result.status != 200:
                if monotonic() > until or context.state.stopping.is_set():
                    result = late(context)
                    break
                await asyncio.sleep(context.settings.watch_s)
                result = await _read(call, context, known)
        return result


@asynccontextmanager
async def _received(
    state: State,
    call: Call,
    scope: str,
    parse: Callable[[RequestContext], Any] | None,
    *,
    upload: bool = False,
) -> AsyncIterator[RequestContext]:
    """Yields the context of an admitted call, its body read and parsed, without a session.

    The body's part of the tenant's share is held until the block ends.
    """
    principal = await state.gate.admit(call.caller, scope)
    require_text(call)
    with ExitStack() as stack:
        if upload:
            stack.enter_context(state.pools.uploads.one(principal.lane))
        most = call.body.expected_bytes
        resize = stack.enter_context(state.pools.bodies.take(principal.lane, most))
        body = await call.body.read()
        resize(len(body))
        context = RequestContext(
            state,
            session=NO_SESSION,
            principal=principal,
            request_id=REQUEST_ID.get(),
            body=body,
            content_type=call.content_type,
            query=call.query,
            trace=current_parent(),
            idempotency_key=idempotency_key(call),
        )
        if parse is not None:
            await _parse(call, context, parse, upload=upload)
        yield context


async def _parse(
    call: Call,
    context: RequestContext,
    parse: Callable[[RequestContext], Any],
    *,
    upload: bool,
) -> None:
    """Parses off the event loop; stops when the client disconnects."""
    gone, pools = call.gone, context.state.pools
    if not upload and len(context.body) <= LARGE_BYTES:
        context.parsed = await pools.reads.run_unless(gone, context.lane, parse, context)
        return
    context.parsed = await ingested(
        pools, context.lane, gone, context.reading, partial(parse, context)
    )


async def ingested(
    pools: Pools, lane: str, gone: Gone, reading: Reading, act: Callable[[], T]
) -> T:
    """Returns what `act` returns, run among uploads; stops its reading when the client is gone."""
    await pools.ingest.slots.take(lane, gone)
    parsing = asyncio.ensure_future(pools.ingest.run_taken(lane, act))
    try:
        await unless_gone(parsing, gone)
        return parsing.result()
    finally:
        reading.stop()


def idempotency_key(call: Call) -> str | None:
    """Returns the call's Idempotency-Key. Raises `Problem` if it is malformed."""
    key = call.idempotency_key
    if key is not None and not _READABLE.fullmatch(key):
        raise Problem(
            "invalid",
            "the Idempotency-Key is malformed",
            field="Idempotency-Key",
            expected="1 to 255 visible ASCII characters",
        )
    return key


def require_text(call: Call) -> None:
    """Raises `Problem` for the character NUL in path or query: PostgreSQL cannot store it."""
    if "\0" in call.path:
        raise Problem("not-found", "a path must not contain the character NUL")
    if b"%00" in call.query_string or b"\0" in call.query_string:
        raise Problem("invalid", "a query must not contain the character NUL")


NO_SESSION = Session()
"""Placeholder until a call's session is opened; bound to no database, it can do nothing."""


async def _read(call: Call, context: RequestContext, known: Handler) -> Result:
    pool = context.state.pools.reads
    return await pool.run_unless(call.gone, context.lane, _call_reading, context, known)


def _call_reading(context: RequestContext, handler: Handler) -> Result:
    with context.state.database.read() as session:
        context.session = session
        return handler(context)


async def _write(
    call: Call,
    context: RequestContext,
    handler: Handler,
    action: str,
    *,
    secret: bool = False,
) -> Result:
    pools = context.state.pools
    result = await pools.writes.run_unless(
        call.gone, context.lane, _commit, context, handler, action, call.target, secret
    )
    if result.ring:
        await pools.rings.run(context.lane, ring, context.state, result.ring)
    if result.after:
        await pools.writes.run(context.lane, afterwards, context.state, result)
    return result


def _commit(
    context: RequestContext, handler: Handler, action: str, target: str, secret: bool
) -> Result:
    """Returns the result once it is committed. Actions that free space work on a full disk."""
    try:
        return _store(context, handler, action, target, secret)
    except StoreFull:
        if not action.endswith(FREEING):
            raise
    return _free(context, handler, action, target)


def _free(context: RequestContext, handler: Handler, action: str, target: str) -> Result:
    """As `_commit` on a full disk: uses the ballast, and omits the audit if that is not enough.

    The line that the audit lacks is logged.
    """
    database = context.state.database
    try:
        if database.ballast is not None and database.ballast.give_up():
            with suppress(StoreFull):
                return _store(context, handler, action, target, secret=False)
        result = _store(context, handler, action, target, secret=False, audited=False)
        log.warning(
            "not in the audit, whose disk is full: %s of %s",
            action,
            redacted(target)[:500],
            extra={
                "tenant": context.tenant,
                "key": context.principal.key_id,
                "status": result.status,
            },
        )
        return result
    finally:
        database.tidy()


def _store(
    context: RequestContext,
    handler: Handler,
    action: str,
    target: str,
    secret: bool,
    audited: bool = True,
) -> Result:
    """Runs the handler and stores audit and Idempotency-Key in one transaction."""
    key = context.idempotency_key
    with context.state.database.write() as session:
        context.session = session
        require_open(session, context.principal)
        if key is not None:
            digest = hashlib.sha256(f"{action}\n{target}\n".encode() + context.body).hexdigest()
            before = reserve(session, context.tenant, key, digest)
            if before is not None:
                if before.request_hash != digest:
                    raise Problem(
                        "idempotency-key-reused",
                        "this Idempotency-Key was used for another request",
                        field="Idempotency-Key",
                    )
                if not secret:
                    return repeated(context, before, handler)
        result = handler(context)
        if key is not None and not secret:
            content, reference = replay_record(result)
            remember(
                session,
                context.tenant,
                key,
                result.status,
                dict(result.headers),
                content,
                reference,
            )
        if audited:
            where = result.headers.get("Location", target)
            context.record(context.tenant, action, where, result.status)
        if result.stores and context.body:
            accept_bytes(session, context.room, len(context.body))
        return result


def afterwards(state: State, result: Result) -> None:
    """Runs what follows a committed answer, which stays valid if the database is away now.

    The sweeper does what is left undone.
    """
    for act in result.after:
        try:
            act(state)
        except StoreUnavailable as error:
            log.warning("left to the sweeper: %s", error)


def ring(state: State, job_ids: list[str]) -> None:
    """Tells the workers, and counts the rings by outcome."""
    rung = state.doorbell.ring(job_ids)
    state.metrics.rings.labels("sent" if rung else "failed").inc(len(job_ids))
