"""SkyPilot's admin policy: a task that names a graph gets the resources that its curve names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from service.base.problems import Problem, problem_of
from service.edge.context import RequestContext, Result
from service.handlers.graphs import resolve_graph
from service.handlers.jobs import job_of, limits_of, require_no_failure
from service.questions.ingest import reader
from service.questions.question import INFEASIBLE_SCHEMA, Question, curve_question, quote_question
from service.questions.skypilot_task import (
    Asked,
    UserRequest,
    asked,
    changed,
    mutated,
    user_request,
)
from service.store.curve_answers import settled_answer
from service.store.hardware import find_hardware
from shardwise.documents import CurveRequest, QuoteRequest
from shardwise.documents.frontier import axes_of
from shardwise.errors import ShardwiseError
from shardwise.schedulers.counts import Count, Counts
from shardwise.schedulers.skypilot import SOLD

REFUSED = (404, 422)
"""Statuses of errors in the task itself; SkyPilot shows its user the text of a 400."""


@dataclass(frozen=True)
class Policy:
    """A request, and what its task asks of Shardwise; None if nothing, it passes through."""

    request: UserRequest
    ask: Asked | None


def parse_policy(context: RequestContext) -> Policy:
    """Returns the request of the body."""
    request = user_request(context.body, context.settings.max_json_depth)
    try:
        return Policy(request, asked(request, reader(context.settings, context.reading)))
    except ShardwiseError as error:
        raise rejected(error) from None


def known_policy(context: RequestContext) -> Result:
    """Returns 200 with the mutated request; 202 while the advice is not known."""
    policy: Policy = context.parsed
    if policy.ask is None:
        return _task_result(policy.request, policy.request.task)
    try:
        question = _question(context, policy.ask, keep=False)
        stored = settled_answer(context.session, context.tenant, question)
        if stored is None:
            require_no_failure(context, question)
            return Result(202)
        return _task_result(
            policy.request, _chosen(policy.ask, msgspec.json.decode(stored.content))
        )
    except ShardwiseError as error:
        raise rejected(error) from None


def start_policy(context: RequestContext) -> Result:
    """Returns 202: the advice is being computed."""
    policy: Policy = context.parsed
    if policy.ask is None:
        return _task_result(policy.request, policy.request.task)
    try:
        job, created = job_of(context, _question(context, policy.ask, keep=True))
    except ShardwiseError as error:
        raise rejected(error) from None
    return Result(202, ring=[job.id] if created else [])


def late_policy(context: RequestContext) -> Result:
    """Raises `Problem`: the advice takes longer than SkyPilot waits."""
    raise Problem("rejected", "the advice is still being computed: launch again in a minute")


def rejected(error: ShardwiseError) -> Problem:
    """Returns the problem that SkyPilot shows its user.

    Others (a full queue, a defect) are returned unchanged.
    """
    problem = problem_of(error)
    return Problem("rejected", problem.detail) if problem.status in REFUSED else problem


def _question(context: RequestContext, ask: Asked, *, keep: bool) -> Question:
    graph = resolve_graph(context, ask.graph, keep=keep)
    if ask.hardware is None:
        quote = QuoteRequest(
            ask.graph, steps=ask.steps, deadline_s=ask.deadline_s, budget_usd=ask.budget_usd
        )
        return quote_question(quote, graph, limits_of(context))
    hardware = find_hardware(context.session, context.tenant, ask.hardware)
    hardware.require_no_groups("hardware")
    most = ask.max_gpus or hardware.per_node
    return curve_question(
        CurveRequest(ask.graph, ask.hardware, most), graph, hardware, limits_of(context)
    )


def _chosen(ask: Asked, document: dict[str, Any]) -> str:
    """Returns the task's YAML with the count that the answer names.

    Raises `Problem` when nothing fits.
    """
    if document["schema"] == INFEASIBLE_SCHEMA:
        raise Problem("rejected", document["reason"])
    if ask.hardware is not None:
        counts = Counts.of(document).on_nodes_of(SOLD)
        return changed(ask, counts.gpu_type, counts.best(ask.efficiency))
    most = ask.max_gpus or float("inf")
    _, time = axes_of(bool(document.get("overlap")))
    for offer in document["offers"]:
        if offer["gpus"] <= most and offer.get("meets_deadline", True):
            count = Count(offer["gpus"], offer["instances"], offer[time])
            return changed(ask, offer["gpu_kind"], count, spot=offer["spot"])
    first = next((row["reason"] for row in document["not_offered"]), "every offer is too late")
    raise Problem("rejected", f"{document['graph_name']}: no offer is suitable: {first}")


def _task_result(request: UserRequest, task: str) -> Result:
    return Result(document=mutated(request, task))
