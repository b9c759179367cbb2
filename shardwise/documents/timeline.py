"""The replayed step over time, as charts draw it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Bar(NamedTuple):
    """A stretch of a lane from `start_s` to `end_s`, `busy_s` of which something runs."""

    start_s: float
    end_s: float
    busy_s: float


class Lane(msgspec.Struct, frozen=True):
    """What one resource does in a step: computing of a phase, or the links of a level.

    `kind` is `forward`, `recomputation`, `backward`, `update`, `compute` or `communication`, in
    pipelines that split backward also `inputs` and `weights`.
    `busy_s` is how long it runs; neighbouring bars are merged, so a bar may have gaps.
    """

    name: str
    kind: str
    busy_s: float
    bars: list[Bar]


class Timeline(msgspec.Struct, frozen=True):
    """One replayed step: lanes in the order in which charts have them, and memory over time.

    `step_s` ends the last task; `replayed_time_s` of the prediction adds to it what devices wait
    for the host and for each other, and what both streams cost each other. `held_bytes` is the most
    that one GPU holds in each of equally long stretches of the step; `peak_at_s` is when the peak
    is reached, at the start of `peak_task`. With devices of several kinds lanes are those of each
    place and memory that of the place whose peak is nearest its limit.
    """

    step_s: float
    lanes: list[Lane]
    held_bytes: list[int]
    peak_at_s: float
    peak_bytes: int
    peak_task: str


class StageTimeline(msgspec.Struct, frozen=True):
    """What the devices of one stage of a pipeline do in a step.

    `lanes` have the kinds `forward`, `backward`, where it is split `inputs` and `weights` for
    gradients of either, and `update`, one bar a pass; of a step with more
    passes than are drawn, the middle ones are one bar of the kind `compute`. `held_bytes` is the
    most that one device may hold in each of equally long stretches of the step: the peak of one
    micro-batch at a time, and what the others keep. Where devices have several stages, it is of all
    of them.
    """

    lanes: list[Lane]
    held_bytes: list[int]


class PipelineTimeline(msgspec.Struct, frozen=True):
    """The step of a pipeline over time, stage by stage; `step_s` ends the last update."""

    step_s: float
    stages: list[StageTimeline]
