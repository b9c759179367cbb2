"""Launches: requested, read, listed, stopped; their logs."""

from __future__ import annotations

from typing import Any

import msgspec

from service.base.problems import not_found
from service.cluster.gangs import LAUNCH_STATES
from service.cluster.kinds import hosts_of
from service.cluster.launch_request import (
    check_hosts,
    check_launch,
    check_plan,
    entry_point_of,
    ranks_of,
)
from service.edge.context import RequestContext, Result
from service.handlers.agents import place
from service.handlers.graphs import paging, resolve_graph
from service.handlers.jobs import parse_request
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
from shardwise.documents import LaunchRequest, unfolded
from shardwise.errors import BadInput

MAX_LOG_PAGE = 2000
DEFAULT_LOG_PAGE = 500
MOST_PLAN_BYTES = 2**23
"""Characters that the folded plan of a small request may unfold to."""


def parse_launch(context: RequestContext) -> LaunchRequest:
    """Returns the body of `POST /v1/launches`, its plan unfolded: agents may be of earlier
    releases."""
    ask: LaunchRequest = parse_request(LaunchRequest)(context)
    try:
        ask.plan = unfolded(ask.plan, most_bytes=MOST_PLAN_BYTES)
    except BadInput as error:
        raise error.inside("plan") from None
    check_launch(ask)
    return ask


def post_launch(context: RequestContext) -> Result:
    """Returns 201 with the launch; it is placed once it is committed."""
    ask: LaunchRequest = context.parsed
    plan = _plan(context, ask)
    if isinstance(ask.agents, list):
        require_agents(context.session, context.tenant, ask.agents)
    request = _request(ask, plan)
    launch = make_launch(
        context.session,
        context.tenant,
        request=request,
        plan=plan,
        summary={} if plan is None else _summary(context, plan),
        graph_id=_graph_id(context, ask, plan),
        max_launches=int(context.limit("max_launches")),
        room=context.room,
        key_id=context.principal.key_id,
        request_id=context.request_id,
    )
    document = launch_document(launch)
    headers = {"Location": document["location"]}
    return Result(201, document, headers=headers, after=[place], recall=("launch", launch.id))


def _plan(context: RequestContext, ask: LaunchRequest) -> dict[str, Any] | None:
    if ask.plan_id is None:
        return ask.plan
    content_id = content_of_answer(context.session, context.tenant, ask.plan_id)
    stored = result_of(context.session, context.tenant, content_id) if content_id else None
    if stored is None:
        raise not_found("plan", ask.plan_id[:80])
    plan: dict[str, Any] = msgspec.json.decode(stored.content)
    check_plan(plan)
    return plan


def _request(ask: LaunchRequest, plan: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the request as it is stored: complete, without the plan.

    For a plan on several kinds it has the `hosts` that the plan needs.
    """
    request: dict[str, Any] = msgspec.to_builtins(ask)
    del request["plan"], request["schema"]
    request["entry_point"] = entry_point_of(ask)
    hosts = [] if plan is None else hosts_of(plan)
    if hosts:
        check_hosts(ask, hosts)
        if isinstance(ask.agents, int):
            request["agents"] = len(hosts)
        request["hosts"] = msgspec.to_builtins(hosts)
        request["ranks_per_agent"] = max(host.ranks for host in hosts)
    else:
        request["ranks_per_agent"] = ranks_of(ask, None if plan is None else plan["gpus"])
    return request


def _graph_id(
    context: RequestContext, ask: LaunchRequest, plan: dict[str, Any] | None
) -> str | None:
    """Returns the id of the graph that the agents get; `shardwise.run` needs the plan's."""
    if ask.operators is not None:
        return resolve_graph(context, ask.operators)
    if plan is None:
        return None
    if entry_point_of(ask) == "shardwise.run":
        return owned_graph(context.session, context.tenant, plan["graph"][:100]).graph_id
    owned = context.session.get(OwnedGraph, (context.tenant, plan["graph"][:100]))
    return None if owned is None else owned.graph_id


def _summary(context: RequestContext, plan: dict[str, Any]) -> dict[str, Any]:
    """Returns the plan's list entry."""
    nodes = plan.get("nodes") if isinstance(plan.get("nodes"), int) else None
    given = plan.get("hardware_id")
    hardware_id, hardware = base_of(
        context.session,
        context.tenant,
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


def get_launches(context: RequestContext) -> Result:
    """Returns a page of the tenant's launches; `state` filters."""
    at, limit = paging(context)
    state = context.query.get("state")
    if state is not None and state not in LAUNCH_STATES:
        raise BadInput(f"got {state[:40]!r}", field="state", expected=", ".join(LAUNCH_STATES))
    rows = list_launches(context.session, context.tenant, at, limit, state)
    return Result(document=page(rows, limit, by_creation, _item))


def _item(launch: Launch) -> dict[str, Any]:
    return launch_item(launch_document(launch))


def get_launch(context: RequestContext, launch_id: str) -> Result:
    """Returns one launch with its assignments and what it measured."""
    return Result(
        document=whole_launch(context, find_launch(context.session, context.tenant, launch_id[:80]))
    )


def remove_launch(context: RequestContext, launch_id: str) -> Result:
    """Stops a launch. Returns 200 with it as it is now; it ends when its agents report so.

    With `forget=true` an ended one is deleted: returns 204.
    """
    forget = context.query.get("forget", "false")
    if forget not in ("true", "false"):
        raise BadInput(f"got {forget[:40]!r}", field="forget", expected="true or false")
    if forget == "true":
        forget_launch(context.session, context.tenant, launch_id[:80])
        return Result(204)
    launch = stop_launch(context.session, context.tenant, launch_id[:80])
    return Result(200, whole_launch(context, launch))


def whole_launch(context: RequestContext, launch: Launch) -> dict[str, Any]:
    """Returns a launch with its assignments and runs."""
    return {
        **launch_document(launch),
        "assignments": [part_document(part) for part in parts_of(context.session, launch)],
        "runs": [
            {**run_document(run), "measurement": run.document}
            for run in runs_of(context.session, launch)
        ],
    }


def get_logs(context: RequestContext, launch_id: str) -> Result:
    """Returns lines of the launch's output following `after`, of one `rank` or of all."""
    launch = find_launch(context.session, context.tenant, launch_id[:80])
    behind = _number(context, "after", 0, 10**15)
    rank = _number(context, "rank", -1, 10**6)
    limit = _number(context, "limit", DEFAULT_LOG_PAGE, MAX_LOG_PAGE)
    if limit == 0:
        raise BadInput("0", field="limit", expected=f"1 to {MAX_LOG_PAGE}")
    lines = read_lines(context.session, launch, behind, None if rank < 0 else rank, limit)
    return Result(document={**lines, "state": launch.state})


def _number(context: RequestContext, name: str, default: int, most: int) -> int:
    text = context.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise BadInput(f"got {text[:40]!r}", field=name, expected=f"a whole number up to {most}")
    return int(text)
