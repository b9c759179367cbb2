"""Agents: tokens, lists, drains; and agents' own calls: heartbeats, claims, reports."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import not_found
from service.cluster.heartbeat import Heartbeat
from service.cluster.reports import (
    DrainRequest,
    HeartbeatRequest,
    Report,
    ReportsRequest,
    TokenRequest,
    Unread,
    beat_of,
    reports_of,
)
from service.edge.context import RequestContext, Result
from service.edge.state import State
from service.handlers.graphs import paging
from service.store.agents import (
    Seen,
    agent_document,
    delete_agent,
    find_agent,
    heartbeat,
    list_agents,
    set_drained,
)
from service.store.enrolment import make_token
from service.store.gangs import claim
from service.store.graphs import graph_content
from service.store.ids import iso
from service.store.launch_tables import Assignment, Launch
from service.store.launches import assignment_document, count_parts, plan_of_launch
from service.store.pages import page
from service.store.quotas import count_bytes, day_is_full
from service.store.records import record
from service.store.reports import Bounds, Taken, take_reports
from service.store.summaries import agent_item
from shardwise.errors import BadInput, InternalError
from shardwise.validation import convert


def place(state: State) -> None:
    """After a change: gives free slots to launches that wait for them."""
    state.gangs.place()


def see_time(state: State) -> None:
    """Before a read: handles expired leases, whether or not a worker sweeps."""
    state.gangs.sweep_lazily()


def _body(context: RequestContext) -> dict[str, Any]:
    return read_object(context.body or b"{}", context.settings.max_json_depth)


def parse_token(context: RequestContext) -> TokenRequest:
    """Returns the body of `POST /v1/agents/tokens`, which may be empty."""
    ask = convert(_body(context), TokenRequest)
    if len(ask.name) > 200:
        raise BadInput("too long", field="name", expected="at most 200 characters")
    return ask


def post_token(context: RequestContext) -> Result:
    """Returns 201 with a token that enrols `uses` agents; it is shown only once."""
    ask: TokenRequest = context.parsed
    token, expires_at = make_token(
        context.session, context.tenant, ask.name, ask.expires_s, context.idempotency_key, ask.uses
    )
    document = {
        "schema": "shardwise.enrolment-token/1",
        "token": token,
        "name": ask.name,
        "uses": ask.uses,
        "expires_at": iso(expires_at),
    }
    return Result(201, document)


def get_agents(context: RequestContext) -> Result:
    """Returns a page of the tenant's agents."""
    at, limit = paging(context)
    seen = list_agents(context.session, context.tenant, at, limit)
    return Result(
        document=page(seen, limit, lambda one: (one.agent.created_at, one.agent.id), _item)
    )


def _item(seen: Seen) -> dict[str, Any]:
    return agent_item(agent_document(seen))


def get_agent(context: RequestContext, agent_id: str) -> Result:
    """Returns one agent with its inventory and jobs."""
    return Result(
        document=agent_document(find_agent(context.session, context.tenant, agent_id[:80]))
    )


def remove_agent(context: RequestContext, agent_id: str) -> Result:
    """Returns 204: the agent's key is revoked and its jobs are lost."""
    delete_agent(context.session, context.tenant, agent_id[:80], context.state.gangs.rules)
    return Result(204, after=[place])


def parse_drain(context: RequestContext) -> DrainRequest:
    """Returns the body, which may be empty."""
    return convert(_body(context), DrainRequest)


def drain_agent(context: RequestContext, agent_id: str, drained: bool) -> Result:
    """Returns 200 with the agent as it is now."""
    ask: DrainRequest = context.parsed
    rules = context.state.gangs.rules
    set_drained(context.session, context.tenant, agent_id[:80], drained, ask.reason, rules)
    result = get_agent(context, agent_id)
    result.after = [place]
    return result


def parse_heartbeat(context: RequestContext) -> Heartbeat:
    """Returns the body of a heartbeat."""
    return beat_of(convert(_body(context), HeartbeatRequest))


def post_heartbeat(context: RequestContext) -> Result:
    """Returns 200 with the jobs to stop; renews the leases of the agent and its jobs."""
    agent_id = _own_id(context)
    beat: Heartbeat = context.parsed
    outcome = heartbeat(context.session, agent_id, beat, context.state.gangs.rules)
    if outcome is None:
        raise not_found("agent", agent_id)
    stop, wanted = outcome
    document = {
        "lease_s": context.settings.agent_lease_s,
        "stop": stop,
        "inventory_wanted": wanted,
    }
    # New slots or a restart may let a launch start; otherwise the sweeper places launches.
    return Result(document=document, after=[place] if beat.inventory is not None else [])


def claim_assignment(context: RequestContext) -> Result:
    """Returns the agent's next assignment, or null."""
    rules = context.state.gangs.rules
    part = claim(context.session, _own_id(context), rules)
    if part is None:
        return Result(document={"assignment": None})
    launch = context.session.get_one(Launch, part.launch_id)
    record(
        context.session,
        tenant=context.tenant,
        key_id=context.principal.key_id,
        request_id=context.request_id,
        action="assignments.claim",
        target=f"{launch.id} {part.id}",
        status=200,
    )
    return Result(document={"assignment": _assignment(context, launch, part, rules.lease_s)})


def _assignment(
    context: RequestContext, launch: Launch, part: Assignment, lease_s: float
) -> dict[str, Any]:
    content = None if launch.graph_id is None else graph_content(context.session, launch.graph_id)
    graph = None if content is None else msgspec.Raw(content)
    plan = plan_of_launch(context.session, launch.id)
    nodes = count_parts(context.session, launch)
    return assignment_document(launch, part, nodes, graph, plan, lease_s)


def parse_reports(context: RequestContext) -> list[Report | Unread]:
    """Returns the reports; those that cannot be read are refused one by one."""
    return reports_of(convert(_body(context), ReportsRequest), context.settings.max_reports)


def post_reports(context: RequestContext) -> Result:
    """Returns 200: which were accepted, and which refused and why.

    A report counts once, however often it is sent.
    """
    reports: list[Report | Unread] = context.parsed
    agent_id = _own_id(context)
    bounds = Bounds(context.settings.max_log_lines, context.settings.max_log_bytes)
    room, size = context.room, len(context.body)
    full_day = day_is_full(context.session, room, size)
    rules = context.state.gangs.rules
    taken = take_reports(context.session, agent_id, reports, rules, bounds, room, full_day)
    if taken is None:
        raise not_found("agent", agent_id)
    count_bytes(context.session, context.tenant, size)
    document = {
        "accepted": taken.accepted,
        "refused": [{"id": name, "reason": why} for name, why in taken.refused.items()],
    }

    def count(state: State) -> None:
        _count(state, reports, taken)

    return Result(document=document, after=[count, *([place] if taken.ended else [])])


def _count(state: State, reports: list[Report | Unread], taken: Taken) -> None:
    metrics = state.metrics.agents
    metrics.reports.labels("accepted").inc(len(taken.accepted))
    metrics.reports.labels("refused").inc(len(taken.refused))
    clock = time.time()
    for report in reports:
        if not isinstance(report, Unread) and report.at_s is not None:
            metrics.report_lag.observe(max(clock - report.at_s, 0.0))
    for kind, errors in taken.measured:
        metrics.observe(kind, errors)


def _own_id(context: RequestContext) -> str:
    """Returns the id of the calling agent; the edge has checked that its key is bound to it."""
    agent_id = context.principal.agent_id
    if agent_id is None:
        raise InternalError("the call of an agent was let in with a key of no agent")
    return agent_id
