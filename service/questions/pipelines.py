"""Questions on pipelines: those that ask for stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shardwise import documents
from shardwise.advise import Options, pipeline_or_plan
from shardwise.advise.pipeline_points import check_pipelines
from shardwise.cost.named_options import check_replayed
from shardwise.cost.options import Progress
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    PlanRequest,
    QuoteRequest,
)
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, asks_for_stages, check_asked
from shardwise.search.pipelines.searched import check_of_kinds, check_schedules, ordered

PIPELINE_SCHEMA = documents.schema_of(documents.Pipeline)

StagedRequest: TypeAlias = (
    FrontierRequest | CurveRequest | PlanRequest | QuoteRequest | CompareRequest
)
"""A question that may ask for stages."""


def check_staged(ask: PlanRequest) -> None:
    """Raises `BadInput`, naming the field, for what is not asked about pipelines, and for schedules
    without stages."""
    _check_schedules(ask)
    if is_staged(ask):
        check_asked(objective=ask.objective, space=ask.space, point=ask.point)


def is_staged(ask: StagedRequest) -> bool:
    """Returns whether a pipeline is asked for: one stage is none."""
    return asks_for_stages(ask.stages)


def staged(
    ask: StagedRequest, options: Options, most: int, *, of_kinds: bool = False
) -> dict[str, Any]:
    """Returns the members of a question that `is_staged`, the same for every order of its numbers.

    Raises `BadInput` for more than `most` stages, for options that pipelines do not have, and for
    schedules that they do not have where devices are `of_kinds`, several.
    """
    wanted = ask.schedules or DEFAULT_SCHEDULES
    if of_kinds:
        check_of_kinds(wanted)
    return {"stages": _counts(ask, options, most), "schedules": ordered(wanted)}


def staged_beside(
    ask: StagedRequest, options: Options, most: int, *, of_kinds: bool = False
) -> dict[str, Any]:
    """Returns the members of a question whose answer has the strategies without a pipeline anyway:
    none where it asks for no pipeline, else as `staged`, but that 1 among the numbers is nothing.

    Raises `BadInput` as `staged`, and for schedules without stages.
    """
    _check_schedules(ask)
    if not is_staged(ask):
        return {}
    members = staged(ask, options, most, of_kinds=of_kinds)
    return {**members, "stages": _several(members["stages"])}


def arguments_of(q: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the library's function for a question's document; none of one
    without stages."""
    if "stages" not in q:
        return {}
    # Comparisons of earlier releases have no schedules.
    return {"stages": counts_of(q), "schedules": q.get("schedules", DEFAULT_SCHEDULES)}


def counts_of(q: Mapping[str, Any]) -> Sequence[int] | None:
    """Returns the numbers of stages of a document that has them; None for all that are possible."""
    stages: Sequence[int] | str = q["stages"]
    return None if isinstance(stages, str) else stages


def _counts(ask: StagedRequest, options: Options, most: int) -> list[int] | str | None:
    """Returns the numbers of stages asked for, each once. Raises `BadInput` as `staged`."""
    check_replayed(check_pipelines, options)
    stages = ask.stages
    if isinstance(stages, list):
        stages = sorted(set(stages))
        if stages[-1] > most:
            raise BadInput(f"{stages[-1]}", field="stages", expected=f"1 to {most}, or auto")
    return stages


def _several(stages: list[int] | str | None) -> list[int] | str | None:
    """Returns numbers of stages without 1."""
    return [count for count in stages if count > 1] if isinstance(stages, list) else stages


def _check_schedules(ask: StagedRequest) -> None:
    if ask.schedules:
        check_schedules(ask.schedules)
        if ask.stages is None:
            raise BadInput("of no pipeline", field="schedules", expected="none without stages")


def pipelined(
    q: Mapping[str, Any], graph: Graph, hardware: Hardware, options: Options, progress: Progress
) -> documents.Pipeline | documents.Plan:
    """Returns the pipeline of a question with stages, or the plan without one if it is as fast."""
    return pipeline_or_plan(
        graph,
        hardware,
        q["gpus"],
        options=options,
        progress=progress,
        **arguments_of(q),
    )
