"""The tools of `/mcp`: questions, with the bodies that HTTP takes, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec

from service.edge.context import Handler, Result
from service.handlers.graphs import get_graphs
from service.handlers.hardware import get_hardware_list
from service.handlers.jobs import (
    ask_comparison,
    ask_curve,
    ask_frontier,
    ask_plan,
    ask_pricing,
    ask_quote,
    get_job,
)
from service.handlers.plan_export import Wanted, plan_of
from service.mcp.asking import Answer, Asking, ToolQuestion
from shardwise import validation
from shardwise.answers.curve import require_some_fit
from shardwise.answers.explain import explain
from shardwise.documents import Curve, Explanation, Export
from shardwise.documents.questions import QUESTIONS
from shardwise.documents.stored import GraphSummary, HardwarePage
from shardwise.mcp.arguments import CONFIGURATION, FILE, Arguments, ExportArguments, PlanId
from shardwise.mcp.lists import GraphsPage, shipped_graphs
from shardwise.mcp.tool import Tool
from shardwise.mcp.tools import TOOLS as LOCAL

ABOUT = {
    "graph": "The model's training graph: shipped:NAME, the id of one that was uploaded "
    "(list_graphs), or preset:NAME of a preset that the service has.",
    "hardware": "A built-in profile, or the id of one that was uploaded (list_hardware).",
    "gpus": "GPUs of the job: exactly this number is used. Of a profile with groups by group: "
    "v100=2,1080ti=4.",
    "max_gpus": "The largest number of GPUs.",
    "objective": "Which point of the frontier: the fastest, the smallest, the knee, the cheapest.",
    "point": "The plan_id of a point of the frontier, instead of an objective.",
    "space": "A trainer: only the strategies that it can run; any: all strategies.",
    "configuration": CONFIGURATION,
    "file": FILE,
    "priority": "Among your own questions, -10 to 10: higher ones are computed first.",
    "offers_csv": "Offers as CSV text with the SkyPilot catalog's columns; left out, the shipped "
    "list prices.",
    "steps": "Steps of the whole job; a deadline or a budget needs them.",
    "max_instances": "The most instances of one offer.",
    "combine": "The most kinds of instances together in one answer, 1 to 3.",
    "proposals": "Of FlexFlow's random search.",
    "seed": "Of random searches.",
    "prices": "With hardware, whose parts are quoted: USD per hour of one device by group.",
    "plan": "The `id` of a plan that this service has made.",
}
"""Descriptions of arguments that the types of requests do not have."""


class StoredPlan(Arguments, frozen=True):
    """A plan of the service."""

    plan: PlanId


class StoredExport(ExportArguments, frozen=True):
    """A plan of the service, and what reads it."""

    plan: PlanId


class PageArguments(Arguments, frozen=True):
    """Where in a list a page begins."""

    cursor: Annotated[
        Annotated[str, msgspec.Meta(max_length=1000)] | None,
        msgspec.Meta(description="`next` of the page before; left out, the first page."),
    ] = None


async def explain_plan(asking: Asking, ask: StoredPlan) -> Explanation:
    """Returns how a stored plan is split and what it costs, or what the stages of a pipeline do."""

    def explained(result: Result) -> None:
        result.document = explain(plan_of(result))

    explanation: Explanation
    explanation = await asking.read(_stored(ask.plan), finish=explained)
    return explanation


async def export_plan(asking: Asking, ask: StoredExport) -> Export:
    """Returns a stored plan or pipeline as a trainer or a scheduler reads it."""
    want = Wanted(ask.format, ask.to, ask.gpu_type)
    exported: Export = await asking.read(_stored(ask.plan), finish=want.export)
    return exported


async def list_graphs(asking: Asking, ask: PageArguments) -> GraphsPage:
    """Returns a page of the tenant's graphs; the first one has the shipped ones too."""
    page = await asking.read(get_graphs, _query(ask))
    shipped = shipped_graphs().graphs if ask.cursor is None else []
    return GraphsPage(validation.convert(page["items"], list[GraphSummary]), page["next"], shipped)


async def list_hardware(asking: Asking, ask: PageArguments) -> HardwarePage:
    """Returns a page of the tenant's profiles, and the built-in ones."""
    return validation.convert(await asking.read(get_hardware_list, _query(ask)), HardwarePage)


async def make_curve(asking: Asking, ask: msgspec.Struct) -> Curve:
    """Returns a curve. Raises `Infeasible` when no count fits."""
    curve: Curve = await ToolQuestion("curve", ask_curve)(asking, ask)
    require_some_fit(curve)
    return curve


def _query(ask: PageArguments) -> dict[str, str]:
    return {} if ask.cursor is None else {"cursor": ask.cursor}


def _stored(plan: str) -> Handler:
    return partial(get_job, job_id=plan, kind="plan")


def _offered(
    name: str,
    arguments: type[msgspec.Struct],
    answer: Answer,
    document: type[msgspec.Struct] | None = None,
    description: str | None = None,
) -> Tool[Answer]:
    """Returns the tool of this name as the service offers it."""
    local: Tool[Any] = LOCAL[name]
    return replace(
        local,
        arguments=arguments,
        answer=answer,
        document=document or local.document,
        description=description or local.description,
        about={key: text for key, text in ABOUT.items() if key in arguments.__struct_fields__},
    )


TOOLS: Mapping[str, Tool[Answer]] = {
    tool.name: tool
    for tool in (
        _offered("plan", QUESTIONS["plan"], ToolQuestion("plan", ask_plan)),
        _offered("curve", QUESTIONS["curve"], make_curve),
        _offered("quote", QUESTIONS["quote"], ToolQuestion("quote", ask_quote)),
        _offered("frontier", QUESTIONS["frontier"], ToolQuestion("frontier", ask_frontier)),
        _offered("compare", QUESTIONS["compare"], ToolQuestion("compare", ask_comparison)),
        _offered("price_configuration", QUESTIONS["pricing"], ToolQuestion("pricing", ask_pricing)),
        _offered(
            "explain",
            StoredPlan,
            explain_plan,
            description="How each group of operators of a plan is split and what it costs, and why "
            "not a neighbouring strategy; of a pipeline what each stage does and keeps.",
        ),
        _offered("export", StoredExport, export_plan),
        _offered(
            "list_hardware",
            PageArguments,
            list_hardware,
            HardwarePage,
            "The uploaded and the built-in hardware profiles: what `hardware` may be.",
        ),
        _offered(
            "list_graphs",
            PageArguments,
            list_graphs,
            GraphsPage,
            "The uploaded and the shipped training graphs: what `graph` may be.",
        ),
    )
}
