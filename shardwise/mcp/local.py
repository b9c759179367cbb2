"""Answers of the tools, computed in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from shardwise import answers as advice
from shardwise import documents
from shardwise.answers import Options
from shardwise.answers.curve import places_of_curve, require_some_fit
from shardwise.answers.explain import explain
from shardwise.answers.plan import read_plan
from shardwise.answers.quote import require_steps
from shardwise.capture.shipped import load_graph
from shardwise.cost.named_options import options_from_request
from shardwise.cost.options import Progress
from shardwise.documents import (
    Comparison,
    Curve,
    Explanation,
    Export,
    Frontier,
    Plan,
    Pricing,
    Quote,
)
from shardwise.errors import BadInput, NotFound
from shardwise.hardware import Devices, devices_of, load_hardware, parse_offers, read_offers
from shardwise.mcp.arguments import (
    CompareArguments,
    CurveArguments,
    ExplainArguments,
    ExportArguments,
    FrontierArguments,
    ListArguments,
    PlanArguments,
    PricingArguments,
    QuoteArguments,
)
from shardwise.mcp.lists import Graphs, Profiles, built_in_profiles, shipped_graphs
from shardwise.pipeline.asked import ANY
from shardwise.question.question import Question, QuestionKind, staged_arguments
from shardwise.question.refusals import check
from shardwise.schedulers.exported import exported
from shardwise.search.pipelines.searched import check_schedules
from shardwise.solve import solve
from shardwise.trainers.curve import curve_for
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of

MOST_PLANS = 32
"""Plans of a session that are kept, to be named by their id."""
PLAN_ID = "sha256:"


class Desk:
    """The plans and pipelines that one session made. Threads may share it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def given(self, plan: str | dict[str, Any]) -> Plan:
        """Returns a plan or a pipeline of this session, of a file, or the one that is given.

        Raises `NotFound` for an id that is not among the last `MOST_PLANS`, and `BadInput`.
        """
        if isinstance(plan, dict):
            try:
                return documents.read(plan, documents.Plan)
            except BadInput as error:
                raise error.inside("plan") from None
        if not plan.startswith(PLAN_ID):
            return read_plan(plan)
        with self._lock:
            if plan not in self._plans:
                raise NotFound(
                    f"plan: this session has made no plan {plan[:80]} (expected the id of one of "
                    f"its last {MOST_PLANS} plans, a file, or the document)"
                )
            return self._plans[plan]

    def keep(self, plan: Plan) -> None:
        """Keeps a plan or a pipeline, and forgets the oldest beyond `MOST_PLANS`."""
        with self._lock:
            self._plans[plan.id] = plan
            self._plans.move_to_end(plan.id)
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)


Answer: TypeAlias = Callable[[Desk, Any, Progress], Any]
"""Returns the document of a tool for its arguments.

Raises `BadInput` with the argument that is refused, `Infeasible` when nothing fits, and `Cancelled`
or a partial answer when `progress` returned False.
"""


def list_graphs(desk: Desk, ask: ListArguments, progress: Progress) -> Graphs:
    """Returns the graphs that are shipped."""
    return shipped_graphs()


def list_profiles(desk: Desk, ask: ListArguments, progress: Progress) -> Profiles:
    """Returns the profiles that are built in."""
    return built_in_profiles()


def make_frontier(desk: Desk, ask: FrontierArguments, progress: Progress) -> Frontier:
    """Returns the frontier of a graph."""
    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    devices = devices_of(ask.gpus, hardware)
    staged = _beside(ask, options, "frontier", devices)
    return advice.frontier(load_graph(ask.graph), hardware, devices, options, progress, **staged)


def make_plan(desk: Desk, ask: PlanArguments, progress: Progress) -> Plan:
    """Returns a plan, or where stages are asked for a pipeline; the session keeps it."""
    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    devices = devices_of(ask.gpus, hardware)
    question = {
        "objective": ask.objective,
        "point": ask.point,
        "space": ask.space,
        "order": ask.order,
        **_staged(ask),
    }
    check(Question.of(options, "plan", devices, **question), requested=True)
    graph = load_graph(ask.graph)
    plan = solve(graph, hardware, devices, options=options, progress=progress, **question)
    desk.keep(plan)
    return plan


def _staged(
    ask: FrontierArguments | PlanArguments | CurveArguments | QuoteArguments | CompareArguments,
) -> dict[str, Any]:
    """Returns the stages and schedules of a question. Raises `BadInput` for schedules that are not
    searched."""
    if ask.schedules:
        check_schedules(ask.schedules)
    return staged_arguments(ask.stages, ask.schedules)


def _beside(
    ask: FrontierArguments | CurveArguments | QuoteArguments | CompareArguments,
    options: Options,
    kind: QuestionKind,
    devices: Devices | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the arguments of a question whose answer has the strategies without a pipeline
    anyway: none where it asks for no pipeline.

    Raises `BadInput` for what is in the table of refusals.
    """
    staged = _staged(ask)
    question = Question.of(options, kind, devices, **more, **staged)
    check(question, requested=True)
    if not question.piped:
        return {}
    return {"stages": staged["stages"], "schedules": question.asked_schedules}


def price_given(desk: Desk, ask: PricingArguments, progress: Progress) -> Pricing:
    """Returns what a trainer's configuration takes, and what to change in it."""
    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    configuration = configuration_of(ask.configuration, ask.gpus, ask.file)
    return price_configuration(
        load_graph(ask.graph),
        hardware,
        ask.gpus,
        configuration,
        options,
        file=ask.file,
        progress=progress,
    )


def make_curve(desk: Desk, ask: CurveArguments, progress: Progress) -> Curve:
    """Returns a curve. Raises `Infeasible` when no count fits."""
    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    places_of_curve(hardware, ask.max_gpus, ask.counts, ask.bundles)
    several_kinds = bool(hardware.groups)
    staged = _beside(ask, options, "curve", several_kinds=several_kinds, space=ask.space)
    make: Callable[..., Curve] = partial(advice.curve, **staged)
    if ask.space != ANY:
        make = partial(curve_for, trainer=ask.space, **(_staged(ask) if staged else {}))
    curve = make(
        load_graph(ask.graph),
        hardware,
        ask.max_gpus,
        options,
        progress,
        counts=ask.counts,
        bundles=ask.bundles,
    )
    require_some_fit(curve)
    return curve


def make_quote(desk: Desk, ask: QuoteArguments, progress: Progress) -> Quote:
    """Returns offers by price."""
    require_steps(ask.steps, ask.deadline_s, ask.budget_usd)
    options: Options = options_from_request(ask.options)
    several_kinds = ask.hardware is not None or ask.combine > 1
    staged = _beside(ask, options, "quote", several_kinds=several_kinds)
    offers = read_offers() if ask.offers_csv is None else parse_offers(ask.offers_csv, "offers_csv")
    return advice.quote(
        load_graph(ask.graph),
        offers,
        steps=ask.steps,
        deadline_s=ask.deadline_s,
        budget_usd=ask.budget_usd,
        max_instances=ask.max_instances,
        combine=ask.combine,
        hardware=None if ask.hardware is None else load_hardware(ask.hardware),
        prices=ask.prices,
        options=options,
        progress=progress,
        **staged,
    )


def compare_systems(desk: Desk, ask: CompareArguments, progress: Progress) -> Comparison:
    """Returns other systems' strategies beside the best one that was found."""
    from shardwise.peers import compare

    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    devices = devices_of(ask.gpus, hardware)
    staged = _beside(ask, options, "compare", devices)
    return compare(
        load_graph(ask.graph),
        hardware,
        devices,
        options,
        progress,
        proposals=ask.proposals,
        seed=ask.seed,
        **staged,
    )


def explain_plan(desk: Desk, ask: ExplainArguments, progress: Progress) -> Explanation:
    """Returns how a plan or a pipeline is split, one that is given or made here."""
    if ask.plan is not None:
        return explain(desk.given(ask.plan))
    if ask.graph is None or ask.hardware is None or ask.gpus is None:
        missing = "graph" if ask.graph is None else "gpus" if ask.hardware else "hardware"
        raise BadInput("missing", field=missing, expected="plan, or graph, hardware and gpus")
    asked = PlanArguments(
        graph=ask.graph,
        hardware=ask.hardware,
        gpus=ask.gpus,
        objective=ask.objective,
        options=ask.options,
    )
    return explain(make_plan(desk, asked, progress))


def export_given(desk: Desk, ask: ExportArguments, progress: Progress) -> Export:
    """Returns a plan or a pipeline as a trainer or a scheduler reads it."""
    return exported(desk.given(ask.plan), ask.format, ask.to, ask.gpu_type)
