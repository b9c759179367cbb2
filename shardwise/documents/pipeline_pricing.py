"""`shardwise.pipeline-pricing/1`: what a given pipeline takes, and what to change."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.parallelism import Parallelism
from shardwise.documents.pipeline import Pipeline


class PipelineAlternative(msgspec.Struct, frozen=True):
    """Another pipeline of equal layers: what differs in words, and its step.

    `parallelism` is that of each stage. `saves` is the part of the given pipeline's step that it
    saves, negative where it is slower. `changes` are the fields that differ. Where devices have
    several stages, `stages` counts groups of devices, of `stages_per_rank` stages each.
    """

    text: str
    changes: list[str]
    stages: int
    schedule: str
    parallelism: Parallelism
    step_s: float
    peak_bytes: int
    fits: bool
    saves: float
    stages_per_rank: int | UnsetType = UNSET


class PipelinePricing(
    msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.pipeline-pricing/1"
):
    """A trainer's pipeline of equal layers, which may not fit, and alternatives in its space.

    `parallelism` is the strategy of each stage on its devices. `alternatives` differ in one field:
    those that fit first, by their time, then by their peak. `best` is the fastest that fits of all
    that were priced, null where none fits or where it is the given one. `unread` is what the
    configuration says that was not read. Where devices have several stages, `stages` counts groups
    of devices, of `stages_per_rank` stages each. `stated` and `left_out` are those of
    `shardwise.pricing/1`.
    """

    trainer: str
    stages: int
    schedule: str
    parallelism: Parallelism
    fits: bool
    pipeline: Pipeline
    alternatives: list[PipelineAlternative]
    best: PipelineAlternative | None
    unread: list[str]
    stages_per_rank: int | UnsetType = UNSET
    stated: list[str] | UnsetType = UNSET
    left_out: list[str] | UnsetType = UNSET
