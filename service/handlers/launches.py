"""Launches: asked for, looked at, listed, stopped; their logs."""

from __future__ import annotations

from typing import Any

import msgspec

from service.edge import Answer, Call
from service.gang import LAUNCH_STATES
from service.handlers.agents import place
from service.handlers.graphs import paging, resolve_graph
from service.handlers.jobs import parse_request
from service.launch_request import LaunchRequest, check_launch, check_plan, entry_point_of, ranks_of
from service.problems import not_found
from service.store.graphs import owned_graph
from service.store.hardware import base_of
from service.store.launch_logs import read_lines
from service.store.launch_tables import Launch
from service.store.launches import (
    find_launch,
    forget_launch,
    launch_document,
    list_launches,
    make_launch,
    part_document,
    parts_of,
    require_agents,
    runs_of,
    stop_launch,
)
from service.store.pages import by_creation, page
from service.store.results import content_of_answer, result_of
from service.store.runs import run_document
from service.store.summaries import few_numbers, launch_item
from service.store.tables import OwnedGraph
from shardwise.errors import BadInput

MAX_LOG_PAGE = 2000
DEFAULT_LOG_PAGE = 500


def parse_launch(call: Call) -> LaunchRequest:
    """The body of `POST /v1/launches`."""
    ask: LaunchRequest = parse_request(LaunchRequest)(call)
    check_launch(ask)
    return ask


def post_launch(call: Call) -> Answer:
    """201 with the launch; placing it comes when it stands."""
    ask: LaunchRequest = call.parsed
    plan = _plan(call, ask)
    if isinstance(ask.agents, list):
        require_agents(call.session, call.tenant, ask.agents)
    request = _request(ask, None if plan is None else plan["gpus"])
    launch = make_launch(
        call.session,
        call.tenant,
        request=request,
        plan=plan,
        summary={} if plan is None else _summary(call, plan),
        graph_id=_graph_id(call, ask, plan),
        max_launches=int(call.limit("max_launches")),
        room=call.room,
        key_id=call.principal.key_id,
        request_id=call.request_id,
    )
    document = launch_document(launch)
    headers = {"Location": document["location"]}
    return Answer(201, document, headers=headers, after=[place], recall=("launch", launch.id))


def _plan(call: Call, ask: LaunchRequest) -> dict[str, Any] | None:
    if ask.plan_id is None:
        return ask.plan
    content_id = content_of_answer(call.session, call.tenant, ask.plan_id)
    stored = result_of(call.session, call.tenant, content_id) if content_id else None
    if stored is None:
        raise not_found("plan", ask.plan_id[:80])
    plan: dict[str, Any] = msgspec.json.decode(stored.content)
    check_plan(plan)
    return plan


def _request(ask: LaunchRequest, gpus: int | None) -> dict[str, Any]:
    """The request as it is stored: complete, without the plan."""
    request: dict[str, Any] = msgspec.to_builtins(ask)
    del request["plan"], request["schema"]
    request["entry_point"] = entry_point_of(ask)
    request["ranks_per_agent"] = ranks_of(ask, gpus)
    return request


def _graph_id(call: Call, ask: LaunchRequest, plan: dict[str, Any] | None) -> str | None:
    """The graph that the agents get: the plan's, which `shardwise.run` cannot do without."""
    if ask.operators is not None:
        return resolve_graph(call, ask.operators)
    if plan is None:
        return None
    if entry_point_of(ask) == "shardwise.run":
        return owned_graph(call.session, call.tenant, plan["graph"][:100]).graph_id
    owned = call.session.get(OwnedGraph, (call.tenant, plan["graph"][:100]))
    return None if owned is None else owned.graph_id


def _summary(call: Call, plan: dict[str, Any]) -> dict[str, Any]:
    """What lists say of the plan."""
    nodes = plan.get("nodes") if isinstance(plan.get("nodes"), int) else None
    given = plan.get("hardware_id")
    hardware_id, hardware = base_of(
        call.session,
        call.tenant,
        plan["hardware"],
        given if isinstance(given, str) else None,
        nodes,
    )
    return {
        "plan_id": plan["id"],
        "graph": plan["graph"],
        "graph_name": str(plan.get("graph_name", ""))[:200],
        "hardware": hardware,
        "hardware_id": hardware_id,
        "gpus": plan["gpus"],
        "nodes": nodes,
        "predicted": few_numbers(plan["predicted"]),
    }


def get_launches(call: Call) -> Answer:
    """A page of the tenant's launches; `state` filters."""
    at, limit = paging(call)
    state = call.query.get("state")
    if state is not None and state not in LAUNCH_STATES:
        raise BadInput(f"{state[:40]!r}", field="state", expected=", ".join(LAUNCH_STATES))
    rows = list_launches(call.session, call.tenant, at, limit, state)
    return Answer(document=page(rows, limit, by_creation, _item))


def _item(launch: Launch) -> dict[str, Any]:
    return launch_item(launch_document(launch))


def get_launch(call: Call, launch_id: str) -> Answer:
    """One launch with its assignments and what it measured."""
    return Answer(document=_whole(call, find_launch(call.session, call.tenant, launch_id[:80])))


def remove_launch(call: Call, launch_id: str) -> Answer:
    """Stop: 200 with the launch as it is now; it has ended when its agents have said so.

    With `forget=true` an ended one is deleted: 204.
    """
    forget = call.query.get("forget", "false")
    if forget not in ("true", "false"):
        raise BadInput(f"{forget[:40]!r}", field="forget", expected="true or false")
    if forget == "true":
        forget_launch(call.session, call.tenant, launch_id[:80])
        return Answer(204)
    launch = stop_launch(call.session, call.tenant, launch_id[:80])
    return Answer(200, _whole(call, launch))


def _whole(call: Call, launch: Launch) -> dict[str, Any]:
    return {
        **launch_document(launch),
        "assignments": [part_document(part) for part in parts_of(call.session, launch)],
        "runs": [
            {**run_document(run), "measurement": run.document}
            for run in runs_of(call.session, launch)
        ],
    }


def get_logs(call: Call, launch_id: str) -> Answer:
    """Lines of the launch's output behind `after`, of one `rank` or of all."""
    launch = find_launch(call.session, call.tenant, launch_id[:80])
    behind = _number(call, "after", 0, 10**15)
    rank = _number(call, "rank", -1, 10**6)
    limit = _number(call, "limit", DEFAULT_LOG_PAGE, MAX_LOG_PAGE)
    if limit == 0:
        raise BadInput("0", field="limit", expected=f"1 to {MAX_LOG_PAGE}")
    found = read_lines(call.session, launch, behind, None if rank < 0 else rank, limit)
    return Answer(document={**found, "state": launch.state})


def _number(call: Call, name: str, default: int, most: int) -> int:
    text = call.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise BadInput(f"{text[:40]!r}", field=name, expected=f"a whole number up to {most}")
    return int(text)
