"""What is kept of an answer for the repeats of its Idempotency-Key.

A small answer is kept as it is. Of a large one the members that can be found again are left out,
and put back when it is repeated: a job's question and result and a launch's request never change,
so that the repeat is the same byte for byte. Large answers of other calls are made again by the
same handler, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from service.problems import Problem
from service.store.jobs import find_job, job_document
from service.store.launches import find_launch
from service.store.results import result_of
from service.store.tables import Idempotency

if TYPE_CHECKING:
    from service.edge import Answer, Call

MAX_KEPT_BYTES = 4096
_LEFT_OUT = {"job": ("question", "result"), "launch": ("request", "summary")}
_AGAIN = {"kind": "again"}


def kept(answer: Answer) -> tuple[bytes, dict[str, Any] | None]:
    """What is stored of an answer, and where the rest is."""
    content = answer.sent()
    if len(content) <= MAX_KEPT_BYTES:
        return content, None
    if answer.recall is not None:
        kind, name = answer.recall
        left_out = [member for member in _LEFT_OUT[kind] if member in answer.document]
        short = {**answer.document, **dict.fromkeys(left_out)}
        return msgspec.json.encode(short), {"kind": kind, "id": name, "members": left_out}
    assert answer.repeatable, "a large answer says how it is given again"
    return b"", _AGAIN


def repeated(call: Call, row: Idempotency, handler: Callable[[Call], Answer]) -> Answer:
    """The answer that the row's Idempotency-Key got.

    A `not-found` problem when what it was of has been deleted since.
    """
    from service.edge import Answer

    headers = {**row.headers, "Idempotency-Replayed": "true"}
    if row.reference is None:
        return Answer(row.status, content=row.content, headers=headers, stores=False)
    if row.reference == _AGAIN:
        answer = handler(call)
        answer.status, answer.headers, answer.stores = row.status, headers, False
        return answer
    found = _FIND[row.reference["kind"]](call, row.reference["id"])
    document = msgspec.json.decode(row.content)
    for member in row.reference["members"]:
        document[member] = found[member]
    return Answer(row.status, document, headers=headers, stores=False)


def _job(call: Call, job_id: str) -> dict[str, Any]:
    job = find_job(call.session, call.tenant, job_id)
    stored = result_of(call.session, call.tenant, job.content_id)
    found = job_document(job)
    if stored is not None:
        found["result"] = msgspec.Raw(stored.content)
    elif job.state == "done":
        raise Problem("not-found", f"the answer of {job_id} was thrown away")
    return found


def _launch(call: Call, launch_id: str) -> dict[str, Any]:
    launch = find_launch(call.session, call.tenant, launch_id)
    return {"request": launch.request, "summary": launch.summary}


_FIND = {"job": _job, "launch": _launch}
