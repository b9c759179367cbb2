"""The search for pipelines over numbers of stages, micro-batches, schedules, cuts and strategies.

Numbers of stages p and micro-batches A are tried in the order of their bounds (`bounds.py`);
`staged.py` searches one p and A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from shardwise.cost.host import Launching
from shardwise.cost.options import Options, Progress, go_on
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.replay.stages import FEWEST
from shardwise.search.gaps import unbeaten
from shardwise.search.pipelines.bounds import least_step_s, ranges_of
from shardwise.search.pipelines.certified import least_within
from shardwise.search.pipelines.devices import Order, devices_for
from shardwise.search.pipelines.kinds import StageKind, StageKinds
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.question import Guided, PipelineQuery, Within
from shardwise.search.pipelines.rules import divided, rules_of
from shardwise.search.pipelines.searched import (
    SCHEDULES,
    Run,
    ScheduleKind,
    Searched,
    ordered,
)
from shardwise.search.pipelines.staged import Staged
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units

HOPELESS = 1.25
"""Pipelines whose sums are this many times the best replayed step are not replayed: overlap saves
less."""

NEAR_LIMIT = (1.0, 0.6, 0.35)
"""Guides near the memory limit: shares of all stages' memory."""

ALL_MEMORIES = (*NEAR_LIMIT, 0.2, 0.1)
"""Guides of frontiers: shares of all stages' memory."""

LEVELS = 12
"""Number of memories of a frontier, per number of stages and micro-batches, guide and schedule."""

STEADY = 0.02
"""Bisection ends when the least memory is known to this relative accuracy."""

PROMISING = 1.08
"""Points are replayed if their sums take at most this many times the best sums within their
memory."""


@dataclass(frozen=True)
class Fastest:
    """The fastest pipeline that was found, of a frontier within its own peak; None where none fits.

    `prove` returns a time that no pipeline of what was asked for is below there; it is not raised
    any more once it reaches the argument, in seconds.
    """

    pipeline: Pipeline | None
    prove: Callable[[float], float]

    @classmethod
    def of_proof(cls, pipeline: Pipeline | None, least_s: float) -> Fastest:
        """Returns a pipeline with a proof that was made."""
        return cls(pipeline, lambda _: least_s)

    @cached_property
    def least_s(self) -> float:
        """What was proven, without a limit to the effort."""
        return self.prove(inf)


@dataclass(frozen=True)
class _Level:
    """The best sums of one guide and schedule within a memory."""

    staged: Staged
    guided: Guided
    run: Run
    limit_bytes: float
    best: Within

    @property
    def step_s(self) -> float:
        """The summed time of a step."""
        return self.best.cuts.step_s

    def pipeline(self, *, quick: bool = False, cutoff_s: float = inf) -> Pipeline | None:
        """Returns the replayed pipeline of these sums, or None if a stage's peak does not fit or
        the sums reach `cutoff_s`."""
        if self.step_s >= cutoff_s:
            return None
        made = self.staged.replayed(self.guided, self.run, self.best, quick=quick)
        return made if made.fits else None

    def within_peak(self, limit_bytes: float) -> Pipeline | None:
        """Returns the fastest pipeline found whose replayed peaks are within a limit."""
        return self.staged.fastest(self.guided, self.run, limit_bytes)


_Made = tuple[_Level, Pipeline]


@dataclass
class _Found:
    """The levels of one kind of schedules, and of their exactly solved pipelines. Kept per kind, so
    adding schedules never removes points."""

    levels: list[_Level] = field(default_factory=list)
    exact: list[_Made] = field(default_factory=list)
    best_s: float = inf

    def meet(self, of_schedule: list[_Level]) -> None:
        """Adds the levels of one guide and schedule, the most memory first."""
        self.levels += of_schedule
        # A pipeline that ranks lower by sums may be the fastest when replayed.
        for level in of_schedule[:1]:
            made = level.pipeline(cutoff_s=HOPELESS * self.best_s)
            if made is not None:
                self.exact.append((level, made))
                self.best_s = min(self.best_s, made.step_s)

    def unbeaten(self, progress: Progress, share: tuple[float, float]) -> list[_Made]:
        """Returns the replayed pipelines that none of these beats; `share` is the progress before
        and after."""
        quick = [(level, level.pipeline(quick=True)) for level in _promising(self.levels)]
        unbeaten = _unbeaten([(level, pipeline) for level, pipeline in quick if pipeline])
        for number, (level, pipeline) in enumerate(unbeaten):
            done = share[0] + share[1] * number / len(unbeaten)
            go_on(progress, "pipelines", 0.8 + 0.2 * done)
            made = level.within_peak(pipeline.scaled_peak_bytes) or level.pipeline()
            if made is not None:
                self.exact.append((level, made))
        return _unbeaten([*unbeaten, *self.exact])


@dataclass
class PipelineSearch:
    """Searches the pipelines of a graph on `gpus` devices or a bundle.

    `staged` is the graph's staged subject, if the caller has it.
    """

    graph: Graph
    hardware: Hardware
    gpus: Devices
    options: Options
    progress: Progress
    schedules: Sequence[str] = SCHEDULES[:2]
    staged: StagedSubject | None = None

    def __post_init__(self) -> None:
        """Raises `BadInput` for schedules that are not searched and stage pins that cannot hold,
        and `Infeasible` as `mesh_of`."""
        self._schedules = [Searched.of(name) for name in ordered(self.schedules)]
        self._devices = devices_for(self.hardware, self.gpus)
        self._staged = self.staged or StagedSubject.of(self.graph)
        pins, others = divided(self.options.pins)
        self._searched = replace(self.options, pins=others)
        subject = self._staged.subject
        self._rules, self._units = rules_of(pins, subject.coarsened, Units.of(subject.patterns))

    @property
    def units(self) -> Units:
        """The units of the graph."""
        return self._units

    def counts(self) -> list[int]:
        """Returns the numbers of ranks, from 2, allowed by the graph, the devices and one of the
        schedules."""
        most = min(len(self._units), self._devices.gpus)
        return [
            p
            for p in range(2, most + 1)
            if self._devices.orders(p) and any(self._leave(s, p) for s in self._schedules)
        ]

    def _leave(self, schedule: Searched, ranks: int) -> bool:
        """Returns whether the units and pins allow a schedule's stages."""
        stages = schedule.stages(ranks)
        return stages <= len(self._units) and self._rules.leave(stages)

    def fastest(self, stages: Sequence[int], cutoff_s: float = inf) -> Fastest:
        """Returns the fastest pipeline of one of these numbers of stages that fits; none that is
        surely no faster than `cutoff_s`. The proof is made when it is asked for.

        Raises `BadInput` for numbers of stages that are not among `counts`.
        """
        best: Pipeline | None = None
        best_s = cutoff_s
        # What sums rank behind others may be faster when it is replayed: those of one kind
        # of schedules are not judged by another's.
        known_s: dict[ScheduleKind, float] = {}
        bounded: list[tuple[float, Staged]] = []
        questions = sorted(self.questions(stages), key=lambda q: q.least_s)
        for number, question in enumerate(questions):
            share = number / len(questions)
            go_on(self.progress, "pipelines", share)
            if question.least_s >= best_s:
                break
            staged = Staged(question, self.progress, NEAR_LIMIT, self._at(share))
            bounded.append((staged.least_s(), staged))
            if bounded[-1][0] >= best_s:
                continue
            for guided in staged.guided:
                for run in question.runs:
                    hopeless_s = HOPELESS * known_s.get(run.kind, cutoff_s)
                    pipeline = staged.fastest(guided, run, staged.limit_bytes, hopeless_s)
                    if pipeline is not None:
                        of_kind = known_s.get(run.kind, cutoff_s)
                        known_s[run.kind] = min(of_kind, pipeline.step_s)
                        if pipeline.step_s < best_s:
                            best, best_s = pipeline, pipeline.step_s
        near_s = best_s / (1.0 + self.options.epsilon)
        rest_s = min((q.least_s for q in questions[len(bounded) :]), default=inf)

        def prove(enough_s: float) -> float:
            return min(rest_s, self._proven_s(bounded, min(near_s, enough_s)))

        return Fastest(best, prove)

    def _proven_s(self, bounded: Sequence[tuple[float, Staged]], enough_s: float) -> float:
        """Returns what none of these questions' pipelines takes less than, of which bounds without
        memory are given; one of `enough_s` is not raised."""
        proven = [least_s for least_s, _ in bounded]
        for number in sorted(range(len(proven)), key=lambda number: proven[number]):
            least_s, staged = bounded[number]
            if least_s < enough_s:
                go_on(self.progress, "pipelines", 1.0)
                within_s = staged.least_within_s(staged.limit_bytes, enough_s=enough_s)
                proven[number] = max(least_s, within_s)
                # The least of all counts, so the others need not be raised above it.
                enough_s = min(enough_s, proven[number])
        return min(proven, default=inf)

    def frontier(self, stages: Sequence[int]) -> list[Pipeline]:
        """Returns the pipelines with these numbers of stages that none found beats in peak and
        step, by ascending peak, all within the memory limit.

        Raises `BadInput` as `fastest`.
        """
        return self.frontier_with_questions(stages)[0]

    def certified(self, stages: Sequence[int]) -> list[Fastest]:
        """Returns the same, each with a lower bound on every queried pipeline within its peak."""
        pipelines, searched = self.frontier_with_questions(stages)
        peaks = np.array([pipeline.scaled_peak_bytes for pipeline in pipelines])
        steps = np.array([pipeline.step_s for pipeline in pipelines])
        least = least_within(searched, peaks, steps, self.options.epsilon, self._at(1.0))
        return [
            Fastest.of_proof(pipeline, least_s)
            for pipeline, least_s in zip(pipelines, least.tolist(), strict=True)
        ]

    def frontier_with_questions(self, stages: Sequence[int]) -> tuple[list[Pipeline], list[Staged]]:
        """Returns the same, and all queries with their results."""
        questions = sorted(self.questions(stages), key=lambda q: q.least_s)
        searched: list[Staged] = []
        kinds = sorted({schedule.kind for schedule in self._schedules})
        found = {kind: _Found() for kind in kinds}
        for number, question in enumerate(questions):
            go_on(self.progress, "pipelines", 0.6 * number / len(questions))
            staged = Staged(question, self.progress, ALL_MEMORIES)
            searched.append(staged)
            for guided in staged.guided:
                for run in question.runs:
                    found[run.kind].meet(list(_levels(staged, guided, run)))
        every = [
            of_kind.unbeaten(self.progress, (number / len(kinds), 1.0 / len(kinds)))
            for number, of_kind in enumerate(found.values())
        ]
        unbeaten = _unbeaten([one for some in every for one in some])
        return [pipeline for _, pipeline in unbeaten], searched

    def _at(self, share: float) -> Progress:
        """Returns a progress callback that reports a fixed share."""
        return lambda _, __: self.progress("pipelines", share)

    def questions(self, stages: Sequence[int]) -> Iterator[PipelineQuery]:
        """Yields every number of stages with every number of micro-batches.

        Raises `BadInput` as `fastest`.
        """
        possible = self.counts()
        for p in stages:
            if p not in possible:
                raise BadInput(
                    f"{p} stages of {self._devices} and {len(self._units)} units"
                    + ("" if self._rules.are_none else ", with the stage pins"),
                    field="stages",
                    expected=", ".join(map(str, possible)) or "no pipeline is possible",
                )
            for batches in self.options.counts(self.graph.batch_size):
                runs = [
                    Run(schedule, p, batches)
                    for schedule in self._schedules
                    if self._leave(schedule, p) and schedule.allows(p, batches)
                ]
                if runs and batches >= max(FEWEST, p):
                    kinds = self._kinds(p, batches)
                    for order in self._devices.orders(p):
                        yield self._question(order, kinds, runs)

    def _kinds(self, ranks: int, batches: int) -> StageKinds:
        """Returns the model's costs on the devices of a rank, of each kind."""
        subject, options = self._staged.subject, self._searched
        drafts = self._devices.drafts(subject, ranks, options, self.progress, batches)
        return StageKinds(
            tuple(
                StageKind(draft, self._units, self.progress, group)
                for group, draft in drafts.items()
            ),
            *self._devices.several,
        )

    def _question(self, order: Order, kinds: StageKinds, runs: Sequence[Run]) -> PipelineQuery:
        batches = runs[0].micro_batches
        first = kinds.each[order.kind_of[0]]
        # Beside a host an update may add less than it computes (`bounds.updates_beside`).
        is_free = Launching.of(first.draft.groups.context).is_free
        surely_s = first.update_s if is_free else np.zeros_like(first.update_s)
        by_kind = [ranges_of(kind.passes_s / batches) for kind in kinds.each]
        ranges_s = [by_kind[kind] for kind in order.kind_of]
        least_s = min(
            float(first.passes_s.sum()) / len(order.kind_of)
            if run.each > 1 or run.of.splits
            else least_step_s(ranges_s, surely_s, batches)
            for run in runs
        )
        return PipelineQuery(
            order.mesh,
            self._units,
            self._rules,
            self._staged.tied,
            order.axes,
            kinds,
            order.kind_of,
            runs,
            least_s,
        )


def _levels(staged: Staged, guided: Guided, run: Run) -> Iterator[_Level]:
    """Yields the best sums within memories from the least to the limit."""
    most, least = staged.limit_bytes, 0.0
    best = staged.best(guided, run, staged.even(most))
    if best is None:
        return
    yield _Level(staged, guided, run, most, best)
    fits = most
    while fits - least > STEADY * most:
        middle = (fits + least) / 2
        if staged.best(guided, run, staged.even(middle)) is None:
            least = middle
        else:
            fits = middle
    for limit in np.geomspace(fits, most, LEVELS)[:-1].tolist():
        best = staged.best(guided, run, staged.even(limit))
        if best is not None:
            yield _Level(staged, guided, run, limit, best)


def _unbeaten(made: Sequence[tuple[_Level, Pipeline]]) -> list[tuple[_Level, Pipeline]]:
    """Returns the pipelines that none beats in peak and step, by ascending peak."""
    peaks = np.array([pipeline.scaled_peak_bytes for _, pipeline in made])
    steps = np.array([pipeline.step_s for _, pipeline in made])
    return [made[i] for i in unbeaten(peaks, steps).tolist()]


def _promising(levels: Sequence[_Level]) -> list[_Level]:
    """Returns the levels whose sums are near the best within their memory, and faster than the same
    pipelines with less."""
    ordered = sorted(levels, key=lambda level: level.limit_bytes)
    best_s, kept = inf, []
    known: set[tuple[int, Run, float]] = set()
    for level in ordered:
        best_s = min(best_s, level.step_s)
        same = id(level.guided), level.run, level.step_s
        if level.step_s <= PROMISING * best_s and same not in known:
            known.add(same)
            kept.append(level)
    return kept
