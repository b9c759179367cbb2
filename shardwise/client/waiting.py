"""Waiting for a job: by its event stream, or by polling where streams do not come through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import msgspec

from shardwise.client.exchange import (
    Close,
    Flow,
    Listen,
    Lost,
    NextLine,
    Policy,
    Request,
    Sleep,
    Stream,
    asked,
    document_of,
)
from shardwise.client.job import Job, job_from
from shardwise.cost.options import Progress
from shardwise.errors import Cancelled

SILENT_S = 5.0
"""A stream that is silent for this long is reopened, so that `progress` is called again."""

POLL_S = (0.2, 2.0)
"""First and longest pause between two polls where there is no stream."""

MORE_RETRIES = 6
"""A service that restarts comes back within these; nothing that it accepted is lost."""

INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)
"""Exceptions that end a call from outside."""

Report = Callable[[Job], None]


def wait_flow(
    job: Job, policy: Policy, progress: Progress | None, timeout_s: float | None
) -> Flow[Job]:
    """Returns the job once it has ended.

    Raises `Cancelled` when `progress` returns False and TimeoutError after `timeout_s`; the job
    goes on.
    """
    until = None if timeout_s is None else monotonic() + timeout_s
    patient = replace(policy, retries=policy.retries + MORE_RETRIES)

    def report(seen: Job) -> None:
        if progress is not None and not progress(seen.stage or seen.state, seen.progress):
            raise Cancelled
        if until is not None and monotonic() > until:
            raise TimeoutError(f"the job {seen.id} is still {seen.state} after {timeout_s:g} s")

    return _until_ended(job, patient, report)


def cancel_flow(job: Job, policy: Policy) -> Flow[Job]:
    """Returns the job after it was asked to stop; an ended one stays as it is."""
    reply = yield from asked(Request("DELETE", job.location), policy)
    return job_from(document_of(reply))


def _until_ended(job: Job, policy: Policy, report: Report) -> Flow[Job]:
    streams = True
    pause_s = POLL_S[0]
    while True:
        reply = yield from asked(Request("GET", job.location), policy)
        job = replace(job_from(document_of(reply)), asked_here=job.asked_here)
        if job.ended:
            return job
        report(job)
        if streams:
            streams = yield from _follow(job, report)
            pause_s = POLL_S[0]
        else:
            yield Sleep(pause_s)
            pause_s = min(pause_s * 1.5, POLL_S[1])


def _follow(job: Job, report: Report) -> Flow[bool]:
    """Reports the job's events until its stream ends. Returns whether there were any."""
    accept = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    request = Request("GET", f"{job.location}/events", headers=accept, read_s=SILENT_S)
    try:
        stream: Stream = yield Listen(request)
    except Lost:
        return False
    any_event = False
    try:
        if stream.status != 200:
            return False
        while (line := (yield NextLine(stream))) is not None:
            any_event = True
            seen = _job_after(line, job)
            report(seen)
            job = seen
            if job.ended:
                return True
    except Lost:
        return any_event
    finally:
        yield Close(stream)
    if any_event:
        # A service that is stopping ends its streams: do not ask again at once.
        yield Sleep(POLL_S[0])
    return any_event


def _job_after(line: str, before: Job) -> Job:
    """Returns the job as a line of the stream shows it; other lines leave it as it was."""
    if not line.startswith("data:"):
        return before
    try:
        document: Any = msgspec.json.decode(line.removeprefix("data:"))
    except msgspec.DecodeError:
        return before
    return replace(before, document=document) if isinstance(document, dict) else before
