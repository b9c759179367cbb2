"""Device kinds in a pipeline's document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

from msgspec.structs import replace

from shardwise.answers.frontier import heading
from shardwise.answers.strategy import Strategy
from shardwise.documents.common import Heading
from shardwise.documents.plan import PlannedEdge, PlannedGroup
from shardwise.search.pipelines.pipeline import Pipeline


class KindMembers(TypedDict, total=False):
    """The members of a stage that describe its devices."""

    group: str
    kind: str
    memory_limit_bytes: float


@dataclass(frozen=True)
class StagedStrategy:
    """The groups and edges of all stages, each with the values of its stage's device kind."""

    groups: list[PlannedGroup]
    edges: list[PlannedEdge]


def staged_strategy(pipeline: Pipeline) -> StagedStrategy:
    """Returns the strategy of all stages; an edge belongs to the stage that reads its tensor."""
    choices, edge_choices = pipeline.choices.tolist(), pipeline.edge_choices.tolist()
    searches = [pipeline.search_of(stage) for stage in range(pipeline.stages)]
    known = {}
    for search in searches:
        if id(search) not in known:
            strategy = Strategy(search.problem, choices, edge_choices)
            groups = strategy.groups([None] * len(search.problem.costs))
            known[id(search)] = groups, strategy.edges()
    stage_of = _stages_of_groups(pipeline)
    edges = pipeline.search.problem.edges
    return StagedStrategy(
        [known[id(searches[stage])][0][group] for group, stage in enumerate(stage_of)],
        [
            known[id(searches[stage_of[edge.target]])][1][number]
            for number, edge in enumerate(edges)
        ],
    )


def _stages_of_groups(pipeline: Pipeline) -> Sequence[int]:
    """Returns the stage of each group."""
    of_unit = [
        stage
        for stage, (first, last) in enumerate(pairwise(pipeline.bounds))
        for _ in range(first, last)
    ]
    return [of_unit[unit] for unit in pipeline.units.of_group]


def heading_of(pipeline: Pipeline) -> Heading:
    """Returns the heading; on several kinds with the whole profile, the least device memory, and
    the warnings and sources of all kinds."""
    kinds, first = pipeline.kinds, heading(pipeline.search)
    if kinds is None:
        return first
    heads = [heading(search) for search in kinds.searches]
    least = min(heads, key=lambda head: head.memory_limit_bytes)
    return replace(
        first,
        hardware=kinds.whole.name,
        hardware_id=kinds.whole.id,
        device_memory_bytes=least.device_memory_bytes,
        memory_limit_bytes=least.memory_limit_bytes,
        provenance=replace(
            first.provenance,
            compute="; ".join(dict.fromkeys(head.provenance.compute for head in heads)),
            communication="; ".join(dict.fromkeys(h.provenance.communication for h in heads)),
        ),
        warnings=list(dict.fromkeys(text for head in heads for text in head.warnings)),
    )


def kind_members(pipeline: Pipeline, stage: int) -> KindMembers:
    """Returns a stage's device members; none if all devices are of one kind."""
    kinds = pipeline.kinds
    if kinds is None:
        return {}
    number = kinds.of_rank[int(pipeline.rank_of[stage])]
    return {
        "group": kinds.groups[number],
        "kind": kinds.searches[number].hardware.devices[0].kind,
        "memory_limit_bytes": float(pipeline.limits_bytes[stage]),
    }
