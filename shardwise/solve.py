"""One door for a plan: whatever is asked for, of all strategies or of a trainer's, with stages or
without, on devices of one kind or of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.answers.plan import plan
from shardwise.cost.options import Options, Progress
from shardwise.documents import Pipeline, Plan
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.pipeline.asked import ANY, FASTEST, NO_STAGES
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.search import Infeasible
from shardwise.trainers.plan import plan_for
from shardwise.trainers.plan_pipeline import pipeline_for


def solve(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    *,
    objective: str = FASTEST[0],
    point: str | None = None,
    order: str | None = None,
    space: str = ANY,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] | None = None,
    options: Options | None = None,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> Plan:
    """Returns the strategy that a question asks for, as `Question` has its members.

    `given` are the options that were given by name, which a trainer's `space` leaves as they are.
    With `stages` the answer is a pipeline, or where one stage is among them the plan without one if
    that is as good. Raises `BadInput` for what is in the table of refusals
    (docs/reference/refusals.md), `Infeasible` where nothing fits, `NotFound` where the frontier has
    no such point.
    """
    devices = devices_of(gpus, hardware)
    question = Question.of(
        options or Options(),
        "plan",
        devices,
        objective=objective,
        point=point,
        order=order,
        space=space,
        stages=stages,
        schedules=schedules,
    )
    check(question)
    if space == ANY and not question.piped:
        return plan(
            graph,
            hardware,
            devices,
            objective=objective,
            point=point,
            order=order,
            options=options,
            progress=progress,
        )
    if space == ANY:
        return pipeline_or_plan(
            graph,
            hardware,
            devices,
            objective=objective,
            point=point,
            stages=stages,
            schedules=question.asked_schedules,
            options=options,
            progress=progress,
        )
    without = partial(
        plan_for,
        graph,
        hardware,
        devices,
        space,
        objective=objective,
        order=order,
        options=options,
        given=given,
        progress=progress,
    )
    if not question.piped:
        return without()
    pipelines = partial(
        pipeline_for,
        graph,
        hardware,
        devices,
        space,
        schedules=schedules,
        options=options,
        given=given,
        progress=progress,
    )
    if stages is not None and 1 not in stages:
        return pipelines(stages=stages)
    return _faster(partial(pipelines, stages=stages and sorted(set(stages) - {1})), without)


def _faster(pipelines: Callable[[], Pipeline], without: Callable[[], Plan]) -> Plan:
    """Returns the faster of a trainer's answers with stages and without. Raises `Infeasible` where
    neither fits, as the one without does."""
    try:
        pipeline = pipelines()
    except Infeasible:
        return without()
    try:
        plan = without()
    except Infeasible:
        return pipeline
    return plan if plan.replayed_s <= pipeline.replayed_s else pipeline
