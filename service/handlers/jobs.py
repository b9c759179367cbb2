"""Questions and the jobs that answer them: asked, read, listed, cancelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from service.base.json_body import read_object
from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.edge.curve_forms import BUNDLES, COUNTS, SCHEDULES, SPACE, STAGES
from service.edge.curve_forms import NAMES as FORM_NAMES
from service.handlers.forecast import ends_in_s, retry_after
from service.handlers.graphs import learn_names, paging, resolve_graph
from service.questions.possible import require_possible
from service.questions.question import (
    Limits,
    Question,
    compare_question,
    curve_question,
    frontier_question,
    plan_question,
    pricing_question,
    quote_question,
)
from service.questions.search_options import options_from_query
from service.store.curve_answers import left_of, may_go_on, settled_answer, so_far
from service.store.estimates import Estimate, estimate_of
from service.store.graphs import owned_graph
from service.store.hardware import find_hardware
from service.store.job_search import JobFilter, find_jobs, words_of
from service.store.jobs import (
    cancel_job,
    failed_lately,
    find_job,
    find_or_make_job,
    has_ended,
    job_document,
    job_for,
)
from service.store.pages import page_of
from service.store.results import Stored, content_of_answer, result_of
from service.store.summaries import job_item
from service.store.tables import STATES, Job
from shardwise.cost.named_options import NAMES
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
)
from shardwise.documents.curve import counts_from
from shardwise.documents.questions import COLLECTIONS
from shardwise.errors import BadInput
from shardwise.pipeline.asked import AUTO, stages_from
from shardwise.step_sizes import NAMES as SIZES
from shardwise.validation import convert

_QUESTIONS = (
    FrontierRequest, CurveRequest, PlanRequest, PricingRequest, QuoteRequest, CompareRequest,
)  # fmt: skip
_PRIORITY = re.compile(r"-?[0-9]{1,3}")
FAILED_FOR_S = 60.0
"""Seconds for which a failure answers repeated GETs; `POST` computes again at once."""


def parse_request(shape: type[Any]) -> Callable[[RequestContext], Any]:
    """Returns a parser of the body as one of the request shapes."""

    def parse(context: RequestContext) -> Any:
        ask = convert(read_object(context.body, context.settings.max_json_depth), shape)
        if isinstance(ask, _QUESTIONS):
            learn_names(context, ask.graph, ask.options)
        return ask

    return parse


def limits_of(context: RequestContext) -> Limits:
    """Returns the limits on one question of this caller."""
    return Limits(context.settings.max_gpus, context.settings.max_curve_gpus)


def ask_frontier(context: RequestContext) -> Result:
    """`POST /v1/frontiers`."""
    ask: FrontierRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, frontier_question(ask, graph, hardware, limits_of(context)))


def ask_plan(context: RequestContext) -> Result:
    """`POST /v1/plans`."""
    ask: PlanRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, plan_question(ask, graph, hardware, limits_of(context)))


def ask_pricing(context: RequestContext) -> Result:
    """`POST /v1/pricings`."""
    ask: PricingRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, pricing_question(ask, graph, hardware, limits_of(context)))


def ask_quote(context: RequestContext) -> Result:
    """`POST /v1/quotes`."""
    ask: QuoteRequest = context.parsed
    hardware = None
    if ask.hardware is not None:
        hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, quote_question(ask, graph, limits_of(context), hardware))


def ask_comparison(context: RequestContext) -> Result:
    """`POST /v1/comparisons`."""
    ask: CompareRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, compare_question(ask, graph, hardware, limits_of(context)))


def ask_curve(context: RequestContext) -> Result:
    """`POST /v1/curves`: the same question as the GET asks, with a body."""
    ask: CurveRequest = context.parsed
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph)
    return job_answer(context, curve_question(ask, graph, hardware, limits_of(context)))


def curve_from_query(context: RequestContext, *, keep: bool) -> Question:
    """Returns the question of `GET /v1/curves?graph=&hardware=&max_gpus=` and options by name.

    `counts`, `stages` and `schedules` are texts as on the command line. With groups of devices each
    bundle is one `bundles`, instead of `max_gpus`. The format of the answer is not part of it
    (service/edge/curve_forms.py).
    """
    values: dict[str, Any] = {}
    options: dict[str, list[str]] = {}
    for name, value in context.query.multi_items():
        if name in NAMES:
            options.setdefault(name, []).append(value)
        elif name in ("graph", "hardware", SPACE):
            values[name] = value
        elif name == COUNTS:
            values[name] = counts_from(value, name)
        elif name == BUNDLES:
            values.setdefault(name, []).append(value)
        elif name == STAGES:
            values[name] = stages_from(value) or AUTO
        elif name == SCHEDULES:
            values[name] = [part.strip() for part in value.split(",")]
        elif name == "priority":
            if not _PRIORITY.fullmatch(value):
                raise BadInput(f"got {value[:40]!r}", field=name, expected="a whole number")
            values[name] = int(value)
        elif name == "max_gpus" or name in SIZES:
            values[name] = whole_from_query(value, name)
        elif name not in FORM_NAMES:
            raise BadInput("unknown parameter", field=name[:80], expected="graph, hardware, …")
    ask = convert(values, CurveRequest)
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph, keep=keep)
    return curve_question(ask, graph, hardware, limits_of(context), options_from_query(options))


def whole_from_query(value: str, name: str) -> int:
    """Returns a whole number of a query. Raises BadInput with its name."""
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise BadInput(f"got {value[:40]!r}", field=name, expected="a whole number from 1")
    return int(value)


def known_curve(context: RequestContext) -> Stored | None:
    """Returns the stored answer of a curve's query or None. Raises `Problem` if it just failed."""
    question = curve_from_query(context, keep=False)
    stored = settled_answer(context.session, context.tenant, question)
    if stored is None:
        require_no_failure(context, question)
    return stored


def require_no_failure(context: RequestContext, question: Question) -> None:
    """Raises a problem `failed` if the question failed just now.

    A client that polls for an answer must not cause repeated computations.
    """
    job = failed_lately(context.session, context.tenant, question.content_id, FAILED_FOR_S)
    if job is not None:
        raise Problem(
            "failed",
            (job.error or {}).get("detail", ""),
            headers={"Retry-After": str(int(FAILED_FOR_S))},
            job=job_document(job),
        )


def start_curve(context: RequestContext) -> Result:
    """Returns the job of a curve's query whose answer is not stored, created if needed."""
    return job_answer(context, curve_from_query(context, keep=True))


def job_answer(context: RequestContext, question: Question) -> Result:
    """Returns 200 with the answer if it is known, else 202 with the job that computes it."""
    job, created = job_of(context, question)
    result = shown(context, job)
    result.stores, result.recall = created, ("job", job.id)
    if job.state == "done":
        context.state.metrics.answers.labels(job.kind, "store").inc()
        return result
    result.status = 202
    ends_s = ends_in_s(context, job, result.document["queue"])
    result.headers["Retry-After"] = retry_after([ends_s])
    if created:
        result.ring = [job.id]
        context.state.metrics.answers.labels(job.kind, "computed").inc()
    else:
        context.state.metrics.answers.labels(job.kind, "joined").inc()
    return result


def job_of(context: RequestContext, question: Question) -> tuple[Job, bool]:
    """Returns the one job of a question, and whether it was created now."""
    summary = owned_graph(context.session, context.tenant, question.graph_id).summary
    require_possible(context.state.digests, question, summary)

    def estimate() -> Estimate:
        longest_s = float(context.limit("solve_time_s"))
        left = left_of(context.session, context.tenant, question)
        return estimate_of(context.session, context.tenant, left, summary, longest_s)

    return find_or_make_job(
        context.session,
        context.tenant,
        question,
        max_queued=int(context.limit("max_queued")),
        key_id=context.principal.key_id,
        request_id=context.request_id,
        trace=context.trace,
        priority=question.priority,
        estimate=estimate,
        goes_on=lambda job: may_go_on(context.session, job, question),
    )


class Begun(NamedTuple):
    """The job of a question, as an item of a list; `ends_s` are the seconds until it ends."""

    job: Job
    created: bool
    item: dict[str, Any]
    ends_s: float


def begun(context: RequestContext, question: Question) -> Begun:
    """Returns the job of a question that one call asks among others. Raises as `job_of`."""
    job, created = job_of(context, question)
    queue = standing(context, [job])(job)
    item = job_item(job_document(job, queue))
    return Begun(job, created, item, ends_in_s(context, job, queue))


def shown(context: RequestContext, job: Job) -> Result:
    """Returns a job's document, with its result if it is done, else its place in the queue."""
    document = job_document(job, standing(context, [job])(job))
    headers = {"Location": document["location"]}
    if (known := so_far(context.session, job)) is not None:
        document["so_far"] = msgspec.Raw(known)
    if job.state == "done":
        stored = result_of(context.session, job.tenant_id, job.content_id)
        if stored is None:
            raise Problem("not-found", f"the answer of {job.id} was deleted")
        document["result"] = msgspec.Raw(stored.content)
        headers["ETag"] = stored.etag
    return Result(200, document, headers=headers)


def standing(
    context: RequestContext, jobs: Sequence[Job]
) -> Callable[[Job], dict[str, Any] | None]:
    """Returns a function that gives each job's place in the queue.

    The queue is read if one of the jobs has not ended.
    """
    if all(has_ended(job) for job in jobs):
        return lambda job: None
    return context.state.queue.look(context.session)


def get_job(context: RequestContext, job_id: str, kind: str | None) -> Result:
    """Returns a job of this kind, by its id; a plan by its plan id too."""
    if kind == "plan" and job_id.startswith("sha256:"):
        content_id = content_of_answer(context.session, context.tenant, job_id)
        job = job_for(context.session, context.tenant, content_id) if content_id else None
        if job is None:
            raise Problem("not-found", f"there is no plan {job_id[:80]}")
        return shown(context, job)
    return shown(context, find_job(context.session, context.tenant, job_id[:80], kind))


def get_jobs(context: RequestContext, kind: str | None) -> Result:
    """Returns a page of the tenant's jobs.

    `state`, `graph`, `hardware`, `text` and (in the list of all kinds) `kind` filter.
    """
    place, limit = paging(context)
    state = context.query.get("state")
    if state is not None and state not in STATES:
        raise BadInput(f"got {state[:40]!r}", field="state", expected=", ".join(STATES))
    kind = kind or context.query.get("kind")
    if kind is not None and kind not in COLLECTIONS:
        raise BadInput(f"got {kind[:40]!r}", field="kind", expected=", ".join(COLLECTIONS))
    query = context.query
    wanted = JobFilter(
        kind, state, query.get("graph"), query.get("hardware"), words_of(query.get("text"), "text")
    )
    rows, more = find_jobs(context.session, context.tenant, place, limit, wanted)
    where = standing(context, rows)
    items = [job_item(job_document(job, where(job))) for job in rows]
    return Result(document=page_of(items, more))


def remove_job(context: RequestContext, job_id: str, kind: str | None) -> Result:
    """Cancels a job. Returns 200 with the job as it is now; a running one ends in about 1 s."""
    job = find_job(context.session, context.tenant, job_id[:80], kind)
    cancel_job(context.session, job)
    return Result(200, job_document(job))
