"""Staircases: frontiers of unit ranges, added up from those of single units.

If a guide fixes the layouts between all units, not only at cuts, units are independent, and a
range's frontier is the sum of its units' (the best time over all divisions of its memory). A unit's
frontier is solved once for all equal units; ranges are summed by halves, so r equal units take log
r sums. The result is a real strategy, slower than the best of `stages.py` by what changing layouts
within a range would gain, but good enough to choose cuts.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.search.pipelines.stages import StageProblems
from shardwise.sharding.layout import Floats

SOLVED_FOR = (1, 2, 4, 8, 16, 32)
"""Numbers of kept micro-batches for which a unit's frontier is solved; others take the best of
these strategies."""

STEPS = 128
"""Maximum number of points of a staircase."""


@dataclass(frozen=True)
class Staircase:
    """Non-dominated strategies, bytes ascending and seconds descending, shape (P,) each."""

    memory_bytes: Floats
    time_s: Floats

    @classmethod
    def of(cls, memory_bytes: Floats, time_s: Floats) -> Staircase:
        """Returns the non-dominated points, at most `STEPS` of them."""
        order = np.lexsort((time_s, memory_bytes))
        memory, time = memory_bytes[order], time_s[order]
        ahead = np.minimum.accumulate(np.append(inf, time[:-1]))
        kept = time < ahead
        memory, time = memory[kept], time[kept]
        if len(memory) > STEPS:
            # Keep the fastest per step, so that a limit loses at most one step of memory.
            logs = np.log(np.maximum(memory, 1.0))
            step = np.ceil((logs - logs[0]) / (logs[-1] - logs[0]) * (STEPS - 1))
            last = np.append(step[1:] != step[:-1], True)
            memory, time = memory[last], time[last]
        return cls(memory, time)

    def __add__(self, other: Staircase) -> Staircase:
        return Staircase.of(
            (self.memory_bytes[:, None] + other.memory_bytes[None, :]).ravel(),
            (self.time_s[:, None] + other.time_s[None, :]).ravel(),
        )

    def within(self, limit_bytes: float) -> float:
        """Returns the least seconds within a memory; infinite if none fits."""
        place = int(np.searchsorted(self.memory_bytes, limit_bytes, side="right")) - 1
        return inf if place < 0 else float(self.time_s[place])


@dataclass
class Staircases:
    """The staircases of the ranges of a model's units, under the guide of `stages`."""

    stages: StageProblems
    most_kept: int
    """The maximum number of micro-batches that a stage keeps."""
    _of_unit: list[int] = field(init=False)
    _by_step: list[NDArray[np.int64]] = field(default_factory=list)
    _solved: dict[Hashable, tuple[Floats, Floats, Floats]] = field(default_factory=dict)
    _known: dict[tuple[int, tuple[Hashable, ...]], Staircase] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers: dict[Hashable, int] = {}
        self._of_unit = []
        for unit in range(len(self.stages.units)):
            kind = self.stages.kind(unit, unit + 1)
            if kind not in numbers:
                numbers[kind] = len(numbers)
                self._solved[numbers[kind]] = self._strategies(unit)
            self._of_unit.append(numbers[kind])

    def fastest_s(self, first: int, last: int, kept: int, limit_bytes: float) -> float:
        """Returns the seconds of units `first` to `last` - 1 within a memory, as
        `StageProblems.fastest`; infinite where nothing fits."""
        left = self.stages.left_bytes(first, kept, limit_bytes)
        if left <= 0:
            return inf
        return self.of_range(first, last, kept).within(left)

    def alike(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns class numbers of the ranges of units `first`, (I, 1), to `last` - 1, (1, J), with
        `first` < `last`: equal for equal units with equal incoming tensors, (I, J).

        A range's number is made of those of its first and its last 2^k units, with the largest
        possible k (as in a suffix array).
        """
        lengths = last - first
        steps = np.frexp(lengths)[1] - 1
        numbers = np.zeros(lengths.shape, dtype=np.int64)
        for step in np.unique(steps).tolist():
            of_blocks = self._blocks(step)
            at = steps == step
            most = int(of_blocks.max()) + 1
            begins, ends = (np.broadcast_to(x, lengths.shape)[at] for x in (first, last))
            pair = of_blocks[begins] * most + of_blocks[ends - (1 << step)]
            numbers[at] = pair * (len(self._of_unit) + 1) + lengths[at]
        _, incoming = np.unique(
            [self.stages.incoming_bytes(cut) if cut else 0.0 for cut in first.ravel().tolist()],
            return_inverse=True,
        )
        return numbers * first.size + incoming[:, None]

    def _blocks(self, step: int) -> NDArray[np.int64]:
        """Returns class numbers of the 2^`step` units from each unit on."""
        while len(self._by_step) <= step:
            if not self._by_step:
                self._by_step.append(np.array(self._of_unit, dtype=np.int64))
                continue
            half = self._by_step[-1]
            ahead = np.concatenate([half[1 << (len(self._by_step) - 1) :], half])[: len(half)]
            pairs = half * (int(half.max()) + 1) + ahead
            self._by_step.append(np.unique(pairs, return_inverse=True)[1])
        return self._by_step[step]

    def of_range(self, first: int, last: int, kept: int) -> Staircase:
        """Returns the strategies of units `first` to `last` - 1, without what every device holds
        and incoming tensors."""
        return self._range(kept, tuple(self._of_unit[first:last]))

    def _range(self, kept: int, kinds: tuple[Hashable, ...]) -> Staircase:
        key = kept, kinds
        if key not in self._known:
            if len(kinds) == 1:
                parameters, activations, time = self._solved[kinds[0]]
                self._known[key] = Staircase.of(parameters + kept * activations, time)
            else:
                half = 1 << ((len(kinds) - 1).bit_length() - 1)
                self._known[key] = self._range(kept, kinds[:half]) + self._range(kept, kinds[half:])
        return self._known[key]

    def _strategies(self, unit: int) -> tuple[Floats, Floats, Floats]:
        """Returns lasting bytes, bytes per kept micro-batch and seconds of a unit's strategies."""
        numbers = [k for k in SOLVED_FOR if k < self.most_kept] + [self.most_kept]
        columns = [self.stages.frontier(unit, unit + 1, kept) for kept in numbers]
        lasting, activations, time = map(np.concatenate, zip(*columns, strict=True))
        return lasting, activations, time
