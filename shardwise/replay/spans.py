"""Start and end of the tasks of one strategy's step, with repeated micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.replay.kit import Kit
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.owner_costs import Choices
from shardwise.replay.replay import Replayer
from shardwise.replay.tape import COMPUTE, HOST
from shardwise.sharding.layout import Floats

FORWARD, RECOMPUTATION, BACKWARD, UPDATE, COMMUNICATION = range(5)
"""The kind of a task: a phase of computing, or communication."""


@dataclass(frozen=True)
class TaskSpans:
    """The tasks of a written step that take time: arrays of shape (n,), by start.

    `task` are their numbers in the step of one place, `kind` one of the constants above, `place`
    that of a cluster (0 on devices of one kind), `held_bytes` what a device of the place holds
    right after the start, scaled as `MixedReplayer` does. What happens from `repeat_s[0]` to
    `repeat_s[1]` happens `times` more often before what follows it.
    """

    task: NDArray[np.int64]
    kind: NDArray[np.int64]
    place: NDArray[np.int64]
    start_s: Floats
    end_s: Floats
    held_bytes: Floats
    peak_at_s: float
    peak_bytes: float
    peak_task: str
    peak_place: int
    repeat_s: tuple[float, float] = (0.0, 0.0)
    times: int = 0

    @property
    def step_s(self) -> float:
        """When the last task ends, with everything that is repeated."""
        begin, end = self.repeat_s
        return float(self.end_s.max(initial=0.0)) + self.times * (end - begin)

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> TaskSpans:
        """Returns some of the tasks."""
        names = ("task", "kind", "place", "start_s", "end_s", "held_bytes")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def spans_of(
    replayer: Replayer | MixedReplayer, choices: Choices, edge_choices: Choices
) -> TaskSpans:
    """Returns the spans of one strategy: (groups,) and (edges,)."""
    outcome, timeline = replayer.traced(choices, edge_choices)
    kit, kinds = replayer.kit, _kinds(replayer.kit)
    if isinstance(replayer, MixedReplayer):
        own = np.flatnonzero(replayer.mixed.place >= 0)
        task, place = replayer.mixed.task[own], replayer.mixed.place[own]
        peaks = outcome.class_peak_bytes[0] * replayer.scale
        held = timeline.class_held_bytes[own, place] * replayer.scale[place]
        peak_place = int(peaks.argmax())
    else:
        own = task = np.arange(len(kinds))
        place, held, peak_place = np.zeros_like(task), timeline.held_bytes, 0
        peaks = outcome.class_peak_bytes[0]
    start, end = timeline.start_s[own], timeline.end_s[own]
    at = int(outcome.class_peak_task[0, peak_place])
    one = int(replayer.mixed.task[at]) if isinstance(replayer, MixedReplayer) and at >= 0 else at
    spans = TaskSpans(
        task, kinds[task], place, start, end, held,
        peak_at_s=0.0 if at < 0 else float(timeline.start_s[at]),
        peak_bytes=float(peaks[peak_place]),
        peak_task="before the step" if at < 0 else kit.tape.labels[one],
        peak_place=peak_place,
    )  # fmt: skip
    if kit.repeat is not None:
        begins, ends = outcome.mark_end_s[0].reshape(2, -1)
        places = int((ends - begins).argmax())
        stretch = float(begins[places]), float(ends[places])
        spans = replace(spans, repeat_s=stretch, times=kit.repeat.times)
        if spans.peak_at_s >= stretch[1]:
            later = spans.times * (stretch[1] - stretch[0])
            spans = replace(spans, peak_at_s=spans.peak_at_s + later)
    order = np.argsort(spans.start_s, kind="stable").astype(np.int64)
    return spans.of(order[(spans.end_s > spans.start_s)[order]])


def _kinds(kit: Kit) -> NDArray[np.int64]:
    """Returns the kind of each task of the step of one place."""
    kinds = np.full(len(kit.tape.labels), RECOMPUTATION)
    last = 0
    for one in kit.passes:
        kinds[list(one.forward.values())] = FORWARD
        kinds[list(one.backward.values())] = BACKWARD
        last = max(last, *one.forward.values(), *one.backward.values())
    computing = np.isin(kit.tape.streams, (COMPUTE, HOST))
    after = np.arange(len(kinds)) > last
    # Recomputation comes before the backward that needs it, the update after everything.
    kinds[after] = UPDATE
    kinds[~computing] = COMMUNICATION
    return kinds
