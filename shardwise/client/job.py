"""Jobs as a client sees them, and the answers in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise.client.errors import JobCancelled, Unreachable, error_of_job
from shardwise.errors import BadInput

ENDED = ("done", "failed", "cancelled")
INFEASIBLE = "shardwise.infeasible/1"


@dataclass(frozen=True)
class Job:
    """A question that is being computed or was; `document` is its `shardwise.job/1`.

    `asked_here`: it was this very call that made the job. Otherwise somebody of the same tenant
    asked the same question before, and the two share one computation.
    """

    document: dict[str, Any]
    asked_here: bool = False

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def kind(self) -> str:
        """frontier, curve, plan or quote."""
        return str(self.document["kind"])

    @property
    def state(self) -> str:
        """queued, running, done, failed or cancelled."""
        return str(self.document["state"])

    @property
    def stage(self) -> str:
        """What is being done."""
        return str(self.document["stage"])

    @property
    def progress(self) -> float:
        """The fraction done."""
        return float(self.document["progress"])

    @property
    def location(self) -> str:
        """Its path on the service."""
        return str(self.document["location"])

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED

    def answer(self) -> dict[str, Any]:
        """The document that the library's function gives for the same question.

        Raises what the library raises: `Infeasible`, `BadInput`, `SolverError`; `JobCancelled`.
        """
        if self.state == "cancelled":
            raise JobCancelled(self.id)
        if self.state == "failed":
            raise error_of_job(self.document.get("error") or {})
        if "result" not in self.document:
            raise BadInput(f"the job {self.id} is {self.state}", expected="one that is done")
        return feasible(self.document["result"], self.kind)


def job_from(document: dict[str, Any], request_id: str | None = None) -> Job:
    """The job of a reply; `request_id` is that of the request which may have made it."""
    if document.get("schema") != "shardwise.job/1":
        raise Unreachable(f"the service's answer is {document.get('schema')!r}, which is no job")
    return Job(document, request_id is not None and document.get("request_id") == request_id)


def feasible(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """An answer of this kind; raises `Infeasible` with the reason when that is the answer."""
    schema = document.get("schema")
    if schema == INFEASIBLE:
        from shardwise.advise.search import Infeasible

        raise Infeasible(document["reason"])
    if schema != f"shardwise.{kind}/1":
        raise BadInput(
            f"the service's answer is {schema!r}",
            field="schema",
            expected=f"shardwise.{kind}/1; is the service of another release?",
        )
    return document
