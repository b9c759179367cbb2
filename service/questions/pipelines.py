"""Questions on pipelines: plans that ask for stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.questions.search_options import check_replayed
from shardwise import documents
from shardwise.advise import Options, pipeline_or_plan
from shardwise.advise.pipeline_points import check_pipelines
from shardwise.cost.options import Progress
from shardwise.documents import PlanRequest
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.pipeline.asked import AUTO, DEFAULT_SCHEDULES, check_asked
from shardwise.search.pipelines.pipeline import SCHEDULES, check_schedules

PIPELINE_SCHEMA = documents.schema_of(documents.Pipeline)


def check_staged(ask: PlanRequest, gpus: int | str) -> None:
    """Raises `BadInput`, naming the field, for what is not asked about pipelines, and for schedules
    without stages."""
    if ask.schedules:
        check_schedules(ask.schedules)
        if ask.stages is None:
            raise BadInput("of no pipeline", field="schedules", expected="none without stages")
    if is_staged(ask):
        check_asked(gpus=gpus, objective=ask.objective, space=ask.space, point=ask.point)


def is_staged(ask: PlanRequest) -> bool:
    """Returns whether a pipeline is asked for: one stage is none."""
    return ask.stages is not None and (ask.stages == AUTO or set(ask.stages) != {1})


def staged(ask: PlanRequest, options: Options, most: int) -> dict[str, Any]:
    """Returns the members of a question that `is_staged`, the same for every order of its numbers.

    Raises `BadInput` for more than `most` stages and for options that pipelines do not have.
    """
    check_replayed(check_pipelines, options)
    stages = ask.stages
    if isinstance(stages, list):
        stages = sorted(set(stages))
        if stages[-1] > most:
            raise BadInput(f"{stages[-1]}", field="stages", expected=f"1 to {most}, or auto")
    wanted = ask.schedules or DEFAULT_SCHEDULES
    return {"stages": stages, "schedules": [name for name in SCHEDULES if name in wanted]}


def pipelined(
    q: Mapping[str, Any], graph: Graph, hardware: Hardware, options: Options, progress: Progress
) -> documents.Pipeline | documents.Plan:
    """Returns the pipeline of a question with stages, or the plan without one if it is as fast."""
    return pipeline_or_plan(
        graph,
        hardware,
        q["gpus"],
        stages=None if q["stages"] == AUTO else q["stages"],
        schedules=q["schedules"],
        options=options,
        progress=progress,
    )
