"""Stored answers for repeated Idempotency-Keys.

A small answer is stored as it is. Of a large one, the members that can be read elsewhere are left
out and put back when it is repeated: a job's question and result and a launch's request never
change, so the repeat is the same byte for byte. Large answers of other calls are produced by
running the same handler again, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.store.jobs import find_job, job_document
from service.store.launches import find_launch
from service.store.results import result_of
from service.store.tables import Idempotency
from shardwise.errors import InternalError

MAX_KEPT_BYTES = 4096
_LEFT_OUT = {"job": ("question", "result"), "launch": ("request", "summary")}
GROWING = "so_far"
"""A member of a job that changes: a repeat of a large answer does without it."""
_RERUN = {"kind": "again"}


def replay_record(result: Result) -> tuple[bytes, dict[str, Any] | None]:
    """Returns the stored content of an answer, and a reference to the rest."""
    content = result.sent()
    if len(content) <= MAX_KEPT_BYTES:
        return content, None
    if result.recall is not None:
        kind, name = result.recall
        left_out = [member for member in _LEFT_OUT[kind] if member in result.document]
        short = {**result.document, **dict.fromkeys(left_out)}
        short.pop(GROWING, None)
        return msgspec.json.encode(short), {"kind": kind, "id": name, "members": left_out}
    if not result.repeatable:
        raise InternalError(f"an answer of {len(content)} bytes does not say how to repeat it")
    return b"", _RERUN


def repeated(
    context: RequestContext, row: Idempotency, handler: Callable[[RequestContext], Result]
) -> Result:
    """Returns the first answer to the row's Idempotency-Key.

    Raises a `not-found` problem if its subject has been deleted since.
    """
    headers = {**row.headers, "Idempotency-Replayed": "true"}
    if row.reference is None:
        return Result(row.status, content=row.content, headers=headers, stores=False)
    if row.reference == _RERUN:
        result = handler(context)
        result.status, result.headers, result.stores = row.status, headers, False
        return result
    whole = _FIND[row.reference["kind"]](context, row.reference["id"])
    document = msgspec.json.decode(row.content)
    for member in row.reference["members"]:
        document[member] = whole[member]
    return Result(row.status, document, headers=headers, stores=False)


def _job(context: RequestContext, job_id: str) -> dict[str, Any]:
    job = find_job(context.session, context.tenant, job_id)
    stored = result_of(context.session, context.tenant, job.content_id)
    document = job_document(job)
    if stored is not None:
        document["result"] = msgspec.Raw(stored.content)
    elif job.state == "done":
        raise Problem("not-found", f"the answer of {job_id} was deleted")
    return document


def _launch(context: RequestContext, launch_id: str) -> dict[str, Any]:
    launch = find_launch(context.session, context.tenant, launch_id)
    return {"request": launch.request, "summary": launch.summary}


_FIND = {"job": _job, "launch": _launch}
