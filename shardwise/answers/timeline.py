"""The replayed step of a strategy as lanes of bars and memory over time, small enough to draw.

A large model's step has tens of thousands of tasks. In each lane, neighbours with small gaps share
a bar until there are at most `MOST_BARS`; repeated micro-batches are merged once and then laid out
one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.documents.timeline import Bar, Lane, Timeline
from shardwise.replay.link_levels import seconds_by_level
from shardwise.replay.spans import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    RECOMPUTATION,
    UPDATE,
    TaskSpans,
    spans_of,
)
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

MOST_BARS = 240
"""Maximum bars per lane."""
FINEST = 1000
"""Smaller gaps, as a part of the step, are never shown."""
STRETCHES = 200
"""Number of intervals of memory over time."""

PHASES: Mapping[int, tuple[str, str]] = {
    FORWARD: ("Forward", "forward"),
    RECOMPUTATION: ("Recomputation", "recomputation"),
    BACKWARD: ("Backward", "backward"),
    UPDATE: ("Update", "update"),
}
"""Name and kind of the lanes of computing."""

Bars = tuple[Floats, Floats, Floats]
"""Starts, ends and busy seconds of bars, by start, none overlapping."""


def timeline(search: Search, point: int) -> Timeline:
    """Returns the replayed step of one point of a search."""
    choices, edges = search.solution.choices[point], search.solution.edge_choices[point]
    if isinstance(search, MixedSearch):
        spans = spans_of(search.mixed_replayer, choices, edges)
        named = _lanes_of_places(spans, [place.name for place in search.problem.cluster.places])
    else:
        replayer = search.own_replayer
        spans = spans_of(replayer, choices, edges)
        by_level = seconds_by_level(replayer, search.options.step, choices, edges)
        named = _lanes_of_phases(spans, by_level)
    lanes = [_lane(spans, name, kind, bars) for name, kind, bars in named]
    return Timeline(
        step_s=_rounded(spans.step_s),
        lanes=[lane for lane in lanes if lane.bars],
        held_bytes=_memory(spans.of(spans.place == spans.peak_place)),
        peak_at_s=_rounded(spans.peak_at_s),
        peak_bytes=round(spans.peak_bytes),
        peak_task=spans.peak_task,
    )


def _lanes_of_phases(
    spans: TaskSpans, by_level: Mapping[str, Floats]
) -> Iterator[tuple[str, str, Bars]]:
    """Yields a lane for each phase of computing and each level of links: name, kind and tasks.

    A task that uses several levels is divided between them, the innermost first.
    """
    for number, (name, kind) in PHASES.items():
        yield name, kind, _tasks(spans, spans.kind == number)
    talks = spans.kind == COMMUNICATION
    start = spans.start_s[talks]
    for level, of_task in by_level.items():
        busy = of_task[spans.task[talks]]
        used = busy > 0.0
        yield f"Links {level}", "communication", (start[used], (start + busy)[used], busy[used])
        start = start + busy


def _lanes_of_places(spans: TaskSpans, names: list[str]) -> Iterator[tuple[str, str, Bars]]:
    """Yields two lanes for each place of a cluster: computing and communication."""
    for number, name in enumerate(names):
        here, talks = spans.place == number, spans.kind == COMMUNICATION
        yield f"{name}: compute", "compute", _tasks(spans, here & ~talks)
        yield f"{name}: links", "communication", _tasks(spans, here & talks)


def _tasks(spans: TaskSpans, chosen: NDArray[np.bool_]) -> Bars:
    start, end = spans.start_s[chosen], spans.end_s[chosen]
    return start, end, end - start


def _lane(spans: TaskSpans, name: str, kind: str, tasks: Bars) -> Lane:
    step_s = spans.step_s
    bars = _merged(_repeated(spans, tasks), step_s / FINEST)
    gap_s = step_s / FINEST
    while len(bars[0]) > MOST_BARS:
        gap_s *= 1.5
        bars = _merged(bars, gap_s)
    columns = zip(*(part.tolist() for part in bars), strict=True)
    return Lane(
        name=name,
        kind=kind,
        busy_s=_rounded(float(bars[2].sum())),
        bars=[Bar(*map(_rounded, bar)) for bar in columns],
    )


def _merged(bars: Bars, gap_s: float) -> Bars:
    """Returns bars, with neighbours at most `gap_s` apart merged."""
    start, end, busy = bars
    if not len(start):
        return bars
    first = np.flatnonzero(np.concatenate([[True], start[1:] - end[:-1] > gap_s]))
    last = np.concatenate([first[1:], [len(start)]]) - 1
    return start[first], end[last], np.add.reduceat(busy, first)


def _repeated(spans: TaskSpans, tasks: Bars) -> Bars:
    """Returns the bars of tasks, with repeated ones as often as they occur."""
    if not spans.times:
        return tasks
    begin, end = spans.repeat_s
    period = end - begin
    once = _cut(tasks, -np.inf, end)
    again = _merged(_cut(tasks, begin, end), spans.step_s / FINEST)
    after = _cut(tasks, end, np.inf)
    shifts = period * np.arange(1, spans.times + 1)
    starts, ends = ((shifts[:, None] + part[None, :]).ravel() for part in again[:2])
    later = spans.times * period
    return (
        np.concatenate([once[0], starts, after[0] + later]),
        np.concatenate([once[1], ends, after[1] + later]),
        np.concatenate([once[2], np.tile(again[2], spans.times), after[2]]),
    )


def _cut(tasks: Bars, begin: float, end: float) -> Bars:
    """Returns the parts of tasks within an interval of time."""
    start, stop = np.clip(tasks[0], begin, end), np.clip(tasks[1], begin, end)
    some = stop > start
    return start[some], stop[some], (stop - start)[some]


def _memory(spans: TaskSpans) -> list[int]:
    """Returns the peak in each of `STRETCHES` equal parts of the step."""
    step_s = spans.step_s
    if not step_s:
        return []
    (begin, end), times = spans.repeat_s, spans.times
    edges = np.linspace(0.0, step_s, STRETCHES + 1)
    later = times * (end - begin)
    # The times in the written step that each interval shows.
    most = np.zeros(STRETCHES)
    for number, (left, right) in enumerate(pairwise(edges.tolist())):
        for low, high in _written(left, right, begin, end, later):
            most[number] = max(most[number], _most_held(spans, low, high))
    return most.round().astype(np.int64).tolist()


def _written(
    left: float, right: float, begin: float, end: float, later: float
) -> Iterator[tuple[float, float]]:
    """Yields the intervals of the written step shown by an interval of the whole one."""
    if left < end or not later:
        yield left, min(right, end) if later else right
    if later and right > end and left < end + later:
        low, high = max(left, end) - end, min(right, end + later) - end
        period = end - begin
        if high - low >= period:
            yield begin, end
        else:
            low, high = low % period, high % period
            if low <= high:
                yield begin + low, begin + high
            else:
                yield begin + low, end
                yield begin, begin + high
    if later and right > end + later:
        yield max(left - later, end), right - later


def _most_held(spans: TaskSpans, left: float, right: float) -> float:
    """Returns the peak from `left` to `right`: at the beginning, or at a start within it."""
    first = int(np.searchsorted(spans.start_s, left, side="right")) - 1
    last = int(np.searchsorted(spans.start_s, right, side="left"))
    return float(spans.held_bytes[max(first, 0) : max(last, 1)].max(initial=0.0))


def _rounded(value: float) -> float:
    """Returns a number rounded to six significant digits, enough for a chart."""
    return float(f"{value:.6g}")
