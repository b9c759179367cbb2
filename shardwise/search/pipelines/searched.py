"""The schedules that are searched, by name.

`1f1b`, `1f1b-eager` and `gpipe` have one stage on each rank, and so has `zb-h1`, whose backward is
split; `interleaved:2` is `interleaved` with two, `zb-h1:2` is `zb-h1` with two. `zbv` and
`dualpipev`, split as well, always have two. A name and numbers of ranks and micro-batches make a
`Run`: how many stages there are, how many micro-batches each keeps, and in which order they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Schedule
from shardwise.pipeline.asked import WHOLE_BACKWARD
from shardwise.pipeline.keeping import BACKWARD, FIRST, Counts, Keeping, keeping
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.schedules import SCHEDULES as RULES
from shardwise.pipeline.schedules import allows, schedule

SCHEDULES = WHOLE_BACKWARD

INTERLEAVED, ZB_H1 = "interleaved", "zb-h1"
LOOPED = (INTERLEAVED, ZB_H1)
"""Schedules with any number of stages per rank, in a loop."""

SPLIT = (ZB_H1, "zbv", "dualpipev")
"""Schedules that split backward."""

MOST_EACH = 8
"""Maximum number of stages per rank."""


class ScheduleKind(NamedTuple):
    """The number of stages on each rank, and whether backward is split."""

    each: int
    splits: bool


@dataclass(frozen=True)
class Searched:
    """A schedule and the number of stages on each rank."""

    name: str
    stages_per_rank: int = 1

    @classmethod
    def of(cls, text: str) -> Searched:
        """Returns what a text such as `1f1b`, `interleaved:2` or `zb-h1:2` names.

        Raises `BadInput` for what is not searched.
        """
        if text in SCHEDULES:
            return cls(text)
        if text in SPLIT:
            return cls(text, RULES[text].stages_per_rank or 1)
        name, _, each = text.partition(":")
        if name in LOOPED and each in map(str, range(2, MOST_EACH + 1)):
            return cls(name, int(each))
        raise BadInput(
            f"unknown schedule {text[:80]!r}",
            field="schedules",
            expected=", ".join(
                (*SCHEDULES, *SPLIT, *(f"{n}:2 to {n}:{MOST_EACH}" for n in LOOPED))
            ),
        )

    def __str__(self) -> str:
        several = self.name in LOOPED and self.stages_per_rank > 1
        return f"{self.name}:{self.stages_per_rank}" if several else self.name

    @property
    def kind(self) -> ScheduleKind:
        """The kind of the schedule; schedules of one kind are searched together."""
        return ScheduleKind(self.stages_per_rank, self.splits)

    @property
    def splits(self) -> bool:
        """Whether backward is split."""
        return RULES[self.name].splits

    def stages(self, ranks: int) -> int:
        """Returns the number of stages on this many ranks."""
        return ranks * self.stages_per_rank

    def allows(self, ranks: int, micro_batches: int) -> bool:
        """Returns whether the schedule exists for these sizes."""
        return allows(
            self.name,
            ranks=ranks,
            micro_batches=micro_batches,
            stages_per_rank=self.stages_per_rank,
        )


def check_schedules(names: Sequence[str]) -> None:
    """Raises `BadInput` for schedules that are not searched, or none."""
    for name in names or ("",):
        Searched.of(name)


def ordered(names: Sequence[str]) -> list[str]:
    """Returns schedules in one order, each once. Raises `BadInput` as `check_schedules`."""
    every = {Searched.of(name) for name in names}
    first = {name: place for place, name in enumerate((*SCHEDULES, INTERLEAVED, *SPLIT))}
    return [str(one) for one in sorted(every, key=lambda s: (first[s.name], s.stages_per_rank))]


def kept(name: str, stages: int, micro_batches: int) -> list[int]:
    """Returns the number of micro-batches that each stage keeps under a schedule with one stage per
    rank (docs/pipeline-schedules.md)."""

    def window(behind: int) -> int:
        return {"gpipe": micro_batches, "1f1b": behind + 1, "1f1b-eager": 2 * behind + 1}[name]

    return [min(micro_batches, window(stages - 1 - stage)) for stage in range(stages)]


@dataclass(frozen=True)
class Run:
    """A schedule on given ranks with an allowed number of micro-batches."""

    of: Searched
    ranks: int
    micro_batches: int

    @property
    def each(self) -> int:
        """The number of stages on each rank."""
        return self.of.stages_per_rank

    @property
    def kind(self) -> ScheduleKind:
        """The kind of the schedule."""
        return self.of.kind

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.of.stages(self.ranks)

    @property
    def order(self) -> Schedule:
        """Each rank's actions in order."""
        return self._keeping.order

    @property
    def _keeping(self) -> Keeping:
        return keeping(self.of.name, self.ranks, self.micro_batches, self.each)

    def shortened(self, micro_batches: int) -> Schedule:
        """Returns the order of fewer micro-batches, or of all if the schedule does not allow
        these."""
        if micro_batches >= self.micro_batches or not self.of.allows(self.ranks, micro_batches):
            return self.order
        return schedule(
            self.of.name,
            ranks=self.ranks,
            micro_batches=micro_batches,
            stages_per_rank=self.each,
        )

    @property
    def placement(self) -> Placement:
        """Which rank has which stages."""
        return self.order.placement

    @cached_property
    def rank_of(self) -> list[int]:
        """The rank of each stage."""
        return [self.placement.rank_of(stage) for stage in range(self.stages)]

    @cached_property
    def placed(self) -> list[tuple[int, ...]]:
        """The stages of each rank."""
        return [self.placement.stages_of(rank) for rank in range(self.ranks)]

    @cached_property
    def kept(self) -> list[int]:
        """The number of micro-batches that each stage keeps; for several stages on a rank, when
        they keep most together. Micro-batches that wait for the backward of weights count as
        kept."""
        if self.each == 1 and not self.of.splits:
            return kept(self.of.name, self.stages, self.micro_batches)
        held = (of_rank.kept + of_rank.waiting for of_rank in self._keeping.distinct)
        return self._at_least_one([of[of.sum(axis=1).argmax()] for of in held])

    @cached_property
    def surely_kept(self) -> list[int]:
        """The maximum number of micro-batches that each stage keeps, excluding waiting ones, while
        it runs a backward (of inputs) when all of its gradients exist."""
        of_ranks = []
        for own, moments in zip(self.placed, self._keeping.distinct, strict=True):
            later = (moments.part == BACKWARD) & (moments.turn != FIRST)
            rows = [later & (moments.place == place) for place in range(len(own))]
            most = [moments.kept[of, place].max(initial=1) for place, of in enumerate(rows)]
            of_ranks.append(np.array(most))
        return self._at_least_one(of_ranks)

    def _at_least_one(self, of_ranks: Sequence[Counts]) -> list[int]:
        """Returns values of ranks' stages in stage order, 1 or more."""
        counts = [1] * self.stages
        for own, of_rank in zip(self.placed, of_ranks, strict=True):
            for stage, count in zip(own, of_rank.tolist(), strict=True):
                counts[stage] = max(count, 1)
        return counts

    @property
    def windows(self) -> list[int]:
        """The number of forwards that each stage, one per rank, starts before it waits for a
        gradient."""
        return [1] * self.stages if self.of.name == "gpipe" else self.kept

    def repeats(self, hidden: float) -> list[float]:
        """Returns how often the longest stage repeats beyond one pass through all stages: c_s of
        `cuts.py`, with `hidden` forward's share of a pass."""
        if self.of.splits:
            # Filling and draining are short, so cuts are even if stages are.
            return [float(self.each * self.micro_batches)] * self.stages
        if self.each > 1:
            # Exact for equal stages: v A passes of the longest and p - 1 more.
            ahead = self.each * (self.micro_batches - self.ranks) + self.ranks - 1
            return [float(ahead)] * self.stages
        return [self.micro_batches - 1 - (k - 1) * hidden for k in self.windows]
