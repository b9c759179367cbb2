"""Jobs of curves without a service: asked in a database, computed by a worker in this process or
one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.service.steps import HARDWARE, mlp
from service.base.settings import Settings
from service.edge.metrics import WorkerMetrics
from service.questions.curves import point_ids
from service.questions.question import Limits, Question, curve_question
from service.questions.upload import upload_of
from service.store.curve_answers import may_go_on, so_far
from service.store.curve_points import contents_of, points_of
from service.store.database import Database
from service.store.graphs import add_graph
from service.store.jobs import cancel_job, find_job, find_or_make_job
from service.store.keys import make_tenant
from service.store.quotas import Room
from service.store.results import Stored, result_of
from service.store.tables import CurvePoint, Job
from shardwise.documents import CurveRequest
from shardwise.hardware import load_hardware
from worker.tasks import Worker

WORKER = """
import sys, time
from shardwise.child_process import die_with_parent
from service.base.settings import Settings
from service.edge.metrics import WorkerMetrics
from service.store.database import Database
from worker.tasks import Worker
import msgspec

die_with_parent(int(sys.argv[3]))
settings = Settings(**msgspec.json.decode(sys.argv[2]))
worker = Worker(settings, Database(sys.argv[1]), WorkerMetrics())
while worker.solve_next() != "done":
    time.sleep(0.05)
"""
"""A worker that tries until it has computed a job to its end, as a program."""


@dataclass
class CurveJobs:
    """A tenant with one graph, whose curves are asked and computed."""

    database: Database
    tenant: str = "t"
    quick: dict[str, Any] = field(
        default_factory=lambda: {"lease_s": 30.0, "heartbeat_s": 0.1, "solve_threads": 1}
    )

    def __post_init__(self) -> None:
        upload = upload_of(mlp())
        self.graph = upload.id
        with self.database.write() as session:
            make_tenant(session, self.tenant)
            room = Room(self.tenant, Settings(), {})
            add_graph(session, self.tenant, upload.id, upload.canonical, upload.summary, room)

    def question(self, max_gpus: int | None = None, **more: Any) -> Question:
        """Returns the question of a curve."""
        ask = CurveRequest(self.graph, HARDWARE, max_gpus, **more)
        return curve_question(ask, self.graph, load_hardware(HARDWARE), Limits(1024, 1024))

    def ask(self, question: Question) -> str:
        """Returns the id of the question's job, made if needed."""
        with self.database.write() as session:
            job, _ = find_or_make_job(
                session, self.tenant, question, max_queued=100, key_id=None, request_id="r",
                trace=None, goes_on=lambda job: may_go_on(session, job, question),
            )  # fmt: skip
            return job.id

    def job(self, job_id: str) -> Job:
        """Returns a job's row."""
        with self.database.read() as session:
            return find_job(session, self.tenant, job_id)

    def known(self, question: Question) -> dict[Any, bytes]:
        """Returns the points of a question that are known."""
        with self.database.read() as session:
            return contents_of(session, self.tenant, point_ids(question.document))

    def attempts(self, question: Question) -> dict[Any, int]:
        """Returns how often each point of a question was begun."""
        with self.database.read() as session:
            points = points_of(session, self.tenant, point_ids(question.document))
        return {place: point.attempts for place, point in points.items()}

    def so_far(self, job_id: str) -> dict[str, Any] | None:
        """Returns the curve of a job that has not ended, as far as it is known."""
        with self.database.read() as session:
            content = so_far(session, find_job(session, self.tenant, job_id))
        return None if content is None else msgspec.json.decode(content)

    def stored(self, question: Question) -> Stored:
        """Returns the stored answer of a question as it is sent."""
        return self._stored(question.content_id)

    def answer(self, question: Question) -> dict[str, Any]:
        """Returns the stored answer of a question."""
        curve: dict[str, Any] = msgspec.json.decode(self.stored(question).content)
        return curve

    def answer_of(self, job_id: str) -> dict[str, Any]:
        """Returns the answer of a job that is done."""
        content = self._stored(self.job(job_id).content_id).content
        curve: dict[str, Any] = msgspec.json.decode(content)
        return curve

    def _stored(self, content_id: str) -> Stored:
        with self.database.read() as session:
            stored = result_of(session, self.tenant, content_id)
        assert stored is not None
        return stored

    def cancel(self, job_id: str) -> None:
        """Cancels a job."""
        with self.database.write() as session:
            cancel_job(session, find_job(session, self.tenant, job_id))

    def worker(self, **settings: Any) -> Worker:
        """Returns a worker in this process."""
        chosen = Settings(**{**self.quick, **settings})
        return Worker(chosen, self.database, WorkerMetrics())

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Returns a worker process that tries until it has computed a job."""
        url = self.database.url.render_as_string(hide_password=False)
        quick = msgspec.json.encode(self.quick).decode()
        words = [sys.executable, "-c", WORKER, url, quick, str(os.getpid())]
        return subprocess.Popen(words)

    def use_attempts(self, job_id: str, attempts: int) -> None:
        """Makes as if so many workers had ended while they computed a job."""
        with self.database.write() as session:
            session.get_one(Job, job_id).attempts = attempts

    def fail_points(self, question: Question, places: Sequence[int], attempts: int) -> None:
        """Stores points that were begun so often and never became known."""
        ids = point_ids(question.document)
        with self.database.write() as session:
            for place in places:
                session.add(
                    CurvePoint(
                        tenant_id=self.tenant, point_id=ids[place], graph_id=self.graph,
                        changed_at=0.0, attempts=attempts, size_bytes=0,
                    )
                )  # fmt: skip
