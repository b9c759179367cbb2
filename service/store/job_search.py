"""Jobs found by hardware and by words, newest first; each page reads a bounded number of rows.

The profile's name and the devices are inside the question, which no index covers. A page therefore
looks through `WINDOW` jobs at the most, in the order of the list's index, and goes on from there:
it may hold fewer jobs than were asked for, or none, and still have a next page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from service.store.pages import Place, after
from service.store.tables import Job, OwnedGraph
from shardwise.errors import BadInput

WINDOW = 2000
MOST_WORDS = 8
MOST_TEXT = 100
_OF_ID = 8
"""Characters of a job's id from which on its beginning is a word to search for."""


@dataclass(frozen=True)
class JobFilter:
    """Filters of a list of jobs; None allows anything.

    `hardware` is a profile's name. `words` are each in the graph's name, the hardware's name, the
    kind, the state, the objective or trainer, or begin the job's id, in upper or lower case.
    """

    kind: str | None = None
    state: str | None = None
    graph_id: str | None = None
    hardware: str | None = None
    words: tuple[str, ...] = ()

    @property
    def searches(self) -> bool:
        """Whether questions are looked into."""
        return self.hardware is not None or bool(self.words)


def words_of(text: str | None, field: str) -> tuple[str, ...]:
    """Returns the words of a text to search for. Raises `BadInput` for too many characters."""
    if text is None:
        return ()
    words = tuple(text.lower().split())
    if len(text) > MOST_TEXT or len(words) > MOST_WORDS or "\0" in text:
        raise BadInput(
            f"{len(text)} characters, {len(words)} words",
            field=field,
            expected=f"at most {MOST_TEXT} characters and {MOST_WORDS} words",
        )
    return words


def find_jobs(
    session: Session, tenant: str, place: Place | None, limit: int, wanted: JobFilter
) -> tuple[list[Job], Place | None]:
    """Returns the next jobs of a tenant, at most `limit`, and the place of the last one looked at
    (None: there are no more)."""
    columns: Any = (Job.id, Job.created_at)
    listed = select(*columns).where(Job.tenant_id == tenant, *_columns(wanted))
    if not wanted.searches:
        query = select(Job).where(Job.tenant_id == tenant, *_columns(wanted))
        rows = list(session.scalars(after(query, Job.created_at, Job.id, place, limit)))
        return rows[:limit], _place(rows[limit - 1]) if len(rows) > limit else None
    window = after(listed, Job.created_at, Job.id, place, WINDOW - 1).subquery()
    query = (
        select(Job)
        .join(window, window.c.id == Job.id)
        .where(*_matches(tenant, wanted))
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(limit + 1)
    )
    rows = list(session.scalars(query))
    if len(rows) > limit:
        return rows[:limit], _place(rows[limit - 1])
    last = session.execute(
        select(window.c.created_at, window.c.id).order_by(window.c.created_at, window.c.id).limit(1)
    ).first()
    looked_at = session.scalar(select(func.count()).select_from(window))
    return rows, (last[0], last[1]) if last is not None and looked_at == WINDOW else None


def _place(job: Job) -> Place:
    return job.created_at, job.id


def _columns(wanted: JobFilter) -> list[ColumnElement[bool]]:
    pairs: tuple[tuple[Any, str | None], ...] = (
        (Job.kind, wanted.kind),
        (Job.state, wanted.state),
        (Job.graph_id, wanted.graph_id),
    )
    return [column == value for column, value in pairs if value is not None]


def _matches(tenant: str, wanted: JobFilter) -> list[ColumnElement[bool]]:
    hardware = Job.question[("hardware", "name")].as_string()
    conditions = [and_(*(_has(word, tenant, hardware) for word in wanted.words))]
    if wanted.hardware is not None:
        conditions.append(hardware == wanted.hardware)
    return conditions if wanted.words else conditions[1:]


def _has(word: str, tenant: str, hardware: ColumnElement[str]) -> ColumnElement[bool]:
    named = select(OwnedGraph.graph_id).where(
        OwnedGraph.tenant_id == tenant,
        func.lower(OwnedGraph.name).contains(word, autoescape=True),
    )
    texts = (
        hardware,
        Job.question["objective"].as_string(),
        Job.question["space"].as_string(),
        Job.kind,
        Job.state,
    )
    matches = [func.lower(text).contains(word, autoescape=True) for text in texts]
    matches.append(Job.graph_id.in_(named))
    if len(word) >= _OF_ID:
        matches.append(Job.id.startswith(word, autoescape=True))
    return or_(*matches)
