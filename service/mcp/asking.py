"""Calls of the edge that a tool makes for its caller.

Keys, scopes, rates, quotas, audit, tenants, cache and queue are those of calls over HTTP; each call
that a tool makes counts like one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import anyio
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from service.base.problems import Problem
from service.edge import perform
from service.edge.call import Call
from service.edge.context import Handler, Result
from service.edge.events import follow_job
from service.edge.http import caller_of
from service.edge.state import State
from service.handlers.jobs import get_job, parse_request, remove_job
from service.questions.question import INFEASIBLE_SCHEMA
from service.store.jobs import has_ended
from service.store.tables import Job
from shardwise import documents
from shardwise.answers import Infeasible
from shardwise.documents.questions import COLLECTIONS
from shardwise.mcp.calls import Growth, Report


@dataclass(frozen=True)
class Asking:
    """One call of a tool: the service, the request that brought it, and where progress goes."""

    state: State
    request: Request
    report: Report

    def call(self, body: bytes = b"", query: Mapping[str, str] | None = None) -> Call:
        """Returns a call of the edge by the same caller."""
        return Call(
            caller=caller_of(self.request),
            path=self.request.scope["path"],
            # A client that goes away cancels the task of its tool's call.
            gone=anyio.sleep_forever,
            query=QueryParams(dict(query or {})),
            body=_Given(body),
            content_type="application/json",
        )

    async def read(
        self,
        handler: Handler,
        query: Mapping[str, str] | None = None,
        finish: Callable[[Result], None] | None = None,
    ) -> Any:
        """Returns the document of a call that only reads; `finish` as in `perform.read`."""
        call = self.call(query=query)
        return (await perform.read(self.state, call, handler, finish=finish)).document


Answer: TypeAlias = Callable[[Asking, Any], Awaitable[Any]]
"""Returns the document of a tool for its arguments. Raises `ShardwiseError`."""


@dataclass(frozen=True)
class ToolQuestion:
    """Answers a tool by a job: the stored answer of the same question, else a job's.

    When the tool's call is cancelled, so is the job, if this call made it.
    """

    kind: str
    handler: Handler

    async def __call__(self, asking: Asking, ask: msgspec.Struct) -> Any:
        """Returns the answer's document. Raises `Infeasible` and `Problem`."""
        body = msgspec.json.encode(documents.request_body(ask))
        # Once it is stored, a worker must be notified, and its id be known for cancelling.
        with anyio.CancelScope(shield=True):
            result = await perform.write(
                asking.state,
                asking.call(body),
                self.handler,
                f"{COLLECTIONS[self.kind]}.create",
                parse=parse_request(documents.QUESTIONS[self.kind]),
            )
        job_id = result.document["id"]
        if result.status != 200:
            try:
                await _wait(asking, job_id)
            except anyio.get_cancelled_exc_class():
                if result.ring:
                    await _cancel(asking, job_id)
                raise
        return await asking.read(
            partial(get_job, job_id=job_id, kind=self.kind), finish=_replace_by_answer
        )


async def _wait(asking: Asking, job_id: str) -> None:
    """Returns once a job is done; reports its progress. Raises `Problem` if it ended otherwise."""
    growth, job = Growth(), None
    async with aclosing(follow_job(asking.state, asking.call(), job_id)) as changes:
        async for job in changes:
            if job.stage and (done := growth.of(job.stage, job.progress)) is not None:
                await asking.report(done, job.stage)
    _require_done(job, job_id)


def _require_done(job: Job | None, job_id: str) -> None:
    if job is None:
        raise Problem("not-found", f"the job {job_id} was deleted")
    if not has_ended(job):
        raise Problem("unavailable", f"the service is stopping; the job {job_id} goes on")
    if job.state != "done":
        detail = (job.error or {}).get("detail", f"the job {job_id} was cancelled")
        raise Problem("failed", detail)


async def _cancel(asking: Asking, job_id: str) -> None:
    with anyio.CancelScope(shield=True):
        await perform.write(
            asking.state,
            asking.call(),
            partial(remove_job, job_id=job_id, kind=None),
            "jobs.cancel",
        )


def _replace_by_answer(result: Result) -> None:
    """Puts the answer in place of the job that has it. Raises `Infeasible` if nothing fits."""
    answer = msgspec.json.decode(result.document["result"])
    if answer["schema"] == INFEASIBLE_SCHEMA:
        raise Infeasible(answer["reason"])
    kind = result.document["kind"]
    if kind == "plan":
        result.document = documents.read(answer, documents.Plan)
    else:
        result.document = documents.read(answer, documents.DOCUMENTS[kind])


class _Given:
    """A body whose memory the request that brought it accounts for."""

    expected_bytes = 0

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self) -> bytes:
        """Returns the content."""
        return self._content
