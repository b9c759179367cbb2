"""Agents: tokens, lists, drains; and what an agent itself says: heartbeats, claims, reports."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from service.edge import Answer, Call
from service.handlers.graphs import paging
from service.json_body import convert, read_object
from service.problems import not_found
from service.report_shapes import (
    DrainRequest,
    HeartbeatRequest,
    Report,
    ReportsRequest,
    TokenRequest,
    Unread,
    beat_of,
    reports_of,
)
from service.state import State
from service.store.agents import (
    Beat,
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
from shardwise.errors import BadInput


def place(state: State) -> None:
    """After a change: give free slots to launches that wait for them."""
    state.gangs.place()


def see_time(state: State) -> None:
    """Before a look: see the leases that have run out, whether or not a worker sweeps."""
    state.gangs.sweep_lazily()


def _body(call: Call) -> dict[str, Any]:
    return read_object(call.body or b"{}", call.settings.max_json_depth)


def parse_token(call: Call) -> TokenRequest:
    """The body of `POST /v1/agents/tokens`, which may be empty."""
    ask = convert(_body(call), TokenRequest)
    if len(ask.name) > 200:
        raise BadInput("too long", field="name", expected="at most 200 characters")
    return ask


def post_token(call: Call) -> Answer:
    """201 with a token that enrols so many agents; it is shown this once."""
    ask: TokenRequest = call.parsed
    token, expires_at = make_token(
        call.session, call.tenant, ask.name, ask.expires_s, call.idempotency_key, ask.uses
    )
    document = {
        "schema": "shardwise.enrolment-token/1",
        "token": token,
        "name": ask.name,
        "uses": ask.uses,
        "expires_at": iso(expires_at),
    }
    return Answer(201, document)


def get_agents(call: Call) -> Answer:
    """A page of the tenant's agents."""
    at, limit = paging(call)
    seen = list_agents(call.session, call.tenant, at, limit)
    return Answer(
        document=page(seen, limit, lambda one: (one.agent.created_at, one.agent.id), _item)
    )


def _item(seen: Seen) -> dict[str, Any]:
    return agent_item(agent_document(seen))


def get_agent(call: Call, agent_id: str) -> Answer:
    """One agent with its inventory and jobs."""
    return Answer(document=agent_document(find_agent(call.session, call.tenant, agent_id[:80])))


def remove_agent(call: Call, agent_id: str) -> Answer:
    """204: its key is revoked and its jobs are lost."""
    delete_agent(call.session, call.tenant, agent_id[:80], call.state.gangs.rules)
    return Answer(204, after=[place])


def parse_drain(call: Call) -> DrainRequest:
    """The body, which may be empty."""
    return convert(_body(call), DrainRequest)


def drain_agent(call: Call, agent_id: str, drained: bool) -> Answer:
    """200 with the agent as it is now."""
    ask: DrainRequest = call.parsed
    rules = call.state.gangs.rules
    set_drained(call.session, call.tenant, agent_id[:80], drained, ask.reason, rules)
    answer = get_agent(call, agent_id)
    answer.after = [place]
    return answer


def parse_heartbeat(call: Call) -> Beat:
    """The body of a heartbeat."""
    return beat_of(convert(_body(call), HeartbeatRequest))


def post_heartbeat(call: Call) -> Answer:
    """200 with the jobs to stop; the agent's lease and its jobs' are renewed."""
    agent_id = _own_id(call)
    beat: Beat = call.parsed
    found = heartbeat(call.session, agent_id, beat, call.state.gangs.rules)
    if found is None:
        raise not_found("agent", agent_id)
    stop, wanted = found
    document = {
        "lease_s": call.settings.agent_lease_s,
        "stop": stop,
        "inventory_wanted": wanted,
    }
    # New slots or a restart may let a launch start; else placing is the sweeper's.
    return Answer(document=document, after=[place] if beat.inventory is not None else [])


def claim_assignment(call: Call) -> Answer:
    """The agent's next assignment, or null."""
    rules = call.state.gangs.rules
    part = claim(call.session, _own_id(call), rules)
    if part is None:
        return Answer(document={"assignment": None})
    launch = call.session.get_one(Launch, part.launch_id)
    record(
        call.session,
        tenant=call.tenant,
        key_id=call.principal.key_id,
        request_id=call.request_id,
        action="assignments.claim",
        target=f"{launch.id} {part.id}",
        status=200,
    )
    return Answer(document={"assignment": _assignment(call, launch, part, rules.lease_s)})


def _assignment(call: Call, launch: Launch, part: Assignment, lease_s: float) -> dict[str, Any]:
    content = None if launch.graph_id is None else graph_content(call.session, launch.graph_id)
    graph = None if content is None else msgspec.Raw(content)
    plan = plan_of_launch(call.session, launch.id)
    nodes = count_parts(call.session, launch)
    return assignment_document(launch, part, nodes, graph, plan, lease_s)


def parse_reports(call: Call) -> list[Report | Unread]:
    """The reports; those that cannot be read are refused one by one."""
    return reports_of(convert(_body(call), ReportsRequest), call.settings.max_reports)


def post_reports(call: Call) -> Answer:
    """200: which were accepted, which refused and why. Each counts once, however often it comes."""
    reports: list[Report | Unread] = call.parsed
    agent_id = _own_id(call)
    bounds = Bounds(call.settings.max_log_lines, call.settings.max_log_bytes)
    room, size = call.room, len(call.body)
    full_day = day_is_full(call.session, room, size)
    rules = call.state.gangs.rules
    taken = take_reports(call.session, agent_id, reports, rules, bounds, room, full_day)
    if taken is None:
        raise not_found("agent", agent_id)
    count_bytes(call.session, call.tenant, size)
    document = {
        "accepted": taken.accepted,
        "refused": [{"id": name, "reason": why} for name, why in taken.refused.items()],
    }

    def count(state: State) -> None:
        _count(state, reports, taken)

    return Answer(document=document, after=[count, *([place] if taken.ended else [])])


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


def _own_id(call: Call) -> str:
    """The agent that calls: the edge has seen that its key is bound to it."""
    assert call.principal.agent_id is not None
    return call.principal.agent_id
