"""`/`: the form that asks, and the newest jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.edge.context import Handler
from service.edge.state import state_of
from service.handlers import graphs as graph_handlers
from service.handlers import hardware as hardware_handlers
from service.handlers import jobs as job_handlers
from service.page.forms import file_of, question_body, read_form, texts
from service.page.inner import read, send
from service.page.price_fields import with_groups
from service.page.render import in_thread, redirect, respond
from service.page.views.job_rows import graph_names, rows_of
from shardwise.answers import OBJECTIVES
from shardwise.answers.order import ORDERS
from shardwise.capture.shipped import shipped_names
from shardwise.cost.named_options import NAMES
from shardwise.cost.options import MOMENTS, RECOMPUTE, ZERO_STAGES
from shardwise.cost.software import FRAMEWORKS, KERNELS
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    PlanRequest,
    QuoteRequest,
)
from shardwise.documents.questions import COLLECTIONS
from shardwise.errors import BadInput, ShardwiseError
from shardwise.pipeline.asked import ANY
from shardwise.sharding.precision import PRECISIONS
from shardwise.trainers.spaces import SPACES

KINDS: Mapping[str, tuple[str, str]] = {
    "frontier": ("Frontier", "every strategy that no other beats in both memory and time"),
    "curve": ("Curve", "the shortest time for every number of GPUs"),
    "plan": ("Plan", "one strategy, operator by operator"),
    "quote": ("Quote", "offers, or parts of a profile, on which it fits, cheapest first"),
    "compare": ("Compare", "what practitioners and other systems use, beside the best found"),
}
_ASK: Mapping[str, tuple[Handler, type[Any]]] = {
    "frontier": (job_handlers.ask_frontier, FrontierRequest),
    "curve": (job_handlers.ask_curve, CurveRequest),
    "plan": (job_handlers.ask_plan, PlanRequest),
    "quote": (job_handlers.ask_quote, QuoteRequest),
    "compare": (job_handlers.ask_comparison, CompareRequest),
}
_FIELDS = {
    "max_gpus": "gpus",
    "bundles": "gpus",
    "deadline_s": "deadline_h",
    "zero": "zero-0",
    "offers_csv": "offers",
}
"""The form's fields for those of a problem that have other names."""

RECENT = "8"
MOST = "200"
DEFAULTS = {"kind": "frontier", "gpus": "8", "graph": "shipped:gpt2", "hardware": "dgx-a100-80gb"}


async def show(request: Request) -> Response:
    """Returns the form, filled in from the query."""
    given = {name: value[:2000] for name, value in request.query_params.items() if value}
    return await _form(request, {**DEFAULTS, **given})


async def take(request: Request) -> Response:
    """Asks the question. Returns the job's page, or the form with the reason of a refusal."""
    form = await read_form(request)
    values = texts(form)
    kind = values.get("kind", "frontier")
    if kind not in _ASK:
        raise BadInput(f"got {kind[:40]!r}", field="kind", expected=", ".join(_ASK))
    handler, shape = _ASK[kind]
    try:
        offers = await file_of(form, "offers")
        body = question_body(values, None if offers is None else _text(*offers))
        result = await send(
            request,
            handler,
            f"{COLLECTIONS[kind]}.create",
            body=body,
            content_type="application/json",
            parse=job_handlers.parse_request(shape),
        )
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status not in (404, 413, 422, 429):
            raise
        return await _form(request, values, problem)
    return redirect(f"/jobs/{result.document['id']}")


async def _form(
    request: Request, values: Mapping[str, str], problem: Problem | None = None
) -> Response:
    graphs = await read(request, graph_handlers.get_graphs, {"limit": MOST})
    hardware = await read(request, hardware_handlers.get_hardware_list, {"limit": MOST})
    recent = await read(request, _recent, {"limit": RECENT})
    field = "" if problem is None else str(problem.extra.get("field") or "")
    field = field.removeprefix("options.").partition("[")[0].partition(":")[0]
    if values.get("kind") == "quote" and field == "hardware":
        field = "parts"
    return await respond(
        request,
        "ask.html",
        status=200 if problem is None else problem.status,
        values=values,
        problem=problem,
        wrong=_FIELDS.get(field, field),
        kinds=KINDS,
        graphs=graphs["items"],
        shipped=shipped_names(),
        presets=state_of(request).presets.names(),
        hardware=hardware["items"],
        builtin=hardware["builtin"],
        divisible=await in_thread(request, with_groups, [*hardware["items"], *hardware["builtin"]]),
        objectives=OBJECTIVES,
        spaces=(ANY, *SPACES),
        orders=("", *ORDERS),
        has=frozenset(NAMES),
        optimizers=tuple(MOMENTS),
        frameworks=tuple(FRAMEWORKS),
        kernels=KERNELS,
        stages=ZERO_STAGES,
        recompute=RECOMPUTE,
        precisions=tuple(PRECISIONS),
        jobs=rows_of(recent["items"], graph_names(graphs["items"])),
    )


def _recent(context: Any) -> Any:
    return job_handlers.get_jobs(context, None)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(
            "not UTF-8 text", file=name[:80], field="offers", expected="a CSV file"
        ) from None
