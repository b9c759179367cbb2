"""Errors as RFC 9457 problem documents, each with a stable `type`.

A type is `urn:shardwise:problem:` and a slug of `PROBLEMS`. Outsiders match on it: a slug is
never renamed and never changes its status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from service.base.redact import redacted
from service.base.store_failures import StoreFull, StoreUnavailable
from shardwise.errors import (
    BadInput,
    Cancelled,
    NotFound,
    ShardwiseError,
    SolverError,
    excerpt,
)

log = logging.getLogger(__name__)
PREFIX = "urn:shardwise:problem:"
MEDIA_TYPE = "application/problem+json"
MOST_DETAIL = 4000
"""Characters of a problem's detail; a longer one loses its middle."""

PROBLEMS: Mapping[str, tuple[int, str]] = {
    "bad-request": (400, "The request cannot be read"),
    "bad-encoding": (400, "The body is not what its encoding says"),
    "rejected": (400, "The policy does not take this task"),
    "unauthenticated": (401, "A valid key is needed"),
    "enrolment-refused": (401, "The enrolment token is unknown, used up or expired"),
    "forbidden": (403, "The key's scopes do not allow this"),
    "foreign-origin": (403, "Without keys only this host's own pages and clients are served"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "timeout": (408, "The request did not arrive in time"),
    "not-configured": (409, "The service's operator has not set this up"),
    "in-use": (409, "Something that runs still needs this"),
    "deleting": (409, "The tenant is being deleted"),
    "too-large": (413, "The body is too large"),
    "uri-too-long": (414, "The address is too long"),
    "unsupported-media-type": (415, "The body's type is not understood"),
    "invalid": (422, "The input is refused"),
    "invalid-json": (422, "The body is not the JSON that is expected"),
    "idempotency-key-reused": (422, "The Idempotency-Key was used for another request"),
    "too-complex": (422, "The question is larger than this service answers"),
    "failed": (422, "The question was computed and failed"),
    "rate-limited": (429, "Too many requests"),
    "queue-full": (429, "Too many jobs are queued"),
    "quota": (429, "The tenant's storage is full"),
    "too-many-watchers": (429, "Too many event streams or waiting agents"),
    "headers-too-large": (431, "The request's headers are too large"),
    "defect": (500, "A defect of the service"),
    "unavailable": (503, "The service cannot do this just now"),
}
"""slug: (status, title) of the errors of HTTP calls."""

FAILURES: Mapping[str, str] = {
    "invalid": "The input is refused",
    "solver-limit": "The solver met a limit",
    "time-limit": "The solve took too long",
    "memory-limit": "The solve needed too much memory",
    "worker-lost": "The job killed its workers",
    "defect": "A defect of the solver",
}
"""slug: title of why a job failed, as in the job's `error`."""


class Problem(ShardwiseError):
    """An error that HTTP answers; `extra` are members of the document, such as `field`."""

    def __init__(
        self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        self.slug = slug
        self.status, self.title = PROBLEMS[slug]
        self.detail = redacted(excerpt(detail, MOST_DETAIL))
        self.headers = dict(headers or {})
        self.extra = {k: redacted(v) if isinstance(v, str) else v for k, v in extra.items()}
        super().__init__(self.detail)

    def document(self, request_id: str) -> dict[str, Any]:
        """Returns the problem document."""
        return {
            "type": PREFIX + self.slug,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
            **{key: value for key, value in self.extra.items() if value is not None},
        }


def not_found(what: str, name: str) -> Problem:
    """Returns the same problem whether another tenant has it or it does not exist."""
    return Problem("not-found", f"there is no {what} {name}")


def problem_of(error: ShardwiseError) -> Problem:
    """Returns an error of the library as a problem for HTTP."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, BadInput):
        return Problem("invalid", str(error), field=error.field, expected=error.expected)
    if isinstance(error, NotFound):
        return Problem("not-found", str(error))
    if isinstance(error, StoreUnavailable):
        # Its reason names hosts: that is for the log, not for the caller.
        log.warning("%s", error)
        detail = "the database cannot be used just now"
        if isinstance(error, StoreFull):
            detail = "the database's disk is full: nothing was stored"
        return Problem("unavailable", detail, headers={"Retry-After": "1"})
    return Problem("invalid", str(error))


def failure(slug: str, detail: str, **extra: Any) -> dict[str, Any]:
    """Returns why a job failed, as its row and document have it."""
    return {
        "type": PREFIX + slug,
        "title": FAILURES[slug],
        "detail": detail,
        **{key: value for key, value in extra.items() if value is not None},
    }


def failure_of(error: ShardwiseError) -> dict[str, Any]:
    """Returns why a job failed whose computation raised `error`."""
    if isinstance(error, BadInput):
        return failure("invalid", str(error), field=error.field, expected=error.expected)
    if isinstance(error, SolverError | Cancelled):
        return failure("solver-limit", str(error))
    return failure("invalid", str(error))


def encode(document: Mapping[str, Any]) -> bytes:
    """Returns a document as the bytes that are sent."""
    return msgspec.json.encode(document)


def documentation() -> str:
    """Returns the table of types of docs/reference/http.md."""
    rows = [f"| `{slug}` | {status} | {title} |" for slug, (status, title) in PROBLEMS.items()]
    return "\n".join(["| type | status | meaning |", "|---|---|---|", *rows, ""])
