"""Every call of the client as a flow: what `Client` runs and `AsyncClient` awaits."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from shardwise.answers import Options
from shardwise.client.errors import Missing, Unreachable
from shardwise.client.exchange import (
    Flow,
    Lost,
    Policy,
    Reply,
    Request,
    Send,
    T,
    asked,
    deleted,
    document_of,
    require_good,
)
from shardwise.client.job import Job, job_from, read_answer, require_kind
from shardwise.client.preset import capture_instead
from shardwise.client.questions import curve_query, job_to_share, staged
from shardwise.client.questions import question as question_body
from shardwise.client.request import REQUEST_ID, path_of, post_json
from shardwise.client.uploads import (
    GraphSource,
    HardwareSource,
    hardware_name,
    upload_of_graph,
    upload_of_hardware,
)
from shardwise.client.waiting import INTERRUPTS, cancel_flow, wait_flow
from shardwise.cost.options import Progress
from shardwise.documents import (
    DOCUMENTS,
    Comparison,
    Curve,
    Export,
    Frontier,
    Plan,
    Pricing,
    Quote,
    WholePlan,
    read,
)
from shardwise.documents.jobs import Allocation
from shardwise.documents.questions import COLLECTIONS
from shardwise.errors import Cancelled
from shardwise.graph import Graph
from shardwise.hardware import Hardware

PAGE = "200"
MOST_CURVES = 256
ROUNDS = 5
"""How often an allocation is requested while the curves that it needs come and go."""

Document = dict[str, Any]
D = TypeVar("D", Frontier, Plan, Pricing, Quote, Comparison)


class Calls:
    """The flows, with what one client remembers: curves by their query, with their ETags."""

    def __init__(self, policy: Policy, priority: int = 0) -> None:
        self.policy = policy
        self.priority = priority
        self._curves: OrderedDict[tuple[tuple[str, str], ...], Reply] = OrderedDict()

    def get(self, path: str) -> Flow[Document]:
        """Returns any document."""
        return document_of((yield from asked(Request("GET", path), self.policy)))

    def health(self) -> Flow[Document]:
        """Returns `/readyz`: asked only once, and not an error when the service is not ready."""
        try:
            reply: Reply = yield Send(Request("GET", "/readyz"))
        except Lost as error:
            raise Unreachable(str(error)) from None
        return document_of(reply if reply.status == 503 else require_good(reply))

    def page(
        self, path: str, query: Mapping[str, str | None], cursor: str | None
    ) -> Flow[Document]:
        """Returns one page of a list."""
        wanted = {"limit": PAGE, **query, "cursor": cursor}
        given = tuple((name, value) for name, value in wanted.items() if value is not None)
        return document_of((yield from asked(Request("GET", path, given), self.policy)))

    def send(self, request: Request) -> Flow[Document]:
        """Returns the answer to an upload."""
        return document_of((yield from asked(request, self.policy)))

    def delete(self, path: str) -> Flow[None]:
        """Deletes. Raises `Missing` if it did not exist."""
        yield from deleted(Request("DELETE", path), self.policy)

    def upload_graph(self, source: Any, **keywords: Any) -> Flow[Document]:
        """Uploads a graph. Returns what lists say of it."""
        return self.send(upload_of_graph(source, **keywords))

    def upload_hardware(self, source: Any) -> Flow[Document]:
        """Uploads a profile. Returns what lists say of it."""
        return self.send(upload_of_hardware(source))

    def submit(
        self, kind: str, graph: GraphSource, hardware: HardwareSource | None, **question: Any
    ) -> Flow[Job]:
        """Asks a question; the graph and the profile are uploaded if the service lacks them."""

        def ask() -> Flow[Job]:
            request = post_json(path_of(COLLECTIONS[kind]), body)
            reply = yield from asked(request, self.policy)
            return job_from(document_of(reply), request.headers[REQUEST_ID])

        question.setdefault("priority", self.priority)
        body = question_body(kind, graph, hardware, **question)
        return self._with_uploads(ask, (graph, hardware))

    def job(self, job_id: str) -> Flow[Job]:
        """Returns one job."""
        return job_from((yield from self.get(path_of("jobs", job_id))))

    def wait(self, job: Job, progress: Progress | None, timeout_s: float | None) -> Flow[Job]:
        """Returns the job once it has ended; it is cancelled when `progress` returns False."""
        try:
            return (yield from self._ended(job, progress, timeout_s))
        except Cancelled:
            yield from self.cancel(job)
            raise

    def cancel(self, job: Job | str) -> Flow[Job]:
        """Returns the job after it was asked to stop."""
        if isinstance(job, str):
            job = yield from self.job(job)
        return (yield from cancel_flow(job, self.policy))

    def answer(
        self,
        kind: type[D],
        graph: GraphSource,
        hardware: HardwareSource | None,
        progress: Progress | None,
        timeout_s: float | None,
        **question: Any,
    ) -> Flow[D]:
        """Asks a question and waits; returns the answer, which is a document of this kind."""
        asked = WholePlan if kind is Plan else kind
        name = next(name for name, known in DOCUMENTS.items() if known is asked)

        def submit(source: GraphSource) -> Flow[Job]:
            return self.submit(name, source, hardware, **question)

        job = yield from _or_captured(graph, submit, progress)
        answer: D = yield from self._answer_of(job, progress, timeout_s)
        return answer

    def solve(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        progress: Progress | None,
        timeout_s: float | None,
        stages: Sequence[int] | None,
        schedules: Sequence[str] | None,
        **question: Any,
    ) -> Flow[Plan]:
        """Returns the strategy of a question, under some stages (None: all that are possible) and
        schedules (None: those that are usual)."""
        answer: Plan = yield from self.answer(
            Plan, graph, hardware, progress, timeout_s, **question, **staged(stages, schedules)
        )
        return answer

    def curve(
        self,
        graph: GraphSource,
        hardware: HardwareSource,
        max_gpus: int | None,
        options: Options | None,
        progress: Progress | None,
        timeout_s: float | None,
        bundles: Sequence[str],
        more: Mapping[str, Any],
    ) -> Flow[Curve]:
        """Returns the curve by `GET`, which a service answers from memory.

        The answer is 304 if this client has the curve.
        """

        def ask(source: GraphSource) -> Flow[tuple[Reply, str]]:
            query = curve_query(source, hardware, max_gpus, options, self.priority, bundles, more)
            once = partial(self._ask_curve, query)
            return self._with_uploads(once, (source, hardware))

        reply, once = yield from _or_captured(graph, ask, progress)
        if reply.status == 202:
            job = job_from(document_of(reply), once)
            computed: Curve = yield from self._answer_of(job, progress, timeout_s)
            return computed
        curve: Curve = read_answer(document_of(reply), "curve")
        return curve

    def _ask_curve(self, query: tuple[tuple[str, str], ...]) -> Flow[tuple[Reply, str]]:
        """Returns the reply to a curve's query, the one of before if it is still valid."""
        before = self._curves.get(query)
        once = secrets.token_hex(16)
        headers = {REQUEST_ID: once}
        if before is not None:
            headers["If-None-Match"] = before.headers["etag"]
        reply = yield from asked(Request("GET", path_of("curves"), query, headers), self.policy)
        if reply.status == 304 and before is not None:
            reply = before
        if reply.status != 202 and "etag" in reply.headers:
            self._curves[query] = reply
            self._curves.move_to_end(query)
            if len(self._curves) > MOST_CURVES:
                self._curves.popitem(last=False)
        return reply, once

    def plan_of(self, plan_id: str) -> Flow[Plan]:
        """Returns a plan or a pipeline by its own id, or by its job's."""
        answer: Plan = job_from((yield from self.get(path_of("plans", plan_id)))).answer()
        return answer

    def export(
        self, plan_id: str, to: str | None, form: str | None, gpu_type: str | None
    ) -> Flow[Export]:
        """Returns a stored plan as a trainer or a scheduler reads it."""
        path = path_of("plans", plan_id, "export")
        wanted = (("to", to), ("format", form), ("gpu_type", gpu_type))
        query = tuple((name, value) for name, value in wanted if value is not None)
        document = document_of((yield from asked(Request("GET", path, query), self.policy)))
        require_kind(document, "export")
        return read(document, Export)

    def curves(self, questions: Sequence[Mapping[str, Any]]) -> Flow[Document]:
        """Returns the states and answers of many curves, asked in one call."""
        body = {"questions": [job_to_share(question) for question in questions]}
        sources = [one.get(name) for one in questions for name in ("graph", "hardware")]
        for request in uploads_of(sources):
            yield from self.send(request)
        request = post_json(path_of("curves", "bulk"), body)
        return document_of((yield from asked(request, self.policy)))

    def allocate(
        self,
        jobs: Sequence[Mapping[str, Any]],
        gpus: int,
        objective: str,
        progress: Progress | None,
        timeout_s: float | None,
    ) -> Flow[Allocation]:
        """Returns the allocation, once the curves that it needs are computed."""
        body = {
            "jobs": [job_to_share(job) for job in jobs],
            "gpus": gpus,
            "objective": objective,
        }
        sources = [job.get(name) for job in jobs for name in ("graph", "hardware")]

        def ask() -> Flow[tuple[Reply, str]]:
            request = post_json(path_of("allocations"), body)
            reply = yield from asked(request, self.policy)
            return reply, request.headers[REQUEST_ID]

        for _ in range(ROUNDS):
            reply, once = yield from self._with_uploads(ask, sources)
            if reply.status != 202:
                document = document_of(reply)
                require_kind(document, "allocation")
                return read(document, Allocation)
            for waiting in document_of(reply)["waiting_for"]:
                job = job_from(waiting, once)
                yield from self._answer_of(job, progress, timeout_s)
        raise Unreachable("the curves of the allocation do not stay on the service")

    def _answer_of(self, job: Job, progress: Progress | None, timeout_s: float | None) -> Flow[Any]:
        """Returns the answer of a job that was made only for this call."""
        try:
            job = yield from self._ended(job, progress, timeout_s)
        except (Cancelled, *INTERRUPTS):
            # A caller that stops wants no answer, but another that made the job may still want it.
            if job.asked_here:
                yield from cancel_flow(job, replace(self.policy, retries=0))
            raise
        return job.answer()

    def _ended(self, job: Job, progress: Progress | None, timeout_s: float | None) -> Flow[Job]:
        if job.ended and (job.state != "done" or "result" in job.document):
            return job
        return (yield from wait_flow(job, self.policy, progress, timeout_s))

    def _with_uploads(self, ask: Callable[[], Flow[T]], sources: Iterable[Any]) -> Flow[T]:
        """Asks; if something is missing, uploads what was given as objects and asks again."""
        try:
            return (yield from ask())
        except Missing:
            uploads = uploads_of(sources)
            if not uploads:
                raise
        for request in uploads:
            yield from self.send(request)
        return (yield from ask())


def uploads_of(sources: Iterable[Any]) -> list[Request]:
    """Returns the uploads of what is given as objects, each once; names are on the service."""
    objects = {
        source.id if isinstance(source, Hardware) else id(source): source
        for source in sources
        if isinstance(source, Graph)
        or (isinstance(source, Hardware) and hardware_name(source) == source.id)
    }
    return [
        upload_of_graph(source) if isinstance(source, Graph) else upload_of_hardware(source)
        for source in objects.values()
    ]


def _or_captured(
    graph: GraphSource, ask: Callable[[GraphSource], Flow[T]], progress: Progress | None
) -> Flow[T]:
    """Asks; if the graph is a preset that the service lacks, captures it and asks with that."""
    try:
        return (yield from ask(graph))
    except Missing as missing:
        capture = capture_instead(graph, missing, progress)
        if capture is None:
            raise
    captured = yield capture
    return (yield from ask(captured))
