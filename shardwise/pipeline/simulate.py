"""Simulates a schedule with given times: step time, idle time, memory.

An action starts when its rank has finished the one before it in the list and its inputs have
arrived. A tensor of a neighbouring stage arrives a hop after the action that made it, or at once if
both stages are on one rank. Hops occupy no ranks and do not wait for each other. Actions that a
schedule intends to overlap run one after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.dependencies import Work, needs


class StageTimes(NamedTuple):
    """Seconds that a stage takes for one micro-batch; a whole backward is the sum of its parts."""

    forward_s: float
    inputs_s: float
    weights_s: float

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward pass."""
        return self.inputs_s + self.weights_s

    def of(self, kind: Kind) -> float:
        """Returns the seconds of one kind of action."""
        match kind:
            case Kind.FORWARD:
                return self.forward_s
            case Kind.BACKWARD:
                return self.backward_s
            case Kind.INPUTS:
                return self.inputs_s
            case Kind.WEIGHTS:
                return self.weights_s


class Held(NamedTuple):
    """A stage's memory from a moment on, in micro-batches.

    `kept` are those whose forward has begun and whose backward (of the inputs) has not ended;
    `split` those that wait for the backward of the weights, which needs a part of what was kept.
    """

    at_s: float
    kept: int
    split: int


@dataclass(frozen=True)
class Step:
    """A step as it ran, from the first start at 0 to the last end."""

    seconds: float
    spans_s: tuple[tuple[tuple[float, float], ...], ...]
    """For each rank and action of its list, start and end."""
    idle_s: tuple[float, ...]
    """For each rank, the seconds of the step in which it does nothing."""
    held: tuple[tuple[Held, ...], ...]
    """For each stage, its memory over time."""
    rank_peaks: tuple[int, ...]
    """For each rank, the peak of its stages together, including split ones."""

    def peak_kept(self, stage: int) -> int:
        """Returns the maximum number of micro-batches that a stage keeps whole."""
        return max(held.kept for held in self.held[stage])

    def peak_held(self, stage: int) -> int:
        """Returns the maximum number of micro-batches that a stage holds, including split ones."""
        return max(held.kept + held.split for held in self.held[stage])


def simulate(
    schedule: Schedule, times: Sequence[StageTimes], hops_s: Sequence[float] | None = None
) -> Step:
    """Returns the step of a schedule, with the times of each stage.

    `hops_s[s]` are the seconds from stage s to stage s + 1, and of the gradient back; none by
    default. Raises BadInput for times that are no durations, and where ranks wait for each other.
    """
    hops_s = [0.0] * (schedule.stages - 1) if hops_s is None else hops_s
    _check_times(schedule, times, hops_s)
    spans = _run(schedule, times, hops_s)
    seconds = max((end for rank in spans for _, end in rank), default=0.0)
    busy = [sum(times[a.stage].of(a.kind) for a in actions) for actions in schedule.ranks]
    held, peaks = _held(schedule, spans)
    return Step(
        seconds,
        tuple(map(tuple, spans)),
        tuple(seconds - of_rank for of_rank in busy),
        held,
        peaks,
    )


def _check_times(schedule: Schedule, times: Sequence[StageTimes], hops_s: Sequence[float]) -> None:
    for field, given, expected in (
        ("times", times, schedule.stages),
        ("hops_s", hops_s, schedule.stages - 1),
    ):
        if len(given) != expected:
            problem = f"has {len(given)} entries for {schedule.stages} stages"
            raise BadInput(problem, field=field, expected=str(expected))
    durations = [(f"times[{s}]", d) for s, of_stage in enumerate(times) for d in of_stage]
    durations += [(f"hops_s[{s}]", hop) for s, hop in enumerate(hops_s)]
    for field, duration in durations:
        if not (math.isfinite(duration) and duration >= 0):
            raise BadInput(f"{duration} is not a duration", field=field, expected="seconds from 0")


Spans = list[list[tuple[float, float]]]
"""For each rank and action, start and end in seconds."""


def _run(schedule: Schedule, times: Sequence[StageTimes], hops_s: Sequence[float]) -> Spans:
    """Returns when each action runs.

    A rank advances until something is missing; the rank that makes it wakes it.
    """
    spans: Spans = [[] for _ in schedule.ranks]
    ended: dict[Work, float] = {}
    waiting: defaultdict[Work, list[int]] = defaultdict(list)
    ready = list(range(len(schedule.ranks)))
    while ready:
        rank = ready.pop()
        actions, done = schedule.ranks[rank], spans[rank]
        while len(done) < len(actions):
            action = actions[len(done)]
            missing = _missing(schedule, action, ended)
            if missing:
                for work in missing:
                    waiting[work].append(rank)
                break
            start = max(done[-1][1] if done else 0.0, _arrival(schedule, action, ended, hops_s))
            end = start + times[action.stage].of(action.kind)
            done.append((start, end))
            ended[action.work] = end
            ready += waiting.pop(action.work, ())
    for rank, done in enumerate(spans):
        if len(done) < len(schedule.ranks[rank]):
            action = schedule.ranks[rank][len(done)]
            wanted = " or ".join(str(Action(*work)) for work in _missing(schedule, action, ended))
            raise BadInput(
                f"rank {rank} waits with {action} for {wanted}, which never ends",
                field=f"ranks[{rank}][{len(done)}]",
                expected="an order in which every action waits for earlier ones only",
            )
    return spans


def _missing(schedule: Schedule, action: Action, ended: dict[Work, float]) -> tuple[Work, ...]:
    """Returns the alternatives for the first unfinished prerequisite of an action."""
    for alternatives in needs(action, schedule.stages):
        if not any(work in ended for work in alternatives):
            return alternatives
    return ()


def _arrival(
    schedule: Schedule, action: Action, ended: dict[Work, float], hops_s: Sequence[float]
) -> float:
    """Returns when an action's last input has arrived."""
    rank_of = schedule.placement.rank_of
    here, arrival = rank_of(action.stage), 0.0
    for alternatives in needs(action, schedule.stages):
        for work in alternatives:
            if work in ended:
                stage = work[1]
                near = rank_of(stage) == here
                hop_s = 0.0 if near else hops_s[min(stage, action.stage)]
                arrival = max(arrival, ended[work] + hop_s)
    return arrival


def _held(schedule: Schedule, spans: Spans) -> tuple[tuple[tuple[Held, ...], ...], tuple[int, ...]]:
    """Returns each stage's memory over time, and each rank's peak.

    A stage's actions are all on one rank, so its list has them in order of time.
    """
    held = [[Held(0.0, 0, 0)] for _ in range(schedule.stages)]
    peaks = []
    for actions, of_rank in zip(schedule.ranks, spans, strict=True):
        now = peak = 0
        for action, (start, end) in zip(actions, of_rank, strict=True):
            _, kept, split = held[action.stage][-1]
            before = kept + split
            at_s = start if action.kind is Kind.FORWARD else end
            kept += {Kind.FORWARD: 1, Kind.WEIGHTS: 0}.get(action.kind, -1)
            split += {Kind.INPUTS: 1, Kind.WEIGHTS: -1}.get(action.kind, 0)
            held[action.stage].append(Held(at_s, kept, split))
            now += kept + split - before
            peak = max(peak, now)
        peaks.append(peak)
    return tuple(map(tuple, held)), tuple(peaks)
