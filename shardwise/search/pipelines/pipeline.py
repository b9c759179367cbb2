"""A pipeline: cuts, a schedule, a strategy for each stage, and the step that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.hardware import Devices, Hardware, Mesh
from shardwise.pipeline.actions import Schedule
from shardwise.pipeline.keeping import Keeping, keeping
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.simulate import StageTimes, Step, simulate
from shardwise.replay.stages import ReplayedStages
from shardwise.search.pipelines.hops import RankLinks
from shardwise.search.pipelines.peaks import RankPeaks
from shardwise.search.pipelines.stages import StageProblems, incoming_bytes, incoming_shares
from shardwise.search.pipelines.subject import Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class StageSearches:
    """The whole model on the devices of one rank, per device kind: its search, and the devices'
    group of `whole`. Rank r has the kind `of_rank[r]`."""

    whole: Hardware
    bundle: Devices
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
    """Whether equal shares are sent in parts (`hops.py`)."""
    kinds: StageSearches | None = None
    """The device kinds of the ranks; None if all are the same."""

    def search_of(self, stage: int) -> Search:
        """Returns the whole model on a stage's kind of devices."""
        if self.kinds is None:
            return self.search
        return self.kinds.searches[self.kinds.of_rank[int(self.rank_of[stage])]]

    @cached_property
    def limits_bytes(self) -> NDArray[np.float64]:
        """The memory limit of a device of each stage, (stages,)."""
        return np.array([self.search_of(stage).limit_bytes for stage in range(self.stages)])

    @property
    def peak_stage(self) -> int:
        """The stage whose peak is the largest part of its limit."""
        return int((self.peak_bytes / self.limits_bytes).argmax())

    @property
    def scaled_peak_bytes(self) -> float:
        """The largest peak; on several kinds scaled to the device with the least memory."""
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
    def keeping(self) -> Keeping:
        """Each rank's actions in order, and what it holds meanwhile."""
        return keeping(self.schedule, self.ranks, self.micro_batches, self.stages_per_rank)

    @property
    def order(self) -> Schedule:
        """Each rank's actions in order."""
        return self.keeping.order

    @property
    def kept(self) -> list[int]:
        """The maximum number of micro-batches that each stage keeps."""
        return self._by_stage([of_rank.kept.max(axis=0) for of_rank in self.keeping.distinct])

    @property
    def waiting(self) -> list[int]:
        """The maximum number of micro-batches of each stage that wait for the backward of its
        weights."""
        return self._by_stage([of_rank.waiting.max(axis=0) for of_rank in self.keeping.distinct])

    def _by_stage(self, of_ranks: Sequence[NDArray[Any]]) -> list[Any]:
        """Returns values of ranks' stages in stage order."""
        values: list[Any] = [0] * self.stages
        for rank, of_rank in enumerate(of_ranks):
            for stage, value in zip(self.placement.stages_of(rank), of_rank.tolist(), strict=True):
                values[stage] = value
        return values

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
        """Returns the rank whose link to the next rank a stage's tensors use; in a V, where they
        may go backwards, the lower one."""
        here, there = int(self.rank_of[stage]), int(self.rank_of[stage + 1])
        return there if here == there + 1 else here

    @cached_property
    def tied_s(self) -> tuple[float, ...]:
        """The seconds in which each stage sums gradients shared with other ranks."""
        problem, rank_of = self.search.problem, self.rank_of.tolist()
        return _tied_s(self.tied, problem, self.units, self.bounds, self.axes, rank_of)

    @cached_property
    def rank_peaks(self) -> tuple[RankPeaks, ...]:
        """The memory of a device of each rank at the moments of its list."""
        incoming = (*self.incoming_bytes, 0.0)
        return tuple(
            RankPeaks(rank, self.placement.stages_of(rank), self.replayed, incoming)
            for rank in range(self.ranks)
        )

    @cached_property
    def rank_peak_bytes(self) -> NDArray[np.float64]:
        """The peak of a device of each rank, (ranks,): at some moment of its list, or in the
        update."""
        of_ranks = zip(self.rank_peaks, self.keeping.distinct, strict=True)
        return np.array([max(peaks.at(of).max(), peaks.update_bytes) for peaks, of in of_ranks])

    @cached_property
    def peak_bytes(self) -> NDArray[np.float64]:
        """The peak of a device of each stage, (stages,); stages of one rank have that of the
        rank."""
        return np.asarray(self.rank_peak_bytes[self.rank_of])

    @property
    def kept_bytes(self) -> NDArray[np.float64]:
        """The maximum bytes of each stage's kept or waiting micro-batches, with the tensors that
        came in for them, (stages,)."""
        of_ranks = zip(self.rank_peaks, self.keeping.distinct, strict=True)
        return np.array(self._by_stage([p.micro_batches(of).max(axis=0) for p, of in of_ranks]))

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
        """The share of the step in which a device waits, averaged over ranks."""
        return float(self.idle_by_rank.mean())

    @property
    def limit_bytes(self) -> float:
        """The memory limit of one device, the least if there are several kinds."""
        return float(self.limits_bytes.min())

    @property
    def fits(self) -> bool:
        """Whether every stage's peak is within the memory limit of its devices."""
        return bool((self.peak_bytes <= self.limits_bytes).all())

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts pipelines that fit by time, before others by peak."""
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

    Counts every device's whole parameter, although a share needs less time.
    """
    stage_of = {
        name: int(np.searchsorted(bounds, units.of_group[group], side="right")) - 1
        for group, pattern in enumerate(problem.patterns)
        for name in pattern.parameters
    }
    seconds = [0.0] * (len(bounds) - 1)
    for parameter in tied:
        if not problem.context.patterns.carries_gradient(parameter.copies[0]):
            continue
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
