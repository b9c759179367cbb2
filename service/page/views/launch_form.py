"""`/launches/new`: the form that starts a stored plan, or measurements, on agents."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.cluster.launch_request import BUILT_IN
from service.handlers import agents as agent_handlers
from service.handlers import graphs as graph_handlers
from service.handlers import jobs as job_handlers
from service.handlers import launches as handlers
from service.page.forms import lines, number, read_form, set_if, size, texts, whole
from service.page.inner import read, send
from service.page.render import redirect, respond
from service.page.views.inventory import devices_in_short
from service.page.views.job_rows import graph_names, rows_of
from service.questions.question import INFEASIBLE_SCHEMA
from shardwise.errors import BadInput, ShardwiseError

MOST = "200"
_FIELDS = {"plan_id": "plan", "ranks_per_agent": "ranks", "agents_named": "agents"}
"""The form's fields for those of a problem that have other names."""


async def show(request: Request) -> Response:
    """Returns the form, filled in from the query: `plan` is the job of a plan."""
    given = {name: value[:2000] for name, value in request.query_params.items() if value}
    return await _form(request, {"kind": "run", "agents": "1", **given})


async def take(request: Request) -> Response:
    """Starts a launch. Returns its page, or the form with the reason of a refusal."""
    values = texts(await read_form(request))
    try:
        result = await send(
            request,
            handlers.post_launch,
            "launches.create",
            body=msgspec.json.encode(await _body(request, values)),
            content_type="application/json",
            parse=handlers.parse_launch,
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status not in (404, 413, 422, 429):
            raise
        return await _form(request, {"kind": "run", **values}, problem)
    return redirect(f"/launches/{result.document['id']}")


async def _body(request: Request, values: dict[str, str]) -> dict[str, Any]:
    """Returns the body of `POST /v1/launches`."""
    kind = values.get("kind", "run")
    body: dict[str, Any] = {"kind": kind}
    if kind == "run":
        if "plan" in values:
            body["plan_id"] = await _plan_id(request, values["plan"])
        if "entry_point" in values:
            body["entry_point"] = values["entry_point"]
    else:
        set_if(body, values, "hardware", _word)
        set_if(body, values, "operators", _word)
    named = values.get("agents_named")
    body["agents"] = named.split(",") if named else whole(values.get("agents", "1"), "agents")
    if "ranks" in values:
        body["ranks_per_agent"] = whole(values["ranks"], "ranks")
    for name, reads in (
        ("device_kind", _word),
        ("memory_limit_bytes", size),
        ("time_limit_s", number),
        ("arguments", lines),
        ("environment", _variables),
    ):
        set_if(body, values, name, reads)
    return body


async def _plan_id(request: Request, job_id: str) -> str:
    """Returns the id of a job's plan. Raises `BadInput` if it has none."""
    job = await read(request, partial(job_handlers.get_job, job_id=job_id, kind="plan"))
    if job["state"] != "done":
        raise BadInput(f"{job_id[:40]} is {job['state']}", field="plan", expected="a plan")
    if job["result"]["schema"] == INFEASIBLE_SCHEMA:
        raise BadInput("nothing fits", field="plan", expected="a plan that fits")
    return str(job["result"]["id"])


def _word(text: str, field: str) -> str:
    return text


def _variables(text: str, field: str) -> dict[str, str]:
    variables = {}
    for line in lines(text, field):
        name, equals, value = line.partition("=")
        if not equals:
            raise BadInput(f"got {line[:40]!r}", field=field, expected="NAME=value on each line")
        variables[name.strip()] = value.strip()
    return variables


async def _form(
    request: Request, values: dict[str, str], problem: Problem | None = None
) -> Response:
    done = {"state": "done", "limit": MOST}
    plans = await read(request, partial(job_handlers.get_jobs, kind="plan"), done)
    agents = await read(request, agent_handlers.get_agents, {"limit": MOST})
    graphs = await read(request, graph_handlers.get_graphs, {"limit": MOST})
    entries = {
        entry["name"]
        for agent in agents["items"]
        for entry in agent["inventory"].get("entry_points", [])
    }
    field = "" if problem is None else str(problem.extra.get("field") or "")
    field = field.partition("[")[0].partition(".")[0]
    return await respond(
        request,
        "launch_form.html",
        status=200 if problem is None else problem.status,
        values=values,
        named=values.get("agents_named", "").split(","),
        problem=problem,
        wrong=_FIELDS.get(field, field),
        plans=rows_of(plans["items"], graph_names(graphs["items"])),
        graphs=graphs["items"],
        entry_points=[*BUILT_IN[:1], *sorted(entries - set(BUILT_IN))],
        agents=[
            {**agent, "devices": devices_in_short(agent["inventory"])} for agent in agents["items"]
        ],
    )
