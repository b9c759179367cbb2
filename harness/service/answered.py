"""Puts the answers that are kept (harness/stored.py) into a service's store, as workers would."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import update

from harness.service.service_harness import System, wait_until
from harness.stored import STORED, content, graph, stored
from service.questions.upload import upload_of
from service.store import leases
from service.store.graphs import add_graph
from service.store.jobs import find_or_make_job
from service.store.keys import LOCAL_TENANT, make_tenant
from service.store.leases import Claim
from service.store.results import etag_of
from service.store.tables import Job


class Answered(System):
    """A service with a worker that has every answer that is kept: `jobs` are theirs, by name."""

    def __init__(self, folder: Path, **variables: str) -> None:
        super().__init__(folder, "embedded", variables)
        database = self.database()
        self.jobs = keep(database)
        database.close()
        wait_until(lambda: self.client.get("/readyz").json()["checks"]["workers"], "a worker")

    def page(self, name: str) -> str:
        """Returns the address of an answer's page."""
        return f"/jobs/{self.jobs[name]}"


def keep(
    database: Any, names: Iterable[str] = STORED, tenant: str = LOCAL_TENANT
) -> dict[str, str]:
    """Returns the jobs whose answers a tenant then has, by name; their graphs are stored too.

    The same question, asked by whatever way, is then answered at once.
    """
    with database.write() as session:
        make_tenant(session, tenant)
        return {name: _kept(session, tenant, name) for name in names}


def _kept(session: Any, tenant: str, name: str) -> str:
    question = STORED[name].question
    upload = upload_of(graph(STORED[name].graph))
    add_graph(session, tenant, upload.id, upload.canonical, upload.summary)
    job, _ = find_or_make_job(
        session, tenant, question, max_queued=10**6, key_id=None, request_id="kept", trace=None
    )
    # No other transaction sees it queued: it is claimed and finished in this one.
    token = secrets.token_hex(16)
    session.execute(update(Job).where(Job.id == job.id).values(state="running", lease_token=token))
    claim = Claim(
        job.id, token, tenant, job.kind, job.content_id, job.graph_id, question.document,
        "kept", None, 1, {}, 0.0,
    )  # fmt: skip
    answer = content(name)
    answer_id = getattr(stored(name), "id", None)
    assert leases.finish(session, claim, answer, etag_of(answer), answer_id)
    return str(job.id)
