"""Crossing paths that are at a known place at some moment.

In a part of the strategies a crossing path may surely be at one place when some task ends there.
Then the longest path at that place counts up to this task, if the crossing path claims no other
place, and from this task on again one at that place, with all communication there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.host import supporting_weights
from shardwise.replay.mixed.itinerary import Reached
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.mixed.wandering import Wanderer
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Stay:
    """A crossing path, by number, is surely at a place when its task ends; `alone`: it then claims
    no other place."""

    wanderer: int
    task: int
    place: int
    alone: bool


class WanderingPaths:
    """The longest crossing paths, some of which are at known places."""

    def __init__(
        self, replayer: MixedReplayer, wanderers: Sequence[Wanderer], stays: Sequence[Stay]
    ) -> None:
        self._replayer = replayer
        self._wanderers = wanderers
        self._stays = stays
        self._tasks = replayer.tasks
        self._itinerary = wanderers[0].itinerary
        last, first = self._itinerary.around_compute
        at = np.array([stay.task for stay in stays], dtype=np.int64)[:, None]
        self._later = (last[None, :] >= at) & (np.arange(self._tasks)[None, :] != at)
        self._earlier = first[None, :] <= at

    def longest(self, durations_s: Floats) -> tuple[Floats, Floats]:
        """Returns the longest paths of P strategies: durations (P, parts · tasks + 1) to `once` and
        `again` of `Paths`, (P, parts · tasks + 2)."""
        found = [self._of_one(row) for row in durations_s]
        once, again = (np.stack(rows) for rows in zip(*found, strict=True))
        return once, again

    def _of_one(self, durations_s: Floats) -> tuple[Floats, Floats]:
        before, after = self._ends(durations_s)
        count = len(self._replayer.places)
        best_s, best = -1.0, np.zeros(len(durations_s) - 1, dtype=bool)
        for number in range(len(self._wanderers)):
            own = self._part(durations_s, count + number)
            mine = [n for n, stay in enumerate(self._stays) if stay.wanderer == number]
            begins = {self._stays[n].task: before[0][n] for n in mine if self._stays[n].alone}
            reached = self._itinerary.longest(own, begins)
            ends = {reached.last(): (reached.length_s[reached.last()], -1)}
            for n in mine:
                length_s = reached.length_s[self._stays[n].task] + after[0][n]
                if length_s > ends.get(self._stays[n].task, (-1.0, -1))[0]:
                    ends[self._stays[n].task] = length_s, n
            task, (length_s, stay) = max(ends.items(), key=lambda item: item[1][0])
            if length_s > best_s:
                best_s = length_s
                best = self._members(number, reached, task, stay, mine, before[1], after[1])
        again = self._again(durations_s)
        return self._sloped(best, again, durations_s)

    def _ends(
        self, durations_s: Floats
    ) -> tuple[tuple[Floats, NDArray[np.bool_]], tuple[Floats, NDArray[np.bool_]]]:
        """Returns for each stay the longest path at its place before and after the end of its task:
        lengths (stays,) and tasks (stays, tasks)."""
        if not self._stays:
            nothing = np.zeros(0), np.zeros((0, self._tasks), dtype=bool)
            return nothing, nothing
        own = np.stack([self._part(durations_s, stay.place) for stay in self._stays])
        masks = np.concatenate([self._earlier, self._later])
        masked = np.where(masks, np.concatenate([own, own]), 0.0)
        lengths, members = self._replayer.kit.program.longest_paths(np.ascontiguousarray(masked))
        members = members & masks
        half = len(own)
        return (lengths[:half], members[:half]), (lengths[half:], members[half:])

    def _members(
        self,
        number: int,
        reached: Reached,
        task: int,
        stay: int,
        mine: list[int],
        before: NDArray[np.bool_],
        after: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Returns the tasks of one crossing path, (parts · tasks)."""
        count = len(self._replayer.places)
        parts = np.zeros((count + len(self._wanderers), self._tasks), dtype=bool)
        parts[count + number], began = reached.members(task)
        if began >= 0:
            first = next(n for n in mine if self._stays[n].task == began)
            parts[self._stays[first].place] |= before[first]
        if stay >= 0:
            parts[self._stays[stay].place] |= after[stay]
        return np.asarray(parts.ravel())

    def _again(self, durations_s: Floats) -> NDArray[np.bool_]:
        """Returns the tasks of the longest path through what is repeated, (parts · tasks)."""
        count, repeat = len(self._replayer.places), self._replayer.kit.repeat
        parts = np.zeros((count + len(self._wanderers), self._tasks), dtype=bool)
        if repeat is None:
            return np.asarray(parts.ravel())
        best_s = -1.0
        for number in range(len(self._wanderers)):
            own = self._part(durations_s, count + number)
            reached = self._itinerary.longest(own, first=repeat.begins)
            if reached.length_s[repeat.ends] > best_s:
                best_s = reached.length_s[repeat.ends]
                parts[:] = False
                parts[count + number], _ = reached.members(repeat.ends, repeat.begins)
        for place in range(count):
            own = np.ascontiguousarray(self._part(durations_s, place)[None, :])
            marks = repeat.begins, repeat.ends
            length_s, members = self._replayer.kit.program.longest_paths(own, between=marks)
            if length_s[0] > best_s:
                best_s = length_s[0]
                parts[:] = False
                parts[place] = members[0]
        return np.asarray(parts.ravel())

    def _sloped(
        self, once: NDArray[np.bool_], again: NDArray[np.bool_], durations_s: Floats
    ) -> tuple[Floats, Floats]:
        """Returns the tasks of a path with the slopes of the step's soft maximum."""
        repeat = self._replayer.kit.repeat
        times = 0 if repeat is None else repeat.times
        device_s = float(((once + times * again) * durations_s[:-1]).sum())
        device, host = supporting_weights(np.array([device_s]), durations_s[-1:])
        return (
            np.concatenate([device[0] * once, device, host]),
            np.concatenate([device[0] * again, np.zeros(2)]),
        )

    def _part(self, durations_s: Floats, number: int) -> Floats:
        return durations_s[number * self._tasks : (number + 1) * self._tasks]
