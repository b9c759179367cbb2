"""The pipelines of one number of stages and of micro-batches.

The whole model is costed once on the devices of one stage. Strategies of it near p times a memory
are the guides (`stages.py`); under each, cuts are ranked by staircases (`staircases.py`), the
stages between the best are solved exactly, and the answer is replayed and run as a pipeline.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Progress, quiet
from shardwise.errors import SolverError
from shardwise.hardware import Mesh
from shardwise.hardware.host import soft_maximum
from shardwise.pipeline.schedules import schedule as schedule_of
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.bounds import least_step_s, least_windowed_s, ranges_of
from shardwise.search.pipelines.cuts import TINY, Cuts, StageTime, best_cuts, moved, windows
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.pipeline import Pipeline, assembled, kept
from shardwise.search.pipelines.ranges import RangeBounds
from shardwise.search.pipelines.rules import StageRules
from shardwise.search.pipelines.stages import StageProblems, layouts_of, narrowed, regular
from shardwise.search.pipelines.staircases import Staircases
from shardwise.search.pipelines.subject import Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search
from shardwise.search.solver_errors import solver_errors
from shardwise.sharding.layout import Floats

ROUNDS = 4
"""How often cuts are chosen again after the stages between them have been solved exactly."""

SIMULATED = 4
"""How many micro-batches a stage's schedule is run for when cuts are moved; others add what the
slowest stage takes."""

SLACK = 0.6
"""How much more than an even share of the computation a stage may have."""

TRIES = 6
"""How often the parts of a limit that the sums of stages may take are changed, until the replayed
peaks, which have temporaries in them, are within it."""

BELOW = 0.998
"""How near those peaks should be to the limit."""


@dataclass(frozen=True)
class Question:
    """A number of stages and of micro-batches on the devices of a mesh.

    No pipeline of it takes less than `least_s`. Of each unit, (U,), at least: `passes_s` is what
    forward and backward of a step compute, `backward_s` what backward of a micro-batch and
    `update_s` what the update does, `host_s` what the host takes to launch a step.
    """

    mesh: Mesh
    units: Units
    rules: StageRules
    tied: Sequence[Tied]
    axes: StageAxes
    stages: int
    draft: Draft
    schedules: Sequence[str]
    least_s: float
    passes_s: Floats
    backward_s: Floats
    update_s: Floats
    host_s: Floats


@dataclass(frozen=True)
class Guided:
    """The stages under one guide, and with layouts of guides only (`narrow`).

    `hops_s` (U + 1,) are the seconds of a hop between any two stages, at most, by the unit before
    which the cut is, 0 where there is none.
    """

    stages: StageProblems
    narrow: StageProblems
    staircases: Staircases
    hops_s: Sequence[float]


@dataclass
class Staged:
    """A question, costed. `shares` are those of the memory of all stages that guides are within;
    `bounding` is told how bounds come on, where `progress` is not to be."""

    question: Question
    progress: Progress
    shares: Sequence[float]
    bounding: Progress = quiet

    def __post_init__(self) -> None:
        self._parts: dict[float, Floats] = {}

    @cached_property
    def search(self) -> Search:
        """The whole model on the devices of one stage."""
        return self.question.draft.joined(self.progress)

    @property
    def limit_bytes(self) -> float:
        """What a device may use."""
        return self.question.draft.limit_bytes

    @cached_property
    def guided(self) -> list[Guided]:
        """The stages under guides that differ in layouts between units."""
        problem, question = self.search.problem, self.question
        guides = list(_guides(problem, question, self.limit_bytes, self.shares))
        narrow = narrowed(problem, guides)
        most_kept = max(max(self.kept(name)) for name in question.schedules)
        under = []
        for guide in guides:
            stages = StageProblems(problem, question.units, guide)
            shares = [stages.incoming_bytes(cut) for cut in range(len(question.units) + 1)]
            pairs = range(question.stages - 1)
            hops = [max(question.axes.hop_s(s, share) for s in pairs) for share in shares]
            alike = replace(stages, narrow=narrow)
            under.append(Guided(stages, alike, Staircases(alike, most_kept), hops))
        return under

    def least_s(self, *, in_memory: bool = False) -> float:
        """Returns a bound on the step of every pipeline of the question, with what communicates in
        its stages' passes, and `in_memory` of those that fit; that of the question where the
        solver's memory does not do for one.

        Raises `Cancelled`.
        """
        of, batches = self.question, self.search.micro_batches
        try:
            windowed = []
            for schedule in of.schedules:
                ranges_s = [self._ranges.passes_s] * of.stages
                if in_memory:
                    ranges_s = self._ranges.within(self.kept(schedule), self.limit_bytes)
                least_s = least_step_s(ranges_s, of.update_s, batches)
                windows = self._windows(schedule)
                ahead_s = least_windowed_s(ranges_s, of.backward_s, of.update_s, windows, batches)
                windowed.append(max(least_s, ahead_s))
        except SolverError:
            return of.least_s
        return max(of.least_s, min(windowed))

    @cached_property
    def _ranges(self) -> RangeBounds:
        return RangeBounds(self.search, self.question.units, self.bounding)

    def _windows(self, schedule: str) -> list[int]:
        """Returns how many forwards each stage starts before it waits for a gradient."""
        return [1] * self.question.stages if schedule == "gpipe" else self.kept(schedule)

    def even(self, limit_bytes: float) -> list[float]:
        """Returns the same limit for each stage."""
        return [limit_bytes] * self.question.stages

    def kept(self, schedule: str) -> list[int]:
        """Returns how many micro-batches each stage keeps under a schedule."""
        return kept(schedule, self.question.stages, self.search.micro_batches)

    def fastest(
        self, guided: Guided, schedule: str, limit_bytes: float, cutoff_s: float = inf
    ) -> Pipeline | None:
        """Returns the fastest pipeline whose peaks are within a limit, that was found under a guide
        and a schedule; None where none is, or its sums reach `cutoff_s`."""
        # What sums leave out, temporaries, differs from stage to stage, and is much the same from
        # pipeline to pipeline.
        enough = np.ones(self.question.stages)
        parts = self._parts.get(limit_bytes, enough)
        for _ in range(TRIES):
            within = limit_bytes * parts
            cuts = self.cut(guided, schedule, within)
            if cuts is None or cuts.step_s >= cutoff_s:
                if not (parts < enough).any():
                    break
                parts = (parts + enough) / 2
                continue
            pipeline = self.replayed(guided, schedule, cuts, within)
            over = pipeline.peak_bytes / limit_bytes
            if over.max() <= 1.0:
                self._parts[limit_bytes] = parts
                return pipeline
            sums = self._sums(guided, schedule, within, pipeline.bounds) / limit_bytes
            enough, parts = parts, np.where(over > 1.0, BELOW * (sums + 1.0 - over), parts)
        return None

    def cut(
        self,
        guided: Guided,
        schedule: str,
        within: Sequence[float] | Floats,
        exact: dict[tuple[int, int, int], float] | None = None,
    ) -> Cuts | None:
        """Returns the best cuts whose sums are within a memory, by staircases and, where they are
        better, the exact seconds of a step that are known of stages; None where none fits."""
        batches = self.search.micro_batches
        stage_s = self._stage_times(guided, schedule, within, exact or {})
        weights = (self.question.passes_s / batches).tolist()
        # A rule may ask for stages that are far from even.
        slack = SLACK if self.question.rules.are_none else float(self.question.stages)
        ends = windows(weights, self.question.stages, slack)
        of = self.question
        hidden = 1.0 - batches * of.backward_s.sum() / max(of.passes_s.sum(), TINY)
        repeats = [batches - 1 - (k - 1) * hidden for k in self._windows(schedule)]
        return best_cuts(stage_s, guided.hops_s, ends, weights, repeats, slack)

    def _stage_times(
        self,
        guided: Guided,
        schedule: str,
        within: Sequence[float] | Floats,
        exact: Mapping[tuple[int, int, int], float],
    ) -> StageTime:
        """Returns what gives the seconds of a micro-batch of a stage, by staircases and, where they
        are better, the exact ones that are known."""
        batches, kept_by = self.search.micro_batches, self.kept(schedule)
        host_s = np.concatenate([[0.0], np.cumsum(self.question.host_s)])

        def stage_s(stage: int, first: int, last: int) -> float:
            if not self.question.rules.allow(self.question.stages, stage, first, last):
                return inf
            seconds = guided.staircases.fastest_s(first, last, kept_by[stage], within[stage])
            seconds = min(seconds, exact.get((stage, first, last), inf))
            launched_s = np.asarray(host_s[last] - host_s[first])
            return float(soft_maximum(np.asarray(seconds), launched_s)) / batches

        return stage_s

    def _moved(
        self,
        guided: Guided,
        schedule: str,
        within: Sequence[float] | Floats,
        bounds: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Returns cuts near others with which the schedule runs faster, by staircases: the formula
        of `cuts.py` does not know what a schedule hides."""
        stage_s = self._stage_times(guided, schedule, within, {})
        of, batches = self.question, self.search.micro_batches
        passes, backward = ranges_of(of.passes_s / batches), ranges_of(of.backward_s)
        simulated = min(batches, SIMULATED * of.stages)
        order = schedule_of(schedule, ranks=of.stages, micro_batches=simulated)

        def step_s(bounds: tuple[int, ...]) -> float:
            times = [stage_s(s, i, j) for s, (i, j) in enumerate(pairwise(bounds))]
            if max(times) == inf:
                return inf
            parts = []
            for t, (i, j) in zip(times, pairwise(bounds), strict=True):
                share = backward[i, j] / passes[i, j] if passes[i, j] > 0 else 0.5
                parts.append(StageTimes(t * (1.0 - share), t * share, 0.0))
            run = simulate(order, parts, [guided.hops_s[cut] for cut in bounds[1:-1]])
            return run.seconds + (batches - simulated) * max(times)

        return moved(bounds, step_s)

    def _settled(
        self, guided: Guided, schedule: str, within: Sequence[float] | Floats, cuts: Cuts
    ) -> Cuts:
        """Returns the best cuts when the stages between them are solved exactly, moved to where the
        schedule runs faster; `cuts` are those of staircases."""
        exact: dict[tuple[int, int, int], float] = {}
        kept_by = self.kept(schedule)
        for _ in range(ROUNDS):
            places = [(s, *cuts.bounds[s : s + 2]) for s in range(self.question.stages)]
            unsolved = [place for place in places if place not in exact]
            if not unsolved:
                break
            for stage, first, last in unsolved:
                solved = guided.stages.fastest(first, last, kept_by[stage], within[stage])
                assert solved is not None, "what staircases have fits"
                exact[stage, first, last] = solved.time_s
            again = self.cut(guided, schedule, within, exact)
            assert again is not None
            cuts = again
        return replace(cuts, bounds=self._moved(guided, schedule, within, cuts.bounds))

    def _sums(self, guided: Guided, schedule: str, within: Floats, bounds: Sequence[int]) -> Floats:
        """Returns the bytes of each stage as sums."""
        sums = []
        for stage, (first, last) in enumerate(pairwise(bounds)):
            kept, limit = self.kept(schedule)[stage], within[stage]
            solved = guided.stages.fastest(first, last, kept, limit)
            assert solved is not None, "the stage was assembled"
            left = guided.stages.left_bytes(first, kept, limit)
            sums.append(limit - left + solved.memory_bytes)
        return np.array(sums)

    @cached_property
    def _replayer(self) -> StageReplayer:
        return StageReplayer(self.search.own_replayer, self.question.units.of_group)

    def replayed(
        self,
        guided: Guided,
        schedule: str,
        cuts: Cuts,
        within: Sequence[float] | Floats,
        *,
        quick: bool = False,
    ) -> Pipeline:
        """Returns the pipeline whose sums are within a memory, near these cuts of staircases: the
        best when stages are solved exactly. A `quick` one has just these cuts, and layouts of
        guides only."""
        stages = guided.narrow if quick else guided.stages
        if not quick:
            cuts = self._settled(guided, schedule, within, cuts)
        question, bounds = self.question, cuts.bounds
        choices, edge_choices = assembled(stages, bounds, self.kept(schedule), within)
        return Pipeline(
            self.search,
            question.mesh,
            question.units,
            question.tied,
            question.axes,
            schedule,
            bounds,
            choices,
            edge_choices,
            self._replayer.replay(choices, edge_choices, bounds),
        )


def _guides(
    problem: SearchProblem, question: Question, limit_bytes: float, shares: Sequence[float]
) -> Iterator[NDArray[np.int64]]:
    """Yields strategies of the whole model on the devices of a stage, with different layouts
    between units."""
    known: set[Hashable] = set()
    part = problem.sums
    for share in shares:
        target = max(share * question.stages * limit_bytes - problem.fixed_memory_bytes, 0.0)
        with solver_errors():
            solution = _core.solve(
                part.problem, method="auto", epsilon=0.02, memory_target_bytes=target
            )
        fitting = np.flatnonzero(solution.memory_bytes <= target)
        point = int(fitting[-1]) if len(fitting) else 0
        guide = regular(problem, part.whole(solution.choices[point][None])[0])
        layouts = layouts_of(problem, question.units, guide)
        if layouts not in known:
            known.add(layouts)
            yield guide
