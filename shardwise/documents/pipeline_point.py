"""A pipeline as a point of a frontier or a curve, and in the row of a quote."""

from __future__ import annotations

import msgspec


class PipelinePoint(msgspec.Struct, frozen=True):
    """One pipeline: its step in seconds, and the largest peak of any device.

    `id` is that of its `shardwise.pipeline/1` document. `idle` is the share of the step in which a
    device waits, in the mean. `labels` are the stages' strategies, first stage first, `first_units`
    the names of the units of the model at which stages begin. `samples_per_s` is null where the
    batch size is not known.
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


def pipeline_text(point: PipelinePoint) -> str:
    """Returns text such as `2 stages, 1f1b, 16`: stages, schedule, micro-batches."""
    return f"{point.stages} stages, {point.schedule}, {point.micro_batches}"
