"""`POST /v1/curves/bulk`: many curves in one call, for schedulers with many jobs.

What is known comes at once, the rest is computed: the answer has a state for each question, and a
question that is refused says why and holds up no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import Problem, problem_of
from service.edge.context import RequestContext, Result
from service.handlers.forecast import retry_after
from service.handlers.graphs import learn_names, resolve_graph
from service.handlers.jobs import begun, limits_of, require_no_failure
from service.questions.question import Question, curve_question
from service.store.curve_answers import settled_answer, so_far
from service.store.hardware import find_hardware
from service.store.results import Stored
from shardwise.documents import CurveRequest, CurvesRequest
from shardwise.errors import BadInput, NotFound, ShardwiseError
from shardwise.validation import convert

SCHEMA = "shardwise.curves/1"
MOST_LEARNT = 4
"""Questions whose rules on operators are checked here; workers check those of the others."""


REFUSALS = (BadInput, NotFound, Problem)
"""The error of one question, or of its current answer."""


@dataclass
class Gathered:
    """The items of the answer; `missing` are the places of those that are to be computed."""

    items: list[dict[str, Any]] = field(default_factory=list)
    missing: list[tuple[int, Question]] = field(default_factory=list)


def parse_curves(context: RequestContext) -> CurvesRequest:
    """Returns the request of the body."""
    value = read_object(context.body, context.settings.max_json_depth)
    ask: CurvesRequest = convert(value, CurvesRequest)
    for one in [one for one in ask.questions if one.options.get("pins")][:MOST_LEARNT]:
        learn_names(context, one.graph, one.options)
    return ask


def known_curves(context: RequestContext) -> Result:
    """Returns 200 with the answer if nothing is to be computed; else 202 without a body."""
    gathered = _gather(context, keep=False)
    return Result(202) if gathered.missing else _result(gathered, 200)


def start_curves(context: RequestContext) -> Result:
    """Returns 202: some curves are being computed."""
    gathered = _gather(context, keep=True)
    ring, ends = [], []
    for place, question in gathered.missing:
        try:
            one = begun(context, question)
        except REFUSALS as error:
            gathered.items[place] = _refused(context, error)
            continue
        if one.created:
            ring.append(one.job.id)
        item: dict[str, Any] = {"state": one.job.state, "job": one.item}
        if (known := so_far(context.session, one.job)) is not None:
            item["so_far"] = msgspec.Raw(known)
        gathered.items[place] = item
        ends.append(one.ends_s)
    result = _result(gathered, 202 if ends else 200)
    result.ring = ring
    if ends:
        result.headers["Retry-After"] = retry_after(ends)
    return result


def _gather(context: RequestContext, *, keep: bool) -> Gathered:
    ask: CurvesRequest = context.parsed
    gathered = Gathered()
    for place, one in enumerate(ask.questions):
        try:
            question = _question(context, one, keep=keep)
            stored = settled_answer(context.session, context.tenant, question)
            if stored is None:
                require_no_failure(context, question)
                gathered.missing.append((place, question))
            gathered.items.append({} if stored is None else _known(context, stored))
        except REFUSALS as error:
            gathered.items.append(_refused(context, error))
    return gathered


def _question(context: RequestContext, ask: CurveRequest, *, keep: bool) -> Question:
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    graph = resolve_graph(context, ask.graph, keep=keep)
    return curve_question(ask, graph, hardware, limits_of(context))


def _known(context: RequestContext, stored: Stored) -> dict[str, Any]:
    context.state.metrics.answers.labels("curve", "store").inc()
    return {"state": "done", "etag": stored.etag, "result": msgspec.Raw(stored.content)}


def _refused(context: RequestContext, error: ShardwiseError) -> dict[str, Any]:
    return {"state": "failed", "error": problem_of(error).document(context.request_id)}


def _result(gathered: Gathered, status: int) -> Result:
    document = {"schema": SCHEMA, "items": gathered.items}
    return Result(status, document, repeatable=True)
