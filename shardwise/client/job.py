"""Jobs as a client sees them, and the answers in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise import documents
from shardwise.client.errors import JobCancelled, Unreachable, error_of_job
from shardwise.errors import BadInput

ENDED = ("done", "failed", "cancelled")
INFEASIBLE = documents.schema_of(documents.Infeasible)


@dataclass(frozen=True)
class Job:
    """A question that is being computed or was; `document` is its `shardwise.job/1`.

    `asked_here`: this very call made the job. Otherwise the same tenant asked the same question
    before, and the two share one computation.
    """

    document: dict[str, Any]
    asked_here: bool = False

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def kind(self) -> str:
        """frontier, curve, plan, pricing, quote or compare."""
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

    def answer(self) -> Any:
        """Returns what the library's function returns for the same question.

        Raises what the library raises: `Infeasible`, `BadInput`, `SolverError`; `JobCancelled`.
        """
        if self.state == "cancelled":
            raise JobCancelled(self.id)
        if self.state == "failed":
            raise error_of_job(self.document.get("error") or {})
        if "result" not in self.document:
            raise BadInput(f"the job {self.id} is {self.state}", expected="one that is done")
        return read_answer(self.document["result"], self.kind)


def job_from(document: dict[str, Any], request_id: str | None = None) -> Job:
    """Returns the job of a reply; `request_id` is that of the request which may have made it."""
    if document.get("schema") != "shardwise.job/1":
        raise Unreachable(f"the service's answer is {document.get('schema')!r}, which is not a job")
    return Job(document, request_id is not None and document.get("request_id") == request_id)


def read_answer(document: dict[str, Any], kind: str) -> Any:
    """Returns an answer as the type of its kind (`shardwise.documents`), of a plan's question with
    stages as `Pipeline` where it is one.

    Raises `Infeasible` with the reason if nothing fits, `BadInput` for anything else.
    """
    if kind == "plan" and document.get("schema") in documents.PLAN_SCHEMAS:
        return documents.read(document, documents.Plan)
    require_kind(document, kind)
    return documents.read(document, documents.DOCUMENTS[kind])


def require_kind(document: dict[str, Any], kind: str) -> None:
    """Raises `Infeasible` if nothing fits, `BadInput` unless it is a document of this kind."""
    schema = document.get("schema")
    if schema == INFEASIBLE:
        from shardwise.search.search import Infeasible

        raise Infeasible(document["reason"])
    if schema != f"shardwise.{kind}/1":
        raise BadInput(
            f"the service's answer is {schema!r}",
            field="schema",
            expected=f"shardwise.{kind}/1; is the service of another release?",
        )
