"""Answers of the tools, computed in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from shardwise import advise
from shardwise.advise import Options
from shardwise.advise.curve import places_of_curve, require_some_fit
from shardwise.advise.explain_pipeline import explain_either
from shardwise.advise.pipeline_points import check_pipelines
from shardwise.advise.pipelines import checked_pipeline_or_plan, read_pipeline_or_plan
from shardwise.advise.quote import require_steps
from shardwise.capture.shipped import load_graph
from shardwise.cost.named_options import check_replayed, options_from_request
from shardwise.cost.options import Progress
from shardwise.documents import (
    Comparison,
    Curve,
    Explanation,
    Export,
    Frontier,
    Pipeline,
    PipelineExplanation,
    Plan,
    Pricing,
    Quote,
)
from shardwise.errors import BadInput, NotFound
from shardwise.hardware import devices_of, load_hardware, parse_offers, read_offers
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
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, FASTEST, asks_for_stages, check_asked
from shardwise.schedulers.exported import exported
from shardwise.search.pipelines.searched import check_schedules
from shardwise.trainers.curve import check_curve, curve_for
from shardwise.trainers.plan import check_point, plan_for
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of
from shardwise.trainers.spaces import ANY

MOST_PLANS = 32
"""Plans of a session that are kept, to be named by their id."""
PLAN_ID = "sha256:"


class Desk:
    """The plans and pipelines that one session made. Threads may share it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, Pipeline | Plan] = OrderedDict()
        self._lock = threading.Lock()

    def given(self, plan: str | dict[str, Any]) -> Pipeline | Plan:
        """Returns a plan or a pipeline of this session, of a file, or the one that is given.

        Raises `NotFound` for an id that is not among the last `MOST_PLANS`, and `BadInput`.
        """
        if isinstance(plan, dict):
            try:
                return checked_pipeline_or_plan(plan)
            except BadInput as error:
                raise error.inside("plan") from None
        if not plan.startswith(PLAN_ID):
            return read_pipeline_or_plan(plan)
        with self._lock:
            if plan not in self._plans:
                raise NotFound(
                    f"plan: this session has made no plan {plan[:80]} (expected the id of one of "
                    f"its last {MOST_PLANS} plans, a file, or the document)"
                )
            return self._plans[plan]

    def keep(self, plan: Pipeline | Plan) -> None:
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
    staged = _staged(ask, options)
    if staged:
        check_asked(objective=FASTEST[0], space=ANY)
    return advise.frontier(load_graph(ask.graph), hardware, devices, options, progress, **staged)


def make_plan(desk: Desk, ask: PlanArguments, progress: Progress) -> Pipeline | Plan:
    """Returns a plan, or where stages are asked for a pipeline; the session keeps it."""
    options = options_from_request(ask.options)
    hardware = load_hardware(ask.hardware)
    devices = devices_of(ask.gpus, hardware)
    if staged := _staged(ask, options):
        check_asked(objective=ask.objective, space=ask.space, point=ask.point)
        graph = load_graph(ask.graph)
        pipeline = advise.pipeline_or_plan(
            graph, hardware, devices, options=options, progress=progress, **staged
        )
        desk.keep(pipeline)
        return pipeline
    make: Callable[..., Plan]
    if ask.space == ANY:
        make = partial(advise.plan, point=ask.point)
    else:
        check_point(ask.point)
        make = partial(plan_for, trainer=ask.space)
    plan = make(
        load_graph(ask.graph),
        hardware,
        devices,
        objective=ask.objective,
        options=options,
        progress=progress,
    )
    desk.keep(plan)
    return plan


def _staged(
    ask: FrontierArguments | PlanArguments | CurveArguments | QuoteArguments | CompareArguments,
    options: Options,
) -> dict[str, Any]:
    """Returns the arguments of a question about pipelines, none of one that asks for none.

    Raises `BadInput` as a service does, for schedules without stages and for options that pipelines
    do not have.
    """
    if ask.schedules:
        check_schedules(ask.schedules)
        if ask.stages is None:
            raise BadInput("of no pipeline", field="schedules", expected="none without stages")
    if not asks_for_stages(ask.stages):
        return {}
    check_replayed(check_pipelines, options)
    counts = None if isinstance(ask.stages, str) else ask.stages
    return {"stages": counts, "schedules": ask.schedules or DEFAULT_SCHEDULES}


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
    places = places_of_curve(hardware, ask.max_gpus, ask.counts, ask.bundles)
    if staged := _staged(ask, options):
        check_asked(objective=FASTEST[0], space=ask.space)
    make: Callable[..., Curve] = partial(advise.curve, **staged)
    if ask.space != ANY:
        check_curve(ask.space, places, options)
        make = partial(curve_for, trainer=ask.space)
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
    staged = _staged(ask, options)
    offers = read_offers() if ask.offers_csv is None else parse_offers(ask.offers_csv, "offers_csv")
    return advise.quote(
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
    return compare(
        load_graph(ask.graph),
        load_hardware(ask.hardware),
        ask.gpus,
        options,
        progress,
        proposals=ask.proposals,
        seed=ask.seed,
        **_staged(ask, options),
    )


def explain_plan(
    desk: Desk, ask: ExplainArguments, progress: Progress
) -> Explanation | PipelineExplanation:
    """Returns how a plan or a pipeline is split, one that is given or made here."""
    if ask.plan is not None:
        return explain_either(desk.given(ask.plan))
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
    return explain_either(make_plan(desk, asked, progress))


def export_given(desk: Desk, ask: ExportArguments, progress: Progress) -> Export:
    """Returns a plan or a pipeline as a trainer or a scheduler reads it."""
    return exported(desk.given(ask.plan), ask.format, ask.to, ask.gpu_type)
