"""The pipelines with fixed numbers of stages and micro-batches.

The whole model is costed once on the devices of one stage. Its strategies near p times a memory are
the guides (`stages.py`). Under each, cuts are ranked by staircases (`staircases.py`), the stages of
the best cuts are solved exactly, and the answer is replayed and simulated as a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Progress, quiet
from shardwise.errors import InternalError, SolverError
from shardwise.hardware.host import soft_maximum
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.owner_costs import Choices
from shardwise.replay.stages import ReplayedStages
from shardwise.search.pipelines.bounds import (
    Bound,
    least_split_step_s,
    least_step_s,
    least_windowed,
    ranges_of,
)
from shardwise.search.pipelines.cuts import (
    TINY,
    Cuts,
    StageTime,
    best_cuts,
    hops_over,
    least_slack,
    looped_s,
    moved,
    windows,
)
from shardwise.search.pipelines.kinds import Guide
from shardwise.search.pipelines.paths import least_by_paths
from shardwise.search.pipelines.pipeline import Pipeline, assembled
from shardwise.search.pipelines.question import Guided, PipelineQuery, Within
from shardwise.search.pipelines.searched import Run, ScheduleKind
from shardwise.search.pipelines.shares import divided_at, even_bounds, guessed_shares
from shardwise.search.pipelines.stages import Stage, StageProblems
from shardwise.sharding.layout import Floats

ROUNDS = 4
"""Times that cuts are chosen again after their stages have been solved exactly."""

SIMULATED = 4
"""Micro-batches per stage in the schedule that is simulated when cuts are moved; further ones add
the slowest stage's time."""

SIMULATED_EACH = 2
"""The same for ranks with several stages."""

SHARED = 3
"""Times that a rank's memory is shared again between its stages."""

SLACK = 0.6
"""Maximum excess of a stage over an even share of the computation."""

MORE = 1.1
"""The same if stages cannot be that even, as a multiple of the least possible excess."""

ASKS = 2
"""Rounds of finding memory prices, each for the cuts that currently bound a step least."""

PRICED = 4
"""Number of those cuts' stages that get prices."""

TRIES = 6
"""Rounds of adjusting the stages' memory for sums until the replayed peaks, which include
temporaries, are within the limit."""

BELOW = 0.998
"""Relative: how near those peaks should be to the limit."""


@dataclass
class Staged:
    """A query with its costs computed. `shares` are parts of all stages' memory for guides;
    `bounding` receives progress while bounds are computed."""

    question: PipelineQuery
    progress: Progress
    shares: Sequence[float]
    bounding: Progress = quiet

    def __post_init__(self) -> None:
        self._slacks: dict[int, float] = {}
        self._parts: dict[tuple[ScheduleKind, float], Floats] = {}

    @property
    def limit_bytes(self) -> float:
        """The memory limit of a device with the least memory."""
        return self.question.kinds.limit_bytes

    @cached_property
    def guided(self) -> list[Guided]:
        """The stages under guides with different layouts between units."""
        question = self.question
        most_kept: dict[ScheduleKind, int] = {}
        for run in question.runs:
            most_kept[run.kind] = max(most_kept.get(run.kind, 1), *run.kept)
        guides = question.kinds.guides(question.ranks, self.shares, most_kept)
        return [
            Guided(guide, {kind: self._hops_s(guide, kind.each) for kind in most_kept})
            for guide in guides
        ]

    def _hops_s(self, guide: Guide, each: int) -> list[list[float]]:
        """Returns the seconds of hops into each stage, (stages, U + 1), with `each` stages per
        rank."""
        question, stages = self.question, guide.stages[0]
        shares = [stages.incoming_bytes(cut) for cut in range(len(question.units) + 1)]
        if len(question.kinds.each) > 1:
            senders = range(question.ranks - 1)
            return [[], *([question.axes.hop_s(s, size) for size in shares] for s in senders)]
        # With several stages per rank, tensors go from the last rank back to the first.
        senders = range(question.ranks - (each == 1))
        slowest = [max(question.axes.hop_s(s, size) for s in senders) for size in shares]
        return [slowest] * (question.ranks * each)

    def least_s(self, *, in_memory: bool = False) -> float:
        """Returns a lower bound on every pipeline's step including communication in its stages,
        `in_memory` only for those that fit; falls back to the query's bound if the solver runs out
        of memory.

        Raises `Cancelled`.
        """
        return self.least_within_s(self.limit_bytes if in_memory else inf)

    def least_within_s(
        self, limit_bytes: float, *, known: bool = False, enough_s: float = inf
    ) -> float:
        """Returns the same for peaks within a limit. `known` uses only prices found for other
        limits, without an elimination. A bound of `enough_s` is not improved."""
        of = self.question
        try:
            bound, run = self._weakest(limit_bytes)
            for _ in range(0 if known or not isfinite(limit_bytes) else ASKS):
                if bound.step_s >= enough_s or not self._improve(bound.cuts, run, limit_bytes):
                    break
                bound, run = self._weakest(limit_bytes)
        except SolverError:
            return of.least_s
        return max(of.least_s, bound.step_s)

    def _weakest(self, limit_bytes: float) -> tuple[Bound, Run]:
        """Returns the least of the bounds of schedules, and the schedule."""
        bounds = [(self._bound(run, limit_bytes), run) for run in self.question.runs]
        return min(bounds, key=lambda one: one[0].step_s)

    def _improve(self, cuts: Sequence[int], run: Run, limit_bytes: float) -> bool:
        """Finds prices for some of the stages between cuts; returns whether any was new."""
        if not cuts:
            return False
        descending = sorted(range(run.stages), key=lambda stage: -run.surely_kept[stage])
        last = run.stages - 1
        some = {descending[last * part // (PRICED - 1)] for part in range(PRICED)}
        kind_of, new = self.question.of_stages(run), []
        for s in sorted(some):
            kind = self.question.kinds.each[kind_of[s]]
            ranges = kind.ranges(self.bounding, splits=run.of.splits)
            limit = self._of_kind(kind_of[s], limit_bytes)
            new.append(ranges.ask(cuts[s], cuts[s + 1], run.surely_kept[s], limit))
        return any(new)

    def _bound(self, run: Run, limit_bytes: float) -> Bound:
        """Returns the bound on a schedule's pipelines with peaks within a limit."""
        of, batches = self.question, run.micro_batches
        ranges_s = of.rules.allowed(self._ranges_s(run, limit_bytes))
        first_s, any_s = of.first.updates_s
        if run.each > 1 or run.of.splits:
            parts_s = of.first.parts_s if run.of.splits else [of.first.backward_s]
            bound = least_by_paths(run.order, ranges_s, parts_s, any_s)
            if run.each > 1:
                return bound
            least_s = least_split_step_s(ranges_s, parts_s[0], any_s, batches)
            return replace(bound, step_s=max(least_s, bound.step_s))
        backward_s = np.array([of.kinds.each[kind].backward_s for kind in of.of_stages(run)])
        least_s = least_step_s(ranges_s, first_s, batches)
        bound = least_windowed(ranges_s, backward_s, first_s, run.windows, batches)
        return replace(bound, step_s=max(least_s, bound.step_s))

    def _ranges_s(self, run: Run, limit_bytes: float) -> list[Floats]:
        """Returns lower bounds on the passes of unit ranges in each stage."""
        of, by_kind = self.question, dict[int, list[Floats]]()
        for number in set(of.of_stages(run)):
            ranges = of.kinds.each[number].ranges(self.bounding, splits=run.of.splits)
            by_kind[number] = [ranges.passes_s] * run.stages
            if isfinite(limit_bytes):
                within = self._of_kind(number, limit_bytes)
                by_kind[number] = ranges.within(run.surely_kept, within)
        return [by_kind[number][stage] for stage, number in enumerate(of.of_stages(run))]

    def _of_kind(self, number: int, limit_bytes: float) -> float:
        """Returns a kind's limit for the same share of memory as the smallest device's limit."""
        kinds = self.question.kinds
        return limit_bytes * kinds.each[number].limit_bytes / kinds.limit_bytes

    def even(self, limit_bytes: float) -> Floats:
        """Returns each rank's limit for the same share of memory as the smallest device's limit."""
        return np.asarray(limit_bytes * self.question.scales)

    def fastest(
        self, guided: Guided, run: Run, limit_bytes: float, cutoff_s: float = inf
    ) -> Pipeline | None:
        """Returns the fastest pipeline found under a guide and a schedule with peaks within a
        limit; None if there is none, or its sums reach `cutoff_s`."""
        # Temporaries, which sums leave out, differ between stages but hardly between pipelines.
        enough, limits = np.ones(run.ranks), self.even(limit_bytes)
        parts = self._parts.get((run.kind, limit_bytes), enough)
        for _ in range(TRIES):
            best = self.best(guided, run, limits * parts)
            if best is None or best.cuts.step_s >= cutoff_s:
                if not (parts < enough).any():
                    break
                parts = (parts + enough) / 2
                continue
            pipeline = self.replayed(guided, run, best)
            over = pipeline.rank_peak_bytes / limits
            if over.max() <= 1.0:
                self._parts[run.kind, limit_bytes] = parts
                return pipeline
            sums = self._sums(guided, run, best.within, pipeline.bounds) / limits
            enough, parts = parts, np.where(over > 1.0, BELOW * (sums + 1.0 - over), parts)
        return None

    def best(self, guided: Guided, run: Run, limits: Floats) -> Within | None:
        """Returns the best cuts by staircases with sums within each rank's memory, (ranks,), or
        None."""
        if run.each == 1:
            cuts = self._cut(guided, run, limits)
            return None if cuts is None else Within(cuts, limits)
        (stages,), (staircases,) = guided.guide.stages, guided.guide.staircases[run.kind]
        weights = self.question.first.passes_s
        # If memory is short, the guide's shares may be too small for some stage of even cuts.
        even = even_bounds(weights, run.stages)
        within = divided_at(staircases, run, even, limits)
        if within is None:
            within = guessed_shares(stages, run, weights, limits)
        best: Within | None = None
        for _ in range(SHARED):
            cuts = self._looped(guided, run, within)
            if cuts is None or (best is not None and cuts.step_s >= best.cuts.step_s):
                break
            best = Within(cuts, within)
            shares = divided_at(staircases, run, cuts.bounds, limits)
            if shares is None:
                break
            within = shares
        return best

    def _looped(self, guided: Guided, run: Run, within: Floats) -> Cuts | None:
        """Returns good cuts for several stages per rank within a memory, by `looped_s`, or None."""
        stage_s, hops_s = self._stage_times(guided, run, within, {}), guided.hops_s[run.kind]

        def step_s(bounds: tuple[int, ...]) -> float:
            times = [stage_s(s, i, j) for s, (i, j) in enumerate(pairwise(bounds))]
            return looped_s(times, hops_over(hops_s, bounds), run)

        cuts = self._cut(guided, run, within)
        starts = [even_bounds(self.question.first.passes_s, run.stages)]
        if cuts is not None:
            starts.append(cuts.bounds)
        bounds = moved(min(starts, key=step_s), step_s)
        seconds = step_s(bounds)
        return Cuts(bounds, seconds) if seconds < inf else None

    def _cut(
        self,
        guided: Guided,
        run: Run,
        within: Floats,
        exact: dict[tuple[int, int, int], float] | None = None,
    ) -> Cuts | None:
        """Returns the best cuts with sums within a memory, by staircases or known exact times if
        these are better, or None."""
        of, batches = self.question, run.micro_batches
        stage_s = self._stage_times(guided, run, within, exact or {})
        kinds = of.kinds.each
        weights = np.array([kinds[kind].passes_s / batches for kind in of.of_stages(run)])
        slack = self._slack(weights, run.stages)
        ends = windows(weights, run.stages, slack)
        backward_s, passes_s = (
            sum(float(times.sum()) for times in every)
            for every in ([k.backward_s for k in kinds], [k.passes_s for k in kinds])
        )
        repeats = run.repeats(1.0 - batches * backward_s / max(passes_s, TINY))
        staircases, kind_of = guided.guide.staircases[run.kind], of.of_stages(run)

        def alike(
            stage: int, first: NDArray[np.int64], last: NDArray[np.int64]
        ) -> NDArray[np.int64]:
            return staircases[kind_of[stage]].alike(first, last)

        # A pin distinguishes units that are otherwise equal.
        same = alike if of.rules.are_none else None
        hops_s = guided.hops_s[run.kind]
        return best_cuts(stage_s, hops_s, ends, weights, repeats, slack, same)

    def _slack(self, weights: Floats, stages: int) -> float:
        """Returns the allowed excess over an even share, by the units' weights in each stage,
        (stages, U)."""
        if stages not in self._slacks:
            # A pin, or one unit that dominates, may require stages that are far from even.
            slack = SLACK if self.question.rules.are_none else float(stages)
            self._slacks[stages] = max(slack, MORE * least_slack(weights, stages))
        return self._slacks[stages]

    def _stage_times(
        self,
        guided: Guided,
        run: Run,
        within: Floats,
        exact: Mapping[tuple[int, int, int], float],
    ) -> StageTime:
        """Returns a function for a stage's seconds per micro-batch, by staircases or known exact
        times if these are better."""
        of, batches, kept_by = self.question, run.micro_batches, run.kept
        staircases, kind_of = guided.guide.staircases[run.kind], of.of_stages(run)
        host_s = [np.concatenate([[0.0], np.cumsum(kind.host_s)]) for kind in of.kinds.each]

        def stage_s(stage: int, first: int, last: int) -> float:
            if not of.rules.allow(run.stages, stage, first, last):
                return inf
            own = staircases[kind_of[stage]]
            seconds = own.fastest_s(first, last, kept_by[stage], within[stage])
            seconds = min(seconds, exact.get((stage, first, last), inf))
            of_host = host_s[kind_of[stage]]
            launched_s = np.asarray(of_host[last] - of_host[first])
            return float(soft_maximum(np.asarray(seconds), launched_s)) / batches

        return stage_s

    def _moved(
        self, guided: Guided, run: Run, within: Floats, bounds: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Returns nearby cuts with which the simulated schedule is faster, by staircases: the
        formula of `cuts.py` does not know what a schedule hides."""
        stage_s = self._stage_times(guided, run, within, {})
        of, batches = self.question, run.micro_batches
        kinds, kind_of = of.kinds.each, of.of_stages(run)
        passes = [ranges_of(kind.passes_s / batches) for kind in kinds]
        backward = [ranges_of(kind.backward_s) for kind in kinds]
        late = [ranges_of(kind.parts_s[-1]) for kind in kinds] if run.of.splits else None
        order = run.shortened((SIMULATED if run.each == 1 else SIMULATED_EACH) * run.ranks)
        hops_s = guided.hops_s[run.kind]

        def step_s(bounds: tuple[int, ...]) -> float:
            times = [stage_s(s, i, j) for s, (i, j) in enumerate(pairwise(bounds))]
            if max(times) == inf:
                return inf
            parts = []
            for t, kind, at in zip(times, kind_of, pairwise(bounds), strict=True):
                whole = passes[kind][at]
                share = backward[kind][at] / whole if whole > 0 else 0.5
                put_off = min(late[kind][at] / whole, share) if late and whole > 0 else 0.0
                parts.append(StageTimes(t * (1.0 - share), t * (share - put_off), t * put_off))
            simulated = simulate(order, parts, hops_over(hops_s, bounds))
            longest = max(sum(times[stage] for stage in own) for own in run.placed)
            return simulated.seconds + (batches - order.micro_batches) * longest

        return moved(bounds, step_s)

    def _settled(self, guided: Guided, run: Run, best: Within) -> Cuts:
        """Returns the best cuts after solving their stages exactly, moved to where the schedule
        runs faster; `best` has those of staircases."""
        exact: dict[tuple[int, int, int], float] = {}
        cuts, within = best.cuts, best.within
        stages = self._of_stages(guided.guide.stages, run)
        # With several stages per rank, the programme does not optimise the rank's sums.
        for _ in range(ROUNDS if run.each == 1 else 0):
            places = [(s, *cuts.bounds[s : s + 2]) for s in range(run.stages)]
            unsolved = [place for place in places if place not in exact]
            if not unsolved:
                break
            for stage, first, last in unsolved:
                solved = _fitting(stages[stage], first, last, run.kept[stage], within[stage])
                exact[stage, first, last] = solved.time_s
            again = self._cut(guided, run, within, exact)
            if again is None:
                raise InternalError("no cuts fit any more once their stages are solved exactly")
            cuts = again
        return replace(cuts, bounds=self._moved(guided, run, within, cuts.bounds))

    def _sums(self, guided: Guided, run: Run, within: Floats, bounds: Sequence[int]) -> Floats:
        """Returns each rank's summed bytes."""
        sums, stages = np.zeros(run.ranks), self._of_stages(guided.guide.stages, run)
        for stage, (first, last) in enumerate(pairwise(bounds)):
            kept, limit = run.kept[stage], within[stage]
            solved = _fitting(stages[stage], first, last, kept, limit)
            left = stages[stage].left_bytes(first, kept, limit)
            fixed = stages[stage].problem.fixed_memory_bytes
            rank = run.rank_of[stage]
            # Every device holds the fixed part once.
            sums[rank] += limit - left + solved.memory_bytes - (fixed if sums[rank] else 0.0)
        return sums

    def _of_stages(self, by_kind: Sequence[StageProblems], run: Run) -> list[StageProblems]:
        """Returns the stage problems of each stage's kind."""
        return [by_kind[kind] for kind in self.question.of_stages(run)]

    def replayed(self, guided: Guided, run: Run, best: Within, *, quick: bool = False) -> Pipeline:
        """Returns the replayed pipeline with sums within a memory, near the cuts of staircases,
        with stages solved exactly. A `quick` one has exactly these cuts, and only layouts of
        guides."""
        guide, of = guided.guide, self.question
        stages = self._of_stages(guide.narrow if quick else guide.stages, run)
        bounds = best.cuts.bounds if quick else self._settled(guided, run, best).bounds
        choices, edge_choices = assembled(stages, bounds, run.kept, best.within)
        return Pipeline(
            of.first.search,
            of.mesh,
            of.units,
            of.tied,
            of.axes,
            run.of.name,
            bounds,
            choices,
            edge_choices,
            self.replay(run, choices, edge_choices, bounds),
            run.each,
            kinds=of.searches,
        )

    def replay(
        self, run: Run, choices: Choices, edge_choices: Choices, bounds: Sequence[int]
    ) -> ReplayedStages:
        """Replays the stages of a strategy, (groups,) and (edges,), each on its kind of devices."""
        of = self.question
        if len(of.kinds.each) == 1:
            tied = [one.copies for one in of.tied]
            replayer = of.first.replayer(splits=run.of.splits)
            return replayer.replay(choices, edge_choices, bounds, run.placed, tied)
        kind_of, parts = of.of_stages(run), dict[int, ReplayedStages]()
        for number, kind in enumerate(of.kinds.each):
            own = [at for at, k in zip(pairwise(bounds), kind_of, strict=True) if k == number]
            replayer = kind.replayer(splits=run.of.splits)
            parts[number] = replayer.replay_ranges(choices, edge_choices, own)
        return ReplayedStages.joined(parts, kind_of)


def _fitting(of: StageProblems, first: int, last: int, kept: int, limit_bytes: float) -> Stage:
    """Returns `fastest` of a stage that was found to fit before."""
    solved = of.fastest(first, last, kept, limit_bytes)
    if solved is None:
        raise InternalError(
            f"a stage of the units {first} to {last - 1} does not fit in {limit_bytes:.0f} bytes, "
            "though it was found to"
        )
    return solved
