"""Errors between a client and a service, from its problem documents (RFC 9457).

| the service says | raised | exit code |
|---|---|---|
| nothing, or 502, 503, 504, or it is not a Shardwise service | `Unreachable` | 3 |
| 500 | `ServiceDefect` | 3 |
| 429 | `TooMany`, with `retry_after_s` | 3 |
| 401, 403 | `Denied` | 2 |
| 404 | `Missing`, a `NotFound` | 1 |
| any other 4xx | `Refused`, a `BadInput` with `field` and `expected` | 2 |
| a job that failed | `JobRefused`, a `BadInput`, if its input was refused, else `JobFailed` | 2 |
| a job that was cancelled | `JobCancelled`, a `Cancelled` | 130 |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadInput, Cancelled, NotFound, ShardwiseError, SolverError

PREFIX = "urn:shardwise:problem:"
MEDIA_TYPE = "application/problem+json"
Document = Mapping[str, Any]


class ServiceError(ShardwiseError):
    """An error that the service returned; `document` is its problem document.

    `slug` is the last part of the problem's type (docs/reference/http.md).
    """

    def __init__(self, document: Document) -> None:
        self.document = dict(document)
        self.slug = str(document.get("type", "")).removeprefix(PREFIX)
        self.request_id = document.get("request_id")
        super().__init__(str(document.get("detail") or document.get("title") or self.slug))


class Unreachable(ShardwiseError):
    """The service does not answer, or not as a Shardwise service (exit code 3)."""

    exit_code = 3


class ServiceDefect(ServiceError):
    """A defect of the service (exit code 3)."""

    exit_code = 3

    def __str__(self) -> str:
        return f"a defect of the service, please report it with request id {self.request_id}"


class Denied(ServiceError):
    """There is no key, or it is not in force, or it may not do this."""


class TooMany(ServiceError):
    """Too many requests, jobs, streams or stored bytes (exit code 3).

    `retry_after_s`: when to ask again; None when waiting does not help (a quota).
    """

    exit_code = 3

    def __init__(self, document: Document, retry_after_s: float | None) -> None:
        super().__init__(document)
        self.retry_after_s = retry_after_s


class Missing(ServiceError, NotFound):
    """It does not exist, at least not for this tenant (exit code 1)."""

    exit_code = 1


class _OfField(BadInput):
    """A BadInput with the service's text, which already names field and expectation."""

    def __init__(self, document: Document) -> None:
        self.document = dict(document)
        self.slug = str(document.get("type", "")).removeprefix(PREFIX)
        self.request_id = document.get("request_id")
        self._text = str(document.get("detail") or document.get("title") or self.slug)
        super().__init__(self._text, field=document.get("field"), expected=document.get("expected"))

    def __str__(self) -> str:
        return self._text


class Refused(_OfField):
    """The request was refused; `document`, `slug` and `request_id` as in `ServiceError`."""


class JobRefused(_OfField):
    """The job's input was refused while it was computed."""


class JobFailed(ServiceError, SolverError):
    """The job failed: a limit was met, its workers died, or the solver has a defect."""


class JobCancelled(Cancelled):
    """The job was cancelled by another client."""

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.args = (f"the job {job_id} was cancelled",)


def error_of(
    status: int, document: Document, retry_after_s: float | None
) -> ServiceError | Refused | JobRefused | Unreachable:
    """Returns the error that a problem document describes."""
    slug = str(document.get("type", "")).removeprefix(PREFIX)
    job = document.get("job")
    if slug == "failed" and isinstance(job, Mapping) and isinstance(job.get("error"), Mapping):
        return error_of_job(job["error"])
    if status in (401, 403):
        return Denied(document)
    if status == 404:
        return Missing(document)
    if status == 429:
        return TooMany(document, retry_after_s)
    if status == 500:
        return ServiceDefect(document)
    if status > 500:
        return Unreachable(f"the service cannot do this just now: {document.get('detail')}")
    return Refused(document)


def error_of_job(error: Document) -> JobRefused | JobFailed:
    """Returns the error of a failed job."""
    if str(error.get("type", "")).removeprefix(PREFIX) == "invalid":
        return JobRefused(error)
    return JobFailed(error)
