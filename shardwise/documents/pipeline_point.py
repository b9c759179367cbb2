"""A pipeline as a point of a frontier or a curve, and in the row of a quote."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import UNSET, UnsetType


class PipelinePoint(msgspec.Struct, frozen=True):
    """One pipeline: its step in seconds, and the largest peak of any device.

    `id` is that of its `shardwise.pipeline/1` document. `idle` is the share of the step in which a
    device waits, in the mean. `labels` are the stages' strategies, first stage first, `first_units`
    the names of the units of the model at which stages begin. `samples_per_s` is null where the
    batch size is not known. `stages_per_rank` is there where devices have several stages: of p
    groups of devices the r-th has the stages r, r + p, r + 2p, …, or r and 2p - 1 - r under `zbv`
    and `dualpipev`. `gap` says how much faster another
    pipeline of what was asked for could be at most, relative: of a frontier one whose peak is no
    more, else any; null without a proof, left out in answers of earlier versions. `groups` are
    there where devices are of several kinds: the group that each stage has devices of, and the peak
    is then one of the devices with the least memory which would be as much of its limit.
    """

    id: str
    stages: int
    schedule: str
    micro_batches: int
    step_s: float
    samples_per_s: float | None
    peak_bytes: int
    idle: float
    labels: list[str]
    first_units: list[str]
    stages_per_rank: int | UnsetType = UNSET
    gap: float | UnsetType | None = UNSET
    groups: list[str] | UnsetType = UNSET

    @property
    def ranks(self) -> int:
        """The number of groups of devices."""
        return self.stages // (self.stages_per_rank or 1)


def pipeline_text(point: PipelinePoint) -> str:
    """Returns text such as `2 stages, 1f1b, 16`, `8 stages on 4 ranks, interleaved, 16` or, of
    several kinds of devices, `4 stages (3 h100, 1 a100), 1f1b, 16`: stages, schedule,
    micro-batches."""
    ranks = f" on {point.ranks} ranks" if point.stages_per_rank else ""
    placed = f"{ranks}{groups_text(point.groups or ())}"
    return f"{point.stages} stages{placed}, {point.schedule}, {point.micro_batches}"


def groups_text(groups: Sequence[str]) -> str:
    """Returns the groups of stages in their order, such as ` (3 h100, 1 a100)`; empty of none."""
    runs = [f"{len(list(run))} {name}" for name, run in groupby(groups)]
    return f" ({', '.join(runs)})" if runs else ""
