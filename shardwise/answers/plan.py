"""A plan: one strategy, spelled out far enough to execute it without the solver.

`shardwise.plan/1`: the mesh; per operator its split and the layouts of its inputs and outputs;
per edge the sequence of collectives, forward and backward, and the copy that is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shardwise import documents, validation
from shardwise.answers.certificates import certificate, gap
from shardwise.answers.expected import expected_of, was_published
from shardwise.answers.frontier import heading, search_report
from shardwise.answers.mixed import place_costs, planned_cluster
from shardwise.answers.neighbours import with_neighbours, with_room
from shardwise.answers.order import PROGRAM, asked_order, ordered
from shardwise.answers.published import published_text
from shardwise.answers.remedies import answered
from shardwise.answers.simplest import simplest
from shardwise.answers.strategy import Strategy, choice_of
from shardwise.answers.summary import Summaries, fields
from shardwise.answers.timeline import timeline
from shardwise.collector import uncollected
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.program import assumed
from shardwise.cost.step_settings import StepSettings
from shardwise.documents import Plan, WholePlan
from shardwise.documents.plan import (
    Choice,
    Execution,
    Neighbour,
    NextBest,
    PlaceCost,
    PlannedCluster,
)
from shardwise.documents.prediction import Faster, Mixture, Prediction
from shardwise.errors import NotFound
from shardwise.files import read_bounded
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.pipeline.asked import FASTEST
from shardwise.policy.proposals import proposer
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.chosen import (
    Chosen,
    axes,
    fastest,
    lowest_peak,
    merge_frontiers,
    too_large,
)
from shardwise.search.fitting import search_fitting, search_frontier
from shardwise.search.group_alone import search_bundle
from shardwise.search.mixed.search import MixedSearch, Propose
from shardwise.search.next_best import next_best
from shardwise.search.search import Infeasible, Search, Subject
from shardwise.search.turning_point import turning_point

POINT = "point"
"""The `objective` of a plan requested by id."""


@uncollected()
def plan(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    *,
    objective: str = "mini-time",
    point: str | None = None,
    order: str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> WholePlan:
    """Returns the strategy that `objective` picks among those whose replayed step fits in memory.

    `mini-time`: the shortest iteration time, or with the option `simplest` the simplest strategy
    within epsilon of it (`simplest.py`). `mini-memory`: the lowest peak. `turning-point`:
    the knee of the frontier (the fastest that fits, when the knee does not). `mini-cost`: with a
    fixed number of GPUs the price of a step grows with its time alone, so it picks as
    `mini-time` does. With `point`, the `plan_id` of a point of the frontier, it is that point
    whatever the objective, and whether or not it fits. `order` is that in which operators run
    (`program`, `rank` or the better one, `auto`): by default the program's on devices of one kind
    and the better one on several kinds (docs/replay.md). Raises `Infeasible` when nothing fits,
    with what would (`remedies.py`), `NotFound` when the frontier of these options has no such
    point, `BadInput` for an unknown objective or order.
    """
    options, progress = assumed(options, hardware), progress or quiet
    devices = devices_of(gpus, hardware)
    check(Question.of(options, "plan", devices, objective=objective, point=point, order=order))
    graph = tuned(graph, options.tune)
    ask = partial(plan_only, graph, hardware, objective=objective, point=point, order=order)
    if not options.replays or point is not None:
        return ask(options, devices, progress)
    again = partial(ask, neighbours=False)
    return answered(ask, graph, options, devices, progress, again=again)


def plan_only(
    graph: Graph,
    hardware: Hardware,
    options: Options,
    devices: Devices,
    progress: Progress,
    *,
    objective: str = "mini-time",
    point: str | None = None,
    order: str | None = None,
    neighbours: bool = True,
) -> WholePlan:
    """Returns the plan as `plan` does; where nothing fits, what would is not tried.

    Without `neighbours` it is the answer before they are examined.
    """
    order = asked_order(order, devices)
    near_limit = objective in FASTEST and point is None
    search = search_fitting if near_limit else search_frontier
    propose = proposer(options)
    if near_limit and devices.of_groups:
        return _of_several_kinds(
            graph, hardware, devices, objective, order, options, progress, propose
        )
    searches = search(Subject.of(graph), hardware, devices, options, progress, propose)
    if point is not None:
        return plan_document(searches, _of_id(searches, point), POINT, order=order)
    if near_limit and neighbours and all(search.proof is not None for search in searches):
        searches, near = with_neighbours(searches, progress)
        answer = simplest(searches, choose(searches, objective), progress)
        near = [*near, *with_room(answer.chosen, answer.searches, near)]
        return plan_document(
            answer.searches, answer.chosen, objective, near, order=order, faster=answer.faster
        )
    return plan_document(searches, choose(searches, objective), objective, order=order)


def _of_several_kinds(
    graph: Graph,
    hardware: Hardware,
    bundle: Devices,
    objective: str,
    order: str,
    options: Options,
    progress: Progress,
    propose: Propose | None,
) -> WholePlan:
    """Returns the fastest plan of a bundle, or that of one of its groups where that is faster.

    Raises as `search_bundle` does, and `Infeasible` if nothing fits.
    """
    searches, alone = search_bundle(Subject.of(graph), hardware, bundle, options, progress, propose)
    if alone is None:
        return plan_document(searches, choose(searches, objective), objective, order=order)
    answer = plan_document(alone.searches, alone.best, objective, order=order)
    idle = bundle.gpus - dict(bundle.counts)[alone.name]
    note = (
        f"the devices of {alone.name} alone are faster than all of {bundle}; the other {idle} "
        "stay idle"
    )
    return replace(answer, warnings=[note, *answer.warnings])


def _of_id(searches: Sequence[Search], plan_id: str) -> Chosen:
    for chosen in merge_frontiers(searches):
        if chosen.search.plan_id(chosen.point) == plan_id:
            return chosen
    raise NotFound(
        f"the frontier of these options has no point {plan_id[:80]} (a pipeline's is that of the "
        "same stages)"
    )


def choose(searches: Sequence[Search], objective: str) -> Chosen:
    """Returns the point that the objective picks; raises `Infeasible` when none fits."""
    quickest = fastest(searches)
    if quickest is None:
        raise Infeasible(f"no strategy fits on {searches[0].mesh.gpus} GPUs: {too_large(searches)}")
    if objective == "mini-memory":
        return lowest_peak(searches)
    points = merge_frontiers(searches)
    if objective == "turning-point":
        knee = turning_point(*axes(points))
        if knee is not None and points[knee].fits:
            return points[knee]
    return quickest


def plan_document(
    searches: Sequence[Search],
    chosen: Chosen,
    objective: str,
    neighbours: list[Neighbour] | UnsetType = UNSET,
    *,
    order: str = PROGRAM,
    faster: Chosen | None = None,
) -> WholePlan:
    """Returns the plan of one point of the searches of a question, in the order that is asked for;
    raises as `ordered`. `faster` is another one that is faster, if the plan should name it."""
    other = ordered(chosen, order)
    if other is None:
        return _document(searches, chosen, objective, neighbours, faster)
    document = _document(searches, other.chosen, objective, neighbours, faster)
    return replace(
        document,
        id=other.id_of(document.id),
        order=other.forward,
        schedule=other.document,
        # The bound is for the program's order.
        predicted=replace(document.predicted, gap=gap(searches, chosen)),
    )


def _document(
    searches: Sequence[Search],
    chosen: Chosen,
    objective: str,
    neighbours: list[Neighbour] | UnsetType,
    faster: Chosen | None,
) -> WholePlan:
    search, point = chosen.search, chosen.point
    places: Callable[[int, int], list[PlaceCost]] | None = None
    cluster: PlannedCluster | UnsetType = UNSET
    if isinstance(search, MixedSearch):
        places, cluster = partial(place_costs, search.problem), planned_cluster(search, point)
    strategy = Strategy(
        search.problem_of(point),
        search.solution.choices[point],
        search.solution.edge_choices[point],
        places,
    )
    graph, published = search.subject.graph, ""
    if not isinstance(search, MixedSearch) and was_published(search.options):
        published = published_text(
            graph,
            search.hardware,
            search.mesh.gpus,
            chosen.ranking_s,
            search.options.precision,
        )
    return WholePlan(
        id=search.plan_id(point),
        **asdict(heading(search)),
        micro_batches=search.micro_batches,
        objective=objective,
        predicted=_prediction(searches, chosen, faster),
        groups=strategy.groups(_next_best(search, point)),
        edges=strategy.edges(),
        order=[op.name for op in search.subject.graph.operators],
        certificate=certificate(searches, None if faster is None else chosen),
        search=search_report(searches),
        neighbours=neighbours,
        framework=search.options.launched_by,
        kernels=search.options.light_kernels,
        assumed=search.options.assumes_compiled or UNSET,
        execution=_execution(search.options.step),
        cluster=cluster,
        timeline=timeline(search, point),
        published=published or UNSET,
    )


def _execution(step: StepSettings) -> Execution:
    """Returns how a step runs; what is as usual (states on the device, weights as captured)
    is not mentioned."""
    members = dataclasses.asdict(step)
    if not step.offloads_states:
        del members["offload"]
    if not step.stores_rounded:
        del members["weights"]
    return Execution(**members)


def _prediction(searches: Sequence[Search], chosen: Chosen, faster: Chosen | None) -> Prediction:
    search, point = chosen.search, chosen.point
    compute, batch = search.compute_s(point), search.subject.graph.batch_size
    summaries = Summaries(searches)
    mixtures: list[Mixture] | UnsetType = UNSET
    if not isinstance(search, MixedSearch):
        mixtures = summaries.labels(search).mixtures(search.solution.choices[point])
    return Prediction(
        memory_bytes=round(chosen.memory_bytes),
        peak_bytes=round(chosen.peak_bytes),
        fixed_memory_bytes=search.problem_of(point).fixed_memory_bytes,
        time_s=chosen.time_s,
        replayed_time_s=chosen.replayed_time_s,
        exposed_communication_s=float(search.replayed.exposed_s[point]),
        compute_s=compute,
        compute_shares=search.compute_shares(point).document(),
        communication_s=max(chosen.time_s - compute, 0.0),
        fixed_time_s=search.problem_of(point).fixed_time_s,
        samples_per_s=None if batch is None else batch / chosen.ranking_s,
        gap=gap(searches, chosen),
        host_s=float(search.replayed.host_s[point]),
        mixtures=mixtures,
        faster=UNSET if faster is None else _faster(summaries, chosen, faster),
        expected=expected_of(chosen),
        **fields(summaries.of(chosen), advice=True),
    )


def _faster(summaries: Summaries, chosen: Chosen, faster: Chosen) -> Faster:
    return Faster(
        label=summaries.label(faster.search, faster.point),
        saves=1.0 - faster.replayed_time_s / chosen.replayed_time_s,
        replayed_time_s=faster.replayed_time_s,
        peak_bytes=round(faster.peak_bytes),
    )


def _next_best(search: Search, point: int) -> list[NextBest | None]:
    """Returns each group's next best choice, everything else unchanged; none on several kinds of
    devices, where times do not add up."""
    if isinstance(search, MixedSearch):
        return [None] * len(search.problem.costs)
    return [
        None
        if other is None
        else NextBest(
            **_members(choice_of(search.problem, group, other.choice)),
            added_time_s=other.time_s,
            added_memory_bytes=other.memory_bytes,
        )
        for group, other in enumerate(next_best(search, point))
    ]


def _members(choice: Choice) -> dict[str, Any]:
    """Returns the members that every choice has."""
    return {name: value for name, value in asdict(choice).items() if value is not UNSET}


def read_plan(path: str | Path) -> Plan:
    """Reads a file with a plan or a pipeline and checks it. Raises `BadInput` with file and
    field."""
    expected = " or ".join(documents.PLAN_SCHEMAS)
    data = read_bounded(path, f"a {expected} file")
    document = validation.decode_any(data, file=str(path), expected=expected)
    return documents.read(document, documents.Plan, file=str(path))
