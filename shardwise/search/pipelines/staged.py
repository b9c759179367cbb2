"""The pipelines of one number of stages and of micro-batches.

The whole model is costed once on the devices of one stage. Strategies of it near p times a memory
are the guides (`stages.py`); under each, cuts are ranked by staircases (`staircases.py`), the
stages between the best are solved exactly, and the answer is replayed and run as a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from shardwise.cost.options import Progress, quiet
from shardwise.errors import SolverError
from shardwise.hardware.host import soft_maximum
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.bounds import (
    Bound,
    least_step_s,
    least_windowed,
    ranges_of,
    updates_beside,
)
from shardwise.search.pipelines.cuts import (
    TINY,
    Cuts,
    StageTime,
    best_cuts,
    looped_s,
    moved,
    windows,
)
from shardwise.search.pipelines.paths import least_by_paths
from shardwise.search.pipelines.pipeline import Pipeline, assembled
from shardwise.search.pipelines.question import Guided, Question, Within, guides_of
from shardwise.search.pipelines.ranges import RangeBounds
from shardwise.search.pipelines.searched import Run
from shardwise.search.pipelines.shares import divided_at, even_bounds, guessed_shares
from shardwise.search.pipelines.stages import StageProblems, narrowed
from shardwise.search.pipelines.staircases import Staircases
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

ROUNDS = 4
"""How often cuts are chosen again after the stages between them have been solved exactly."""

SIMULATED = 4
"""How many micro-batches a stage's schedule is run for when cuts are moved; others add what the
slowest stage takes."""

SIMULATED_EACH = 2
"""The same where a rank has several stages."""

SHARED = 3
"""How often the memory of a rank is shared anew between its stages."""

SLACK = 0.6
"""How much more than an even share of the computation a stage may have."""

ASKS = 2
"""How often prices of memory are asked for, each time for the cuts that bound a step least."""

PRICED = 4
"""How many stages of those cuts are asked for."""

TRIES = 6
"""How often the parts of a limit that the sums of stages may take are changed, until the replayed
peaks, which have temporaries in them, are within it."""

BELOW = 0.998
"""How near those peaks should be to the limit."""


@dataclass
class Staged:
    """A question, costed. `shares` are those of the memory of all stages that guides are within;
    `bounding` is told how bounds come on, where `progress` is not to be."""

    question: Question
    progress: Progress
    shares: Sequence[float]
    bounding: Progress = quiet

    def __post_init__(self) -> None:
        self._parts: dict[tuple[int, float], Floats] = {}

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
        guides = list(guides_of(problem, question, self.limit_bytes, self.shares))
        narrow = narrowed(problem, guides)
        most_kept: dict[int, int] = {}
        for run in question.runs:
            most_kept[run.each] = max(most_kept.get(run.each, 1), *run.kept)
        under = []
        for guide in guides:
            stages = StageProblems(problem, question.units, guide)
            shares = [stages.incoming_bytes(cut) for cut in range(len(question.units) + 1)]
            alike = replace(stages, narrow=narrow)
            staircases, hops = {}, {}
            for each, most in most_kept.items():
                staircases[each] = Staircases(alike, most)
                # From the last rank tensors go back to the first where ranks have several stages.
                senders = range(question.ranks - (each == 1))
                hops[each] = [max(question.axes.hop_s(s, size) for s in senders) for size in shares]
            under.append(Guided(stages, alike, staircases, hops))
        return under

    def least_s(self, *, in_memory: bool = False) -> float:
        """Returns a bound on the step of every pipeline of the question, with what communicates in
        its stages' passes, and `in_memory` of those that fit; that of the question where the
        solver's memory does not do for one.

        Raises `Cancelled`.
        """
        return self.least_within_s(self.limit_bytes if in_memory else inf)

    def least_within_s(
        self, limit_bytes: float, *, known: bool = False, enough_s: float = inf
    ) -> float:
        """Returns the same of those whose peaks are within a limit; `known` by what other limits
        have found alone, which takes no elimination. A bound of `enough_s` is not improved."""
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
        """Asks for prices for some of the stages between cuts; returns whether any was new."""
        if not cuts:
            return False
        descending = sorted(range(run.stages), key=lambda stage: -run.most_kept[stage])
        last = run.stages - 1
        some = {descending[last * part // (PRICED - 1)] for part in range(PRICED)}
        new = [
            self._ranges.ask(cuts[s], cuts[s + 1], run.most_kept[s], limit_bytes)
            for s in sorted(some)
        ]
        return any(new)

    def _bound(self, run: Run, limit_bytes: float) -> Bound:
        """Returns the bound of a schedule's pipelines whose peaks are within a limit."""
        of, batches = self.question, run.micro_batches
        ranges_s = [self._ranges.passes_s] * run.stages
        if isfinite(limit_bytes):
            ranges_s = self._ranges.within(run.most_kept, limit_bytes)
        ranges_s = of.rules.allowed(ranges_s)
        first_s, any_s = self._updates_s
        if run.each > 1:
            return least_by_paths(run.order, ranges_s, of.backward_s, any_s)
        least_s = least_step_s(ranges_s, first_s, batches)
        bound = least_windowed(ranges_s, of.backward_s, first_s, run.windows, batches)
        return replace(bound, step_s=max(least_s, bound.step_s))

    @cached_property
    def _updates_s(self) -> tuple[Floats, Floats]:
        """What the update of units, (U,), adds to a step at least: of the first units, of which
        sums from the beginning alone count, and of any."""
        of, host = self.question, self.search.own_replayer.host
        if host is None:
            return of.update_s, of.update_s
        launched_s = np.zeros(len(of.units))
        for group, unit in enumerate(of.units.of_group):
            launched_s[unit] += float(host.groups[group].max())
        for edge, costs in zip(self.search.problem.edges, host.edges, strict=True):
            launched_s[of.units.of_group[edge.target]] += float(costs.max())
        return updates_beside(of.passes_s, of.update_s, launched_s, host.constant)

    @cached_property
    def _ranges(self) -> RangeBounds:
        return RangeBounds(self.search, self.question.units, self.bounding)

    def even(self, limit_bytes: float) -> Floats:
        """Returns the same limit for each rank."""
        return np.full(self.question.ranks, limit_bytes)

    def fastest(
        self, guided: Guided, run: Run, limit_bytes: float, cutoff_s: float = inf
    ) -> Pipeline | None:
        """Returns the fastest pipeline whose peaks are within a limit, that was found under a guide
        and a schedule; None where none is, or its sums reach `cutoff_s`."""
        # What sums leave out, temporaries, differs from stage to stage, and is much the same from
        # pipeline to pipeline.
        enough = np.ones(run.ranks)
        parts = self._parts.get((run.each, limit_bytes), enough)
        for _ in range(TRIES):
            best = self.best(guided, run, limit_bytes * parts)
            if best is None or best.cuts.step_s >= cutoff_s:
                if not (parts < enough).any():
                    break
                parts = (parts + enough) / 2
                continue
            pipeline = self.replayed(guided, run, best)
            over = pipeline.rank_peak_bytes / limit_bytes
            if over.max() <= 1.0:
                self._parts[run.each, limit_bytes] = parts
                return pipeline
            sums = self._sums(guided, run, best.within, pipeline.bounds) / limit_bytes
            enough, parts = parts, np.where(over > 1.0, BELOW * (sums + 1.0 - over), parts)
        return None

    def best(self, guided: Guided, run: Run, limits: Floats) -> Within | None:
        """Returns the best cuts, by staircases, whose sums are within the memory of each rank,
        (ranks,); None where none fits."""
        if run.each == 1:
            cuts = self._cut(guided, run, limits)
            return None if cuts is None else Within(cuts, limits)
        weights, staircases = self.question.passes_s, guided.staircases[run.each]
        # Where memory is short the guide's shares may be too little for some stage of even cuts.
        even = even_bounds(weights, run.stages)
        within = divided_at(staircases, run, even, limits)
        if within is None:
            within = guessed_shares(guided.stages, run, weights, limits)
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
        """Returns good cuts of several stages on each rank within a memory, by `looped_s`; None
        where none was found."""
        stage_s, hops_s = self._stage_times(guided, run, within, {}), guided.hops_s[run.each]

        def step_s(bounds: tuple[int, ...]) -> float:
            times = [stage_s(s, i, j) for s, (i, j) in enumerate(pairwise(bounds))]
            return looped_s(times, [hops_s[cut] for cut in bounds[1:-1]], run)

        cuts = self._cut(guided, run, within)
        starts = [even_bounds(self.question.passes_s, run.stages)]
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
        """Returns the best cuts whose sums are within a memory, by staircases and, where they are
        better, the exact seconds of a step that are known of stages; None where none fits."""
        of, batches = self.question, self.search.micro_batches
        stage_s = self._stage_times(guided, run, within, exact or {})
        weights = (of.passes_s / batches).tolist()
        # A rule may ask for stages that are far from even.
        slack = SLACK if of.rules.are_none else float(run.stages)
        ends = windows(weights, run.stages, slack)
        hidden = 1.0 - batches * of.backward_s.sum() / max(of.passes_s.sum(), TINY)
        repeats = run.repeats(hidden)
        return best_cuts(stage_s, guided.hops_s[run.each], ends, weights, repeats, slack)

    def _stage_times(
        self,
        guided: Guided,
        run: Run,
        within: Floats,
        exact: Mapping[tuple[int, int, int], float],
    ) -> StageTime:
        """Returns what gives the seconds of a micro-batch of a stage, by staircases and, where they
        are better, the exact ones that are known."""
        batches, kept_by, staircases = run.micro_batches, run.kept, guided.staircases[run.each]
        host_s = np.concatenate([[0.0], np.cumsum(self.question.host_s)])

        def stage_s(stage: int, first: int, last: int) -> float:
            if not self.question.rules.allow(run.stages, stage, first, last):
                return inf
            seconds = staircases.fastest_s(first, last, kept_by[stage], within[stage])
            seconds = min(seconds, exact.get((stage, first, last), inf))
            launched_s = np.asarray(host_s[last] - host_s[first])
            return float(soft_maximum(np.asarray(seconds), launched_s)) / batches

        return stage_s

    def _moved(
        self, guided: Guided, run: Run, within: Floats, bounds: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Returns cuts near others with which the schedule runs faster, by staircases: the formula
        of `cuts.py` does not know what a schedule hides."""
        stage_s = self._stage_times(guided, run, within, {})
        of, batches = self.question, run.micro_batches
        passes, backward = ranges_of(of.passes_s / batches), ranges_of(of.backward_s)
        order = run.shortened((SIMULATED if run.each == 1 else SIMULATED_EACH) * run.ranks)
        hops_s = guided.hops_s[run.each]

        def step_s(bounds: tuple[int, ...]) -> float:
            times = [stage_s(s, i, j) for s, (i, j) in enumerate(pairwise(bounds))]
            if max(times) == inf:
                return inf
            parts = []
            for t, (i, j) in zip(times, pairwise(bounds), strict=True):
                share = backward[i, j] / passes[i, j] if passes[i, j] > 0 else 0.5
                parts.append(StageTimes(t * (1.0 - share), t * share, 0.0))
            simulated = simulate(order, parts, [hops_s[cut] for cut in bounds[1:-1]])
            longest = max(sum(times[stage] for stage in own) for own in run.placed)
            return simulated.seconds + (batches - order.micro_batches) * longest

        return moved(bounds, step_s)

    def _settled(self, guided: Guided, run: Run, best: Within) -> Cuts:
        """Returns the best cuts when the stages between them are solved exactly, moved to where the
        schedule runs faster; `best` has those of staircases."""
        exact: dict[tuple[int, int, int], float] = {}
        cuts, within = best.cuts, best.within
        # What the sums of several stages on a rank are is not what the programme finds the best of.
        for _ in range(ROUNDS if run.each == 1 else 0):
            places = [(s, *cuts.bounds[s : s + 2]) for s in range(run.stages)]
            unsolved = [place for place in places if place not in exact]
            if not unsolved:
                break
            for stage, first, last in unsolved:
                solved = guided.stages.fastest(first, last, run.kept[stage], within[stage])
                assert solved is not None, "what staircases have fits"
                exact[stage, first, last] = solved.time_s
            again = self._cut(guided, run, within, exact)
            assert again is not None
            cuts = again
        return replace(cuts, bounds=self._moved(guided, run, within, cuts.bounds))

    def _sums(self, guided: Guided, run: Run, within: Floats, bounds: Sequence[int]) -> Floats:
        """Returns the bytes of each rank as sums."""
        sums, fixed = np.zeros(run.ranks), self.search.problem.fixed_memory_bytes
        for stage, (first, last) in enumerate(pairwise(bounds)):
            kept, limit = run.kept[stage], within[stage]
            solved = guided.stages.fastest(first, last, kept, limit)
            assert solved is not None, "the stage was assembled"
            left = guided.stages.left_bytes(first, kept, limit)
            rank = run.rank_of[stage]
            # Every device holds the fixed part once.
            sums[rank] += limit - left + solved.memory_bytes - (fixed if sums[rank] else 0.0)
        return sums

    @cached_property
    def _replayer(self) -> StageReplayer:
        return StageReplayer(self.search.own_replayer, self.question.units.of_group)

    def replayed(self, guided: Guided, run: Run, best: Within, *, quick: bool = False) -> Pipeline:
        """Returns the pipeline whose sums are within a memory, near the cuts of staircases: the
        best when stages are solved exactly. A `quick` one has just these cuts, and layouts of
        guides only."""
        stages = guided.narrow if quick else guided.stages
        bounds = best.cuts.bounds if quick else self._settled(guided, run, best).bounds
        question = self.question
        choices, edge_choices = assembled(stages, bounds, run.kept, best.within)
        return Pipeline(
            self.search,
            question.mesh,
            question.units,
            question.tied,
            question.axes,
            run.of.name,
            bounds,
            choices,
            edge_choices,
            self._replayer.replay(choices, edge_choices, bounds, run.placed),
            run.each,
        )
