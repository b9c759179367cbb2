"""The curve of a trainer: for every count of GPUs the fastest of the strategies that it can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from shardwise.answers.curve import (
    CurveQuestion,
    check_stages_of_curve,
    compute_curve,
    curve_question,
    with_pipeline,
)
from shardwise.answers.curve_assembly import gpus_of
from shardwise.answers.curve_points import feasible_point, infeasible_point
from shardwise.answers.frontier import confidence
from shardwise.answers.pipeline_points import FastestPipelines
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.cost.program import assumed
from shardwise.documents.curve import Curve, CurvePoint
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.pipeline.asked import NO_STAGES
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Infeasible, Search, Subject
from shardwise.trainers.plan import answer_of
from shardwise.trainers.plan_pipeline import TrainerPipelines
from shardwise.trainers.spaces import space_of
from shardwise.trainers.stated import with_stated


def curve_for(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    trainer: str,
    counts: Sequence[int] = (),
    bundles: Sequence[str] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] | None = None,
    given: Collection[str] = (),
    count_limit_s: float | None = None,
    known: Iterable[Curve] = (),
    on_point: Callable[[Curve], None] | None = None,
    processes: int = 1,
) -> Curve:
    """Returns the curve of the strategies of a trainer, one of `SPACES`, as `advice.curve` does.

    The step is that of the program which the trainer runs, except for options `given` by name, as
    in `shardwise.trainers.plan.plan_for`. With `stages`, as in `advice.curve`, a count has the
    trainer's fastest pipeline too where that is faster, under some of its `schedules` (None: all).
    Raises `BadInput` for an unknown trainer and for what is in the table of refusals.
    """
    question = trainer_question(
        graph,
        hardware,
        max_gpus,
        options,
        trainer=trainer,
        counts=counts,
        bundles=bundles,
        stages=stages,
        schedules=schedules,
        given=given,
    )
    return compute_curve(
        question,
        progress or quiet,
        count_limit_s=count_limit_s,
        known=known,
        on_point=on_point,
        processes=processes,
    )


def trainer_question(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    *,
    trainer: str,
    counts: Sequence[int] = (),
    bundles: Sequence[str] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] | None = None,
    given: Collection[str] = (),
) -> CurveQuestion:
    """Returns the question, to be computed in parts. Raises `BadInput` as `curve_for`."""
    options = with_stated(options or Options(), space_of(trainer).implies, given)
    question = curve_question(graph, hardware, max_gpus, options, counts=counts, bundles=bundles)
    asked = Question.of(
        question.options,
        "curve",
        several_kinds=bool(hardware.groups),
        space=trainer,
        stages=stages,
        schedules=schedules,
    )
    check(asked)
    pipelines: TrainerPipelines | None = None
    if asked.piped:
        check_stages_of_curve(stages, max(map(gpus_of, question.places)))
        program = assumed(question.options, hardware)
        pipelines = TrainerPipelines(question.graph, program, trainer, stages, schedules)
    return replace(
        question, of_count=partial(_trainer_point, trainer), space=trainer, pipelines=pipelines
    )


def _trainer_point(
    trainer: str,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    asked: FastestPipelines | None,
    cutoff_s: float,
) -> tuple[CurvePoint, Search | None]:
    """Returns the point of the trainer's answer, as that of a plan, or why there is none."""
    search: Search | None = None
    try:
        searches = search_fitting(subject, hardware, Devices.alike(gpus), options, progress)
        search = searches[0]
        answer = answer_of(trainer, space_of(trainer), searches, progress)
    except (Infeasible, NoSuchAxis) as reason:
        mesh = None if search is None else search.mesh
        nodes = None if mesh is None else mesh.nodes
        basis = confidence(hardware, mesh)
        point = infeasible_point(gpus, nodes, basis, str(reason))
    else:
        chosen = answer.chosen
        point = feasible_point(chosen, answer.searches, gpus, chosen.search.mesh.nodes)
        search, cutoff_s = chosen.search, min(chosen.ranking_s, cutoff_s)
    if asked is not None:
        point = with_pipeline(
            point, asked.fastest(hardware, Devices.alike(gpus), progress, cutoff_s)
        )
    return point, search
