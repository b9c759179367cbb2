"""Questions on pipelines: those that ask for stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shardwise import documents
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    PlanRequest,
    QuoteRequest,
)
from shardwise.errors import BadInput
from shardwise.pipeline.asked import ANY, DEFAULT_SCHEDULES, asks_for_stages
from shardwise.search.pipelines.searched import ordered

PIPELINE_SCHEMA = documents.schema_of(documents.Pipeline)

StagedRequest: TypeAlias = (
    FrontierRequest | CurveRequest | PlanRequest | QuoteRequest | CompareRequest
)
"""A question that may ask for stages."""


def is_staged(ask: StagedRequest) -> bool:
    """Returns whether a pipeline is asked for: one stage is none."""
    return asks_for_stages(ask.stages)


def staged(ask: StagedRequest, most: int) -> dict[str, Any]:
    """Returns the members of a question that `is_staged`, the same for every order of its numbers.

    Schedules that are left out are the usual ones, of a trainer's space all of the trainer. Raises
    `BadInput` for more than `most` stages.
    """
    members: dict[str, Any] = {"stages": _counts(ask, most)}
    if ask.schedules or getattr(ask, "space", ANY) == ANY:
        members["schedules"] = ordered(ask.schedules or DEFAULT_SCHEDULES)
    return members


def staged_beside(ask: StagedRequest, most: int) -> dict[str, Any]:
    """Returns the members of a question whose answer has the strategies without a pipeline anyway:
    none where it asks for no pipeline, else as `staged`, but that 1 among the numbers is nothing.

    Raises `BadInput` as `staged`.
    """
    if not is_staged(ask):
        return {}
    members = staged(ask, most)
    return {**members, "stages": _several(members["stages"])}


def arguments_of(q: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the library's function for a question's document; none of one
    without stages."""
    if "stages" not in q:
        return {}
    # Comparisons of earlier releases have no schedules.
    usual = None if "space" in q else DEFAULT_SCHEDULES
    return {"stages": counts_of(q), "schedules": q.get("schedules", usual)}


def counts_of(q: Mapping[str, Any]) -> Sequence[int] | None:
    """Returns the numbers of stages of a document that has them; None for all that are possible."""
    stages: Sequence[int] | str = q["stages"]
    return None if isinstance(stages, str) else stages


def _counts(ask: StagedRequest, most: int) -> list[int] | str | None:
    """Returns the numbers of stages asked for, each once. Raises `BadInput` as `staged`."""
    stages = ask.stages
    if isinstance(stages, list):
        stages = sorted(set(stages))
        if stages[-1] > most:
            raise BadInput(f"got {stages[-1]}", field="stages", expected=f"1 to {most}, or auto")
    return stages


def _several(stages: list[int] | str | None) -> list[int] | str | None:
    """Returns numbers of stages without 1."""
    return [count for count in stages if count > 1] if isinstance(stages, list) else stages
