"""SkyPilot's admin policy: a task that names a graph gets the resources that its curve names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from service.edge import Answer, Call
from service.handlers.graphs import resolve_graph
from service.handlers.jobs import job_of, limits_of, require_no_failure
from service.problems import Problem, problem_of
from service.questions import (
    INFEASIBLE_SCHEMA,
    CurveRequest,
    Question,
    QuoteRequest,
    curve_question,
    quote_question,
)
from service.skypilot_task import Asked, UserRequest, asked, changed, mutated, user_request
from service.store.hardware import find_hardware
from service.store.results import result_of
from shardwise.errors import ShardwiseError
from shardwise.schedulers.counts import Count, Counts
from shardwise.schedulers.skypilot import SOLD

REFUSED = (404, 422)
"""Statuses of what is wrong with the task itself; SkyPilot shows its user the text of a 400."""


@dataclass(frozen=True)
class Policy:
    """A request, and what its task asks of Shardwise; None: nothing, it passes through."""

    request: UserRequest
    ask: Asked | None


def parse_policy(call: Call) -> Policy:
    """The request of the body."""
    request = user_request(call.body, call.settings.max_json_depth)
    try:
        return Policy(request, asked(request))
    except ShardwiseError as error:
        raise rejected(error) from None


def known_policy(call: Call) -> Answer:
    """200 with the mutated request; a status of 202 while the advice is not known."""
    policy: Policy = call.parsed
    if policy.ask is None:
        return _answer(policy.request, policy.request.task)
    try:
        question = _question(call, policy.ask, keep=False)
        stored = result_of(call.session, call.tenant, question.content_id)
        if stored is None:
            require_no_failure(call, question)
            return Answer(202)
        return _answer(policy.request, _chosen(policy.ask, msgspec.json.decode(stored.content)))
    except ShardwiseError as error:
        raise rejected(error) from None


def start_policy(call: Call) -> Answer:
    """202: the advice is being computed."""
    policy: Policy = call.parsed
    assert policy.ask is not None, "what asks nothing is answered at once"
    try:
        job, made = job_of(call, _question(call, policy.ask, keep=True))
    except ShardwiseError as error:
        raise rejected(error) from None
    return Answer(202, ring=[job.id] if made else [])


def late_policy(call: Call) -> Answer:
    """What is said when the advice takes longer than SkyPilot waits."""
    raise Problem("rejected", "the advice is still being computed: launch again in a minute")


def rejected(error: ShardwiseError) -> Problem:
    """The problem that SkyPilot shows its user; others (a full queue, a defect) are their own."""
    problem = problem_of(error)
    return Problem("rejected", problem.detail) if problem.status in REFUSED else problem


def _question(call: Call, ask: Asked, *, keep: bool) -> Question:
    graph = resolve_graph(call, ask.graph, keep=keep)
    if ask.hardware is None:
        quote = QuoteRequest(
            ask.graph, steps=ask.steps, deadline_s=ask.deadline_s, budget_usd=ask.budget_usd
        )
        return quote_question(quote, graph, limits_of(call))
    hardware = find_hardware(call.session, call.tenant, ask.hardware)
    most = ask.max_gpus or hardware.per_node
    return curve_question(
        CurveRequest(ask.graph, ask.hardware, most), graph, hardware, limits_of(call)
    )


def _chosen(ask: Asked, document: dict[str, Any]) -> str:
    """The task's YAML with the count that the answer names; NotFound when nothing fits."""
    if document["schema"] == INFEASIBLE_SCHEMA:
        raise Problem("rejected", document["reason"])
    if ask.hardware is not None:
        counts = Counts.of(document).on_nodes_of(SOLD)
        return changed(ask, counts.gpu_type, counts.best(ask.efficiency))
    most = ask.max_gpus or float("inf")
    for offer in document["offers"]:
        if offer["gpus"] <= most and offer.get("meets_deadline", True):
            count = Count(offer["gpus"], offer["instances"], offer["time_s"])
            return changed(ask, offer["gpu_kind"], count, spot=offer["spot"])
    first = next((row["reason"] for row in document["not_offered"]), "every offer is too late")
    raise Problem("rejected", f"{document['graph_name']}: no offer will do: {first}")


def _answer(request: UserRequest, task: str) -> Answer:
    return Answer(document=mutated(request, task))
