"""A pipeline: cuts, a schedule, a strategy for each stage, and the step that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.hardware import Bundle, Hardware, Mesh
from shardwise.pipeline.actions import Schedule
from shardwise.pipeline.keeping import Moments, moments_of
from shardwise.pipeline.on_the_way import on_the_way
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.simulate import StageTimes, Step, simulate
from shardwise.pipeline.split_keeping import SplitMoments, split_moments
from shardwise.replay.stages import ReplayedStages
from shardwise.search.pipelines.hops import RankLinks
from shardwise.search.pipelines.split_peaks import held_bytes, most_kept_bytes
from shardwise.search.pipelines.stages import StageProblems, incoming_bytes, incoming_shares
from shardwise.search.pipelines.subject import Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class StageSearches:
    """The whole model on the devices of one rank, of each kind of devices: its search, and the
    group of `whole` that these devices are of. Rank r has the kind `of_rank[r]`."""

    whole: Hardware
    bundle: Bundle
    searches: tuple[Search, ...]
    groups: tuple[str, ...]
    of_rank: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline on n devices, n/p for each of its p ranks.

    A rank has one stage, or `stages_per_rank`: in a loop r, r + p, r + 2p, …, in a V r and
    2p - 1 - r. `search` has the whole model on the devices of the first rank; `choices` (groups,)
    and `edge_choices` (edges,) are of its problem, and mean the same on other `kinds` of devices.
    `bounds` are as in `Cuts`, `axes` number the ranks, `tied` are the parameters that the model has
    several times.
    """

    search: Search
    mesh: Mesh
    units: Units
    tied: Sequence[Tied]
    axes: RankLinks
    schedule: str
    bounds: tuple[int, ...]
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]
    replayed: ReplayedStages
    stages_per_rank: int = 1
    scattered: bool = False
    """Whether devices that have the same of a tensor send a part each (`hops.py`)."""
    kinds: StageSearches | None = None
    """The kinds of devices that ranks have, None where all are alike."""

    def search_of(self, stage: int) -> Search:
        """Returns the whole model on devices of the kind that a stage is on."""
        if self.kinds is None:
            return self.search
        return self.kinds.searches[self.kinds.of_rank[int(self.rank_of[stage])]]

    @cached_property
    def limits_bytes(self) -> NDArray[np.float64]:
        """What a device of each stage may use, (stages,)."""
        return np.array([self.search_of(stage).limit_bytes for stage in range(self.stages)])

    @property
    def peak_stage(self) -> int:
        """The stage whose peak is most of what its devices may use."""
        return int((self.peak_bytes / self.limits_bytes).argmax())

    @property
    def scaled_peak_bytes(self) -> float:
        """The largest peak; on several kinds that of a device with the least memory which would be
        as much of its limit."""
        return float((self.peak_bytes * (self.limit_bytes / self.limits_bytes)).max())

    @property
    def stages(self) -> int:
        """The number of stages, of all ranks together."""
        return len(self.bounds) - 1

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.stages // self.stages_per_rank

    @property
    def placement(self) -> Placement:
        """Which rank has which stages."""
        return self.order.placement

    @cached_property
    def rank_of(self) -> NDArray[np.int64]:
        """The rank of each stage, (stages,)."""
        return np.array([self.placement.rank_of(stage) for stage in range(self.stages)])

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in a step."""
        return self.search.micro_batches

    @property
    def _lists(self) -> tuple[Schedule, tuple[Moments, ...]]:
        return moments_of(self.schedule, self.ranks, self.micro_batches, self.stages_per_rank)

    @property
    def order(self) -> Schedule:
        """What each rank does in which order."""
        return self._lists[0]

    @cached_property
    def kept(self) -> list[int]:
        """How many micro-batches each stage keeps at most."""
        kept = [0] * self.stages
        for rank, of_rank in enumerate(self._lists[1]):
            for stage, most in zip(
                self.placement.stages_of(rank), of_rank[:, 1:].max(axis=0), strict=True
            ):
                kept[stage] = int(most)
        return kept

    @cached_property
    def incoming_bytes(self) -> tuple[float, ...]:
        """A device's shares of the tensors that one micro-batch brings into each stage."""
        problem = self.search.problem
        cuts = self.bounds[1:-1]
        return (0.0, *(incoming_bytes(problem, self.units, self.choices, cut) for cut in cuts))

    @cached_property
    def hops_s(self) -> tuple[float, ...]:
        """The seconds from each stage to the next, (stages - 1,)."""
        if not self.scattered:
            shares = self.incoming_bytes[1:]
            return tuple(self._hop_s(stage, share) for stage, share in enumerate(shares))
        problem = self.search.problem
        return tuple(
            0.0
            if self.rank_of[n] == self.rank_of[n + 1]
            else self.axes.scattered_s(
                self._sender(n),
                problem.context.mesh,
                incoming_shares(problem, self.units, self.choices, cut),
            )
            for n, cut in enumerate(self.bounds[1:-1])
        )

    def _hop_s(self, stage: int, share_bytes: float) -> float:
        """Returns the seconds from a stage to the next; on one rank nothing is sent."""
        if self.rank_of[stage] == self.rank_of[stage + 1]:
            return 0.0
        return self.axes.hop_s(self._sender(stage), share_bytes)

    def _sender(self, stage: int) -> int:
        """Returns the rank from which a stage's tensors go to the next rank; in a V, where they may
        go to the one before, that."""
        here, there = int(self.rank_of[stage]), int(self.rank_of[stage + 1])
        return there if here == there + 1 else here

    @cached_property
    def tied_s(self) -> tuple[float, ...]:
        """The seconds in which each stage sums the gradients of parameters that other ranks have
        too."""
        problem, rank_of = self.search.problem, self.rank_of.tolist()
        return _tied_s(self.tied, problem, self.units, self.bounds, self.axes, rank_of)

    @cached_property
    def further_bytes(self) -> NDArray[np.float64]:
        """What a micro-batch that a stage keeps takes, with the tensors that came in for it."""
        return np.asarray(self.replayed.kept_bytes + np.array(self.incoming_bytes))

    @cached_property
    def split_moments(self) -> tuple[SplitMoments, ...] | None:
        """What each rank holds action by action where backward is split, else None."""
        if self.replayed.split is None:
            return None
        batches = self.micro_batches
        return split_moments(self.schedule, self.ranks, batches, self.stages_per_rank)

    def split_held_bytes(self, rank: int) -> Floats:
        """Returns what a device of a rank holds at each of its `split_moments`."""
        assert self.split_moments is not None
        return held_bytes(
            self.split_moments[rank],
            self.placement.stages_of(rank),
            self.replayed,
            float(self.replayed.rank_lasting_bytes[rank]),
            (*self.incoming_bytes, 0.0),
        )

    def held_bytes(self, stage: int, kept: NDArray[np.integer]) -> NDArray[np.float64]:
        """Returns what a device holds at most while one of its stages runs: what lasts and what its
        stages keep, (moments, stages of the rank), and what the stage needs besides."""
        rank = int(self.rank_of[stage])
        own = list(self.placement.stages_of(rank))
        replayed = self.replayed
        running = replayed.peak_bytes[stage] - replayed.lasting_bytes[stage]
        base = replayed.rank_lasting_bytes[rank] + running - replayed.kept_bytes[stage]
        return np.asarray(base + kept @ self.further_bytes[own])

    @cached_property
    def rank_peak_bytes(self) -> NDArray[np.float64]:
        """The peak of a device of each rank, (ranks,): at some moment of its list what lasts, what
        its stages keep with the tensors that came in, and what the stage that runs needs besides;
        or the end of the step. What is on the way between stages comes on top."""
        peaks = self.replayed.rank_peak_bytes.copy()
        if self.split_moments is not None:
            of_moments = [self.split_held_bytes(rank).max() for rank in range(self.ranks)]
            return np.maximum(peaks, of_moments)
        for rank, of_rank in enumerate(self._lists[1]):
            for place, stage in enumerate(self.placement.stages_of(rank)):
                moments = of_rank[of_rank[:, 0] == place, 1:]
                peaks[rank] = max(peaks[rank], self.held_bytes(stage, moments).max())
        if self.stages_per_rank == 1:
            peaks += self.on_the_way_bytes
        return np.asarray(peaks)

    @cached_property
    def peak_bytes(self) -> NDArray[np.float64]:
        """The peak of a device of each stage, (stages,); stages of one rank have that of the
        rank."""
        return np.asarray(self.rank_peak_bytes[self.rank_of])

    @cached_property
    def on_the_way_bytes(self) -> NDArray[np.float64]:
        """What each stage's peak has beside its micro-batches: tensors and gradients that have been
        asked for and are not used yet, or have been sent, (stages,); 0 where a rank has several
        stages, which is too little, and where backward is split, whose moments have them."""
        if self.stages_per_rank > 1 or self.split_moments is not None:
            return np.zeros(self.stages)
        of_stages = on_the_way(self.schedule, self.stages, self.micro_batches)
        kept, before = self.replayed.kept_bytes, self.incoming_bytes
        behind = (*before[1:], 0.0)
        held = [
            max(of.of(*sizes) for of in ways)
            for ways, *sizes in zip(of_stages, kept, before, behind, strict=True)
        ]
        return np.asarray(np.array(held) - self.kept_bytes)

    @property
    def waiting(self) -> list[int]:
        """How many micro-batches of each stage wait for the backward of its weights at most."""
        waiting = [0] * self.stages
        for rank, moments in enumerate(self.split_moments or ()):
            most = moments.waiting.max(axis=0).tolist()
            for stage, count in zip(self.placement.stages_of(rank), most, strict=True):
                waiting[stage] = count
        return waiting

    @property
    def kept_bytes(self) -> NDArray[np.float64]:
        """What the micro-batches that each stage keeps, or that wait for the backward of weights,
        take of its peak, with the tensors that came in for them, (stages,)."""
        if self.split_moments is not None:
            kept, incoming = np.zeros(self.stages), (*self.incoming_bytes, 0.0)
            for rank, moments in enumerate(self.split_moments):
                own = self.placement.stages_of(rank)
                kept[list(own)] = most_kept_bytes(moments, own, self.replayed, incoming)
            return kept
        return np.asarray(np.array(self.kept) * self.further_bytes)

    @cached_property
    def passes(self) -> Step:
        """The step's passes as they run, before the update."""
        replayed = self.replayed
        parts = zip(replayed.forward_s, replayed.inputs_s, replayed.weights_s, strict=True)
        times = [StageTimes(*map(float, of_stage)) for of_stage in parts]
        return simulate(self.order, times, self.hops_s)

    @cached_property
    def step_s(self) -> float:
        """The seconds of a step: until the last rank has ended its passes, sums and update."""
        ends = np.array([spans[-1][1] for spans in self.passes.spans_s])
        return float((ends + self.by_rank(self.update_s)).max())

    @cached_property
    def update_s(self) -> NDArray[np.float64]:
        """The seconds of each stage after its rank's passes: sums of gradients and the update."""
        return np.asarray(self.replayed.update_s + np.array(self.tied_s))

    def by_rank(self, of_stages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the sums over the stages of each rank, (ranks,)."""
        return np.bincount(self.rank_of, of_stages, self.ranks).astype(np.float64)

    @cached_property
    def idle_by_rank(self) -> NDArray[np.float64]:
        """The share of the step in which the devices of each rank wait, (ranks,)."""
        passes = self.micro_batches * (self.replayed.forward_s + self.replayed.backward_s)
        return np.asarray(1.0 - self.by_rank(passes + self.update_s) / self.step_s)

    @property
    def idle_by_stage(self) -> NDArray[np.float64]:
        """The same for the devices of each stage, (stages,)."""
        return np.asarray(self.idle_by_rank[self.rank_of])

    @property
    def idle(self) -> float:
        """The share of the step in which a device waits, in the mean over ranks."""
        return float(self.idle_by_rank.mean())

    @property
    def limit_bytes(self) -> float:
        """What one device may use, the least where there are several kinds."""
        return float(self.limits_bytes.min())

    @property
    def fits(self) -> bool:
        """Whether every stage's peak is within the memory limit of its devices."""
        return bool((self.peak_bytes <= self.limits_bytes).all())

    @property
    def rank(self) -> tuple[bool, float, float]:
        """What is less for a better one: those that fit by time, others by their peak."""
        peak_bytes = self.scaled_peak_bytes
        if self.fits:
            return False, self.step_s, peak_bytes
        return True, peak_bytes, self.step_s


def _tied_s(
    tied: Sequence[Tied],
    problem: SearchProblem,
    units: Units,
    bounds: Sequence[int],
    axes: RankLinks,
    rank_of: Sequence[int],
) -> tuple[float, ...]:
    """Returns how long each stage sums gradients of parameters that several ranks have.

    Every device sums its whole parameter: where it has a share of it, less time is needed.
    """
    stage_of = {
        name: int(np.searchsorted(bounds, units.of_group[group], side="right")) - 1
        for group, pattern in enumerate(problem.patterns)
        for name in pattern.parameters
    }
    seconds = [0.0] * (len(bounds) - 1)
    for parameter in tied:
        stages = {stage_of[name] for name in parameter.copies if name in stage_of}
        if len({rank_of[stage] for stage in stages}) > 1:
            for stage in stages:
                seconds[stage] += axes.sum_s(parameter.size_bytes)
    return tuple(seconds)


def assembled(
    of: Sequence[StageProblems],
    bounds: Sequence[int],
    kept_by: Sequence[int],
    within: Sequence[float] | Floats,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns configurations (groups,) and alternatives (edges,) of all stages between `bounds`.

    Stage s is one of the problems `of[s]` and has to fit within `within[s]` bytes.
    """
    problem = of[0].problem
    choices = np.zeros(len(problem.costs), dtype=np.uint32)
    edge_choices = np.zeros(len(problem.edges), dtype=np.uint32)
    for stage, (first, last) in enumerate(pairwise(bounds)):
        solved = of[stage].fastest(first, last, kept_by[stage], within[stage])
        if solved is None:
            raise ValueError(f"stage {stage} does not fit")
        groups = of[stage].units.groups_of(first, last)
        choices[groups] = solved.choices
        edge_choices[of[stage].edges_of(groups)] = solved.edge_choices
    return choices, edge_choices
