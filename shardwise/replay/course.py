"""The layers of a written program in order, with omitted layers inserted.

A written program is a sequence of stretches, each of one layer or of none (`Tape.stretches`). In
every phase the written layers of a repetition are consecutive, ascending or descending. The omitted
layers come between the earlier and the later ones. They are copies of the last earlier one, with
its numbers shifted; its references are to its own layer, to a layer at the same distance, or to
something common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.replay.layers import EARLY, KEPT, Repetition
from shardwise.replay.record import Numbers
from shardwise.replay.tape import NOBODY

TEMPLATE = EARLY - 1
"""The written layer that represents the omitted ones, which come after it."""
ALIKE = range(1, KEPT - 2)
"""The written layers that must have the same structure."""


class Unlike(Exception):
    """Written layers differ, so they cannot represent others."""


@dataclass(frozen=True)
class Course:
    """A sequence of stretches, (c,), with the layer of each, and the sequence of the whole program.

    `series` numbers the stretches of one repetition in one phase, -1 for none; `repetition` and
    `rank` are their repetition, and which of its written layers. For the whole sequence, (x,),
    `source` is the stretch that each one copies, and `layer` its layer. Layer n of a series is at
    `base` + n · `step` there; stretches of no layer are at `base`.
    """

    series: Numbers
    repetition: Numbers
    rank: Numbers
    base: Numbers
    step: Numbers
    source: Numbers
    layer: Numbers
    left_out: Numbers

    @classmethod
    def of(cls, layers: Sequence[int], repetitions: Sequence[Repetition]) -> Course:
        """Returns the sequence of stretches of these layers; raises `Unlike` if the layers of a
        repetition are not consecutive."""
        count = len(layers)
        series, base, step = (np.full(count, NOBODY) for _ in range(3))
        source: list[int] = []
        layer: list[int] = []
        at = found = 0
        while at < count:
            if layers[at] == NOBODY:
                base[at] = len(source)
                source.append(at)
                layer.append(NOBODY)
                at += 1
                continue
            number = layers[at] // KEPT
            written = list(layers[at : at + KEPT])
            upwards = [number * KEPT + rank for rank in range(KEPT)]
            if written not in (upwards, upwards[::-1]):
                raise Unlike
            left_out = repetitions[number].left_out
            is_up = written == upwards
            stretch, of = slice(at, at + KEPT), list(range(at, at + KEPT))
            series[stretch], step[stretch] = found, 1 if is_up else -1
            middle = at + (TEMPLATE if is_up else KEPT - 1 - TEMPLATE)
            cut = EARLY if is_up else KEPT - EARLY
            every = range(KEPT + left_out) if is_up else range(KEPT + left_out - 1, -1, -1)
            base[stretch] = len(source) + (0 if is_up else KEPT + left_out - 1)
            source += [*of[:cut], *[middle] * left_out, *of[cut:]]
            layer += every
            at, found = at + KEPT, found + 1
        own = np.array(layers, dtype=np.int64)
        repetition = np.where(own == NOBODY, NOBODY, own // KEPT)
        return cls(
            series, repetition, np.where(own == NOBODY, NOBODY, own % KEPT), base, step,
            np.array(source, dtype=np.int64), np.array(layer, dtype=np.int64),
            np.array([r.left_out for r in repetitions], dtype=np.int64),
        )  # fmt: skip

    def layer_of(self, stretches: Numbers) -> Numbers:
        """Returns which of all the layers some written stretches are of."""
        rank = self.rank[stretches]
        later = np.where(rank >= EARLY, self.left_out[self.repetition[stretches]], 0)
        return rank + later


class Space:
    """Numbers assigned in the stretches of a course: `starts` (c + 1,) are the first numbers of
    each, and the end."""

    def __init__(self, course: Course, starts: Numbers) -> None:
        self.course, self.starts = course, starts
        sizes = np.diff(starts)
        of_series = course.series >= 0
        alike = of_series & (course.rank >= ALIKE.start) & (course.rank < ALIKE.stop)
        for series in np.unique(course.series[alike]):
            if len(np.unique(sizes[alike & (course.series == series)])) > 1:
                raise Unlike
        self._alike = alike
        ends = np.cumsum(sizes[course.source])
        self.whole_starts = np.concatenate(([0], ends))
        self.count = int(self.whole_starts[-1])
        self._sizes = sizes
        # The source and layer of every number of the whole program.
        repeated = sizes[course.source]
        offset = np.arange(self.count) - np.repeat(self.whole_starts[:-1], repeated)
        self.sources = np.repeat(starts[course.source], repeated) + offset
        self.layers = np.repeat(course.layer, repeated)

    def stretches(self, numbers: Numbers) -> Numbers:
        """Returns the stretch that each number was written in."""
        return np.searchsorted(self.starts, numbers, side="right") - 1

    @cached_property
    def own(self) -> Numbers:
        """The stretch of every written number."""
        return np.repeat(np.arange(len(self._sizes)), self._sizes)

    @cached_property
    def neighbours(self) -> tuple[Numbers, Numbers]:
        """Numbers of layers that must have the same structure, and the corresponding ones of the
        layer after."""
        course = self.course
        lower = self._alike & (course.rank < ALIKE.stop - 1)
        of = np.flatnonzero(lower[self.own])
        stretch = self.own[of]
        return of, of - self.starts[stretch] + self.starts[stretch + course.step[stretch]]

    @cached_property
    def is_alike(self) -> NDArray[np.bool_]:
        """Whether numbers are of layers that are to be alike."""
        return self._alike[self.own]

    def whole(self, numbers: Numbers, layers: Numbers) -> Numbers:
        """Returns the numbers in the whole program for what was written in one layer, in all its
        layers; numbers of no layer are unchanged."""
        stretch = self.stretches(numbers)
        course = self.course
        at = course.base[stretch] + np.where(
            course.series[stretch] >= 0, course.step[stretch] * layers, 0
        )
        return self.whole_starts[at] + numbers - self.starts[stretch]

    def boundary(self, number: int) -> int:
        """Returns the position in the whole program of a phase that begins or ends at a number."""
        if number == self.starts[-1]:
            return self.count
        begins = np.flatnonzero((self.starts[:-1] == number) & (self.course.series < 0))
        if not len(begins):
            raise Unlike
        return int(self.whole_starts[self.course.base[begins[0]]])
