"""Questions and the jobs that answer them: asked, looked at, listed, cancelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from service.curve_forms import NAMES as FORM_NAMES
from service.edge import Answer, Call
from service.estimates import Estimate
from service.handlers.graphs import learn_names, paging, resolve_graph
from service.json_body import convert, read_object
from service.possible import require_possible
from service.problems import Problem
from service.questions import (
    CurveRequest,
    FrontierRequest,
    Limits,
    PlanRequest,
    Question,
    QuoteRequest,
    curve_question,
    frontier_question,
    plan_question,
    quote_question,
)
from service.search_options import NAMES, options_from_query
from service.store.graphs import owned_graph
from service.store.hardware import find_hardware
from service.store.jobs import (
    COLLECTIONS,
    cancel_job,
    failed_lately,
    find_job,
    find_or_make_job,
    has_ended,
    job_document,
    job_for,
    list_jobs,
)
from service.store.pages import by_creation, page
from service.store.results import Stored, content_of_answer, result_of
from service.store.summaries import job_item
from service.store.tables import STATES, Job
from shardwise.errors import BadInput

RETRY_AFTER_S = "1"
_QUESTIONS = (FrontierRequest, CurveRequest, PlanRequest, QuoteRequest)
_PRIORITY = re.compile(r"-?[0-9]{1,3}")
FAILED_FOR_S = 60.0
"""How long a failure answers those who only ask again; `POST` computes anew at once."""


def parse_request(shape: type[Any]) -> Callable[[Call], Any]:
    """A parser of the body as one of the request shapes."""

    def parse(call: Call) -> Any:
        ask = convert(read_object(call.body, call.settings.max_json_depth), shape)
        if isinstance(ask, _QUESTIONS):
            learn_names(call, ask.graph, ask.options)
        return ask

    return parse


def limits_of(call: Call) -> Limits:
    """What one question of this caller may ask for."""
    return Limits(call.settings.max_gpus, call.settings.max_curve_gpus)


def ask_frontier(call: Call) -> Answer:
    """`POST /v1/frontiers`."""
    ask: FrontierRequest = call.parsed
    hardware = find_hardware(call.session, call.tenant, ask.hardware)
    graph = resolve_graph(call, ask.graph)
    return job_answer(call, frontier_question(ask, graph, hardware, limits_of(call)))


def ask_plan(call: Call) -> Answer:
    """`POST /v1/plans`."""
    ask: PlanRequest = call.parsed
    hardware = find_hardware(call.session, call.tenant, ask.hardware)
    graph = resolve_graph(call, ask.graph)
    return job_answer(call, plan_question(ask, graph, hardware, limits_of(call)))


def ask_quote(call: Call) -> Answer:
    """`POST /v1/quotes`."""
    ask: QuoteRequest = call.parsed
    graph = resolve_graph(call, ask.graph)
    return job_answer(call, quote_question(ask, graph, limits_of(call)))


def ask_curve(call: Call) -> Answer:
    """`POST /v1/curves`: the same question as the GET asks, with a body."""
    ask: CurveRequest = call.parsed
    hardware = find_hardware(call.session, call.tenant, ask.hardware)
    graph = resolve_graph(call, ask.graph)
    return job_answer(call, curve_question(ask, graph, hardware, limits_of(call)))


def curve_from_query(call: Call, *, keep: bool) -> Question:
    """The question of `GET /v1/curves?graph=&hardware=&max_gpus=` and options by name.

    In which form the answer is told is no part of it (service/curve_forms.py).
    """
    values: dict[str, Any] = {}
    options: dict[str, list[str]] = {}
    for name, value in call.query.multi_items():
        if name in NAMES:
            options.setdefault(name, []).append(value)
        elif name in ("graph", "hardware"):
            values[name] = value
        elif name == "priority":
            if not _PRIORITY.fullmatch(value):
                raise BadInput(f"{value[:40]!r}", field=name, expected="a whole number")
            values[name] = int(value)
        elif name == "max_gpus":
            if not (value.isascii() and value.isdigit() and len(value) < 10):
                raise BadInput(f"{value[:40]!r}", field=name, expected="a whole number from 1")
            values[name] = int(value)
        elif name not in FORM_NAMES:
            raise BadInput("unknown parameter", field=name[:80], expected="graph, hardware, …")
    ask = convert(values, CurveRequest)
    hardware = find_hardware(call.session, call.tenant, ask.hardware)
    graph = resolve_graph(call, ask.graph, keep=keep)
    return curve_question(ask, graph, hardware, limits_of(call), options_from_query(options))


def known_curve(call: Call) -> Stored | None:
    """The stored answer of a curve's query, if there is one; a problem if it just failed."""
    question = curve_from_query(call, keep=False)
    stored = result_of(call.session, call.tenant, question.content_id)
    if stored is None:
        require_no_failure(call, question)
    return stored


def require_no_failure(call: Call, question: Question) -> None:
    """A problem `failed` when the question failed just now.

    Whoever asks again until there is an answer must not have it computed again and again.
    """
    job = failed_lately(call.session, call.tenant, question.content_id, FAILED_FOR_S)
    if job is not None:
        raise Problem(
            "failed",
            (job.error or {}).get("detail", ""),
            headers={"Retry-After": str(int(FAILED_FOR_S))},
            job=job_document(job),
        )


def start_curve(call: Call) -> Answer:
    """The curve of a query whose answer is not stored: its job, made if need be."""
    return job_answer(call, curve_from_query(call, keep=True))


def job_answer(call: Call, question: Question) -> Answer:
    """200 with the answer when it is known, else 202 with the job that computes it."""
    job, made = job_of(call, question)
    answer = shown(call, job)
    answer.stores, answer.recall = made, ("job", job.id)
    if job.state == "done":
        call.state.metrics.answers.labels(job.kind, "store").inc()
        return answer
    answer.status = 202
    answer.headers["Retry-After"] = RETRY_AFTER_S
    if made:
        answer.ring = [job.id]
        call.state.metrics.answers.labels(job.kind, "computed").inc()
    else:
        call.state.metrics.answers.labels(job.kind, "joined").inc()
    return answer


def job_of(call: Call, question: Question) -> tuple[Job, bool]:
    """The one job of a question, and whether it was made now."""
    summary = owned_graph(call.session, call.tenant, question.graph_id).summary
    require_possible(call.state.digests, question, summary)

    def estimate() -> Estimate:
        longest_s = float(call.limit("solve_time_s"))
        return call.state.estimates.of(call.session, call.tenant, question, summary, longest_s)

    return find_or_make_job(
        call.session,
        call.tenant,
        question,
        max_queued=int(call.limit("max_queued")),
        key_id=call.principal.key_id,
        request_id=call.request_id,
        trace=call.trace,
        priority=question.priority,
        estimate=estimate,
    )


def shown(call: Call, job: Job) -> Answer:
    """A job's document, with its result when it is done, else with where it stands."""
    document = job_document(job, standing(call, [job])(job))
    headers = {"Location": document["location"]}
    if job.state == "done":
        stored = result_of(call.session, job.tenant_id, job.content_id)
        if stored is None:
            raise Problem("not-found", f"the answer of {job.id} was deleted")
        document["result"] = msgspec.Raw(stored.content)
        headers["ETag"] = stored.etag
    return Answer(200, document, headers=headers)


def standing(call: Call, jobs: Sequence[Job]) -> Callable[[Job], dict[str, Any] | None]:
    """What says where each of these jobs stands; the queue is looked at if one has not ended."""
    if all(has_ended(job) for job in jobs):
        return lambda job: None
    return call.state.queue.look(call.session)


def get_job(call: Call, job_id: str, kind: str | None) -> Answer:
    """A job of this kind, by its id; a plan by its plan id too."""
    if kind == "plan" and job_id.startswith("sha256:"):
        content_id = content_of_answer(call.session, call.tenant, job_id)
        found = job_for(call.session, call.tenant, content_id) if content_id else None
        if found is None:
            raise Problem("not-found", f"there is no plan {job_id[:80]}")
        return shown(call, found)
    return shown(call, find_job(call.session, call.tenant, job_id[:80], kind))


def get_jobs(call: Call, kind: str | None) -> Answer:
    """A page of the tenant's jobs; `state`, `graph` and (where all kinds are) `kind` filter."""
    place, limit = paging(call)
    state = call.query.get("state")
    if state is not None and state not in STATES:
        raise BadInput(f"{state[:40]!r}", field="state", expected=", ".join(STATES))
    kind = kind or call.query.get("kind")
    if kind is not None and kind not in COLLECTIONS:
        raise BadInput(f"{kind[:40]!r}", field="kind", expected=", ".join(COLLECTIONS))
    graph = call.query.get("graph")
    rows = list_jobs(
        call.session, call.tenant, place, limit, kind=kind, state=state, graph_id=graph
    )
    where = standing(call, rows)
    return Answer(
        document=page(
            rows,
            limit,
            by_creation,
            lambda job: job_item(job_document(job, where(job))),
        )
    )


def remove_job(call: Call, job_id: str, kind: str | None) -> Answer:
    """Cancel: 200 with the job as it is now; a running one ends within a second or so."""
    job = find_job(call.session, call.tenant, job_id[:80], kind)
    cancel_job(call.session, job)
    return Answer(200, job_document(job))
