"""The search for one micro-batch count on devices of several kinds.

It is the search by replayed times (`count.py`) with the same game and improvements. A strategy has
durations at every place; its memory is scaled to the place with the least; a path runs at one
place, and every place has its own memory moments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.mixed.assemble import (
    MOST_CONFIGURATIONS,
    MixedCosted,
    MixedProblem,
    mixed_costed,
)
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.shares import Shares
from shardwise.cost.space import EVEN
from shardwise.errors import SolverError
from shardwise.hardware import Blocks, Devices, Hardware, JointLinks
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.search.count import AnyDraft, Count, Effort
from shardwise.search.elimination import Cheapest, cheapest
from shardwise.search.game import Bounding, Outcome
from shardwise.search.improve import Choices, Improver, Pool
from shardwise.search.mixed.alike import mapped_rows, mesh_of_alike, slowest_hardware
from shardwise.search.mixed.branch import Branches, MixedBounding
from shardwise.search.mixed.improve import MixedImprover
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.search import Draft, Search, Subject
from shardwise.search.solution import Solution
from shardwise.search.watch import OutOfTime, Watch
from shardwise.sharding.layout import Floats

OF_ONE = Effort(queries=8, frontiers=1, rounds=8)
SHARE_OF_ONE, MOST_OF_ONE_S = 0.08, 8.0
"""Time limit of a search for one kind: a share of the remaining time, and seconds."""
TIGHT = 1e-3
"""Relative: a bound this near the answer is not improved further."""
MOST_REPLAYED = 200
"""Number of latest strategies from games of parts that are replayed."""
MOST_SOLVING_S = 3.0
"""Time limit for the cheapest strategy of one proportion, in seconds."""


@dataclass(frozen=True, kw_only=True)
class MixedSearch(Search):
    """A search on devices of several kinds: `bundle` of them."""

    problem: MixedProblem
    replayer_of: Callable[[], MixedReplayer]
    bundle: Devices

    @property
    def device_memory_bytes(self) -> float:
        return min(place.hardware.devices[0].memory_bytes for place in self.problem.cluster.places)

    @property
    def profiles(self) -> tuple[Hardware, ...]:
        return tuple(self.hardware.of_group(name) for name, _ in self.bundle.counts)

    @cached_property
    def busiest(self) -> NDArray[np.int64]:
        """The place with the largest total time of each point, (points,)."""
        return self.problem.busiest(self.solution.choices, self.solution.edge_choices)

    def problem_of(self, point: int) -> SearchProblem:
        return self.problem.places[int(self.busiest[point])]

    @property
    def memory_bytes(self) -> Floats:
        fixed = np.array([place.fixed_memory_bytes for place in self.problem.places])
        return np.asarray(self.solution.memory_bytes + fixed[self.busiest])

    @property
    def time_s(self) -> Floats:
        fixed = np.array([place.fixed_time_s for place in self.problem.places])
        return np.asarray(self.solution.time_s + fixed[self.busiest])

    @cached_property
    def mixed_replayer(self) -> MixedReplayer:
        """The replayer of all places."""
        return self.replayer_of()

    @cached_property
    def places(self) -> tuple[Floats, Floats, Floats]:
        """The peak in bytes, and the seconds of computation and communication, (points, places)
        each."""
        values = self.mixed_replayer.values(self.solution.choices, self.solution.edge_choices)
        peaks, _, _, busy_s = self.mixed_replayer.outcome(values)
        return peaks, busy_s[:, 0::2], busy_s[:, 1::2]

    def compute_s(self, point: int) -> float:
        problem = self.problem_of(point)
        chosen = zip(problem.costs, self.solution.choices[point], strict=True)
        return problem.fixed_time_s + sum(float(cost.compute_s[k]) for cost, k in chosen)

    def compute_shares(self, point: int) -> Shares:
        problem = self.problem_of(point)
        total = np.array([0.0, 0.0, problem.fixed_time_s])
        for cost, choice in zip(problem.costs, self.solution.choices[point], strict=True):
            total += cost.compute_by_source_s[choice]
        return Shares.of_columns(total)

    def plan_id(self, point: int) -> str:
        digest = hashlib.sha256(super().plan_id(point).encode())
        digest.update(str(self.bundle).encode())
        cluster = self.problem.cluster
        for cost, k in zip(self.problem.costs, self.solution.choices[point], strict=True):
            weights = cluster.proportions[cost.proportion[k]].reduced
            digest.update(repr((weights, int(cost.gradient_sum[k]))).encode())
        return f"sha256:{digest.hexdigest()}"


def limits_of(problem: MixedProblem, options: Options) -> Floats:
    """Returns the memory limit of a device at each place, in bytes."""
    places = problem.cluster.places
    return np.array([options.limit_for(p.hardware.devices[0].memory_bytes) for p in places])


@dataclass(frozen=True)
class MixedDraft:
    """A query with all group costs at all places, without crossings."""

    subject: Subject
    hardware: Hardware
    bundle: Devices
    options: Options
    groups: MixedCosted

    @classmethod
    def of(
        cls,
        subject: Subject,
        hardware: Hardware,
        bundle: Devices,
        options: Options,
        progress: Progress,
        micro_batches: int,
        links_of: Callable[[Blocks], JointLinks] = JointLinks,
    ) -> MixedDraft:
        """Returns the draft with `micro_batches` in a step; raises as `mixed_costed`."""
        variant = subject.variant(options, micro_batches)
        blocks = Blocks.of(hardware, bundle)
        groups = mixed_costed(variant, blocks, options, progress, micro_batches, links_of)
        return cls(subject, hardware, bundle, options, groups)

    @property
    def limit_bytes(self) -> float:
        """The memory limit of a device with the least memory."""
        places = self.groups.cluster.places
        return min(self.options.limit_for(p.hardware.devices[0].memory_bytes) for p in places)

    def joined(self, progress: Progress) -> MixedSearch:
        """Returns the search with all crossings, without points."""
        return self._search(self.groups.joined(progress), progress)

    def alone(self) -> MixedSearch:
        """Returns an empty search, given up before it began."""
        return self._search(self.groups.alone(), quiet)

    def _search(self, problem: MixedProblem, progress: Progress) -> MixedSearch:
        made: Callable[[], MixedReplayer] = partial(
            MixedReplayer,
            problem,
            self.options.step,
            limits_of(problem, self.options),
            self.subject.mixed_kits,
            progress,
        )
        return MixedSearch(
            subject=self.subject,
            hardware=self.hardware,
            mesh=problem.cluster.search.mesh,
            options=self.options,
            problem=problem,
            solution=Solution.empty(problem),
            replayer_of=cache(made),
            bundle=self.bundle,
        )


class AnyMixedDraft(AnyDraft, Protocol):
    """A query on devices of several kinds."""

    def joined(self, progress: Progress) -> MixedSearch: ...


Propose = Callable[[MixedSearch, Improver, Watch], Choices]
"""Returns further initial strategies (S, groups) within a watch's time."""


class MixedCount(Count):
    """The search for one micro-batch count on devices of several kinds.

    `propose` returns further initial strategies.
    """

    _search: MixedSearch | None

    def __init__(self, draft: AnyMixedDraft, watch: Watch, propose: Propose | None = None) -> None:
        super().__init__(draft, watch)
        self._mixed_draft = draft
        self._propose = propose
        self._mixed_bounding: MixedBounding | None = None
        self._outcome: Outcome | None = None

    @property
    def _begun_search(self) -> MixedSearch:
        if self._search is None:
            self._search = self._mixed_draft.joined(self.watch.costing)
        return self._search

    def _bounding_of_search(self) -> Bounding:
        parts = self._mixed_bounding = MixedBounding.of(self._begun_search.mixed_replayer)
        return Bounding(parts.bound, parts.linear, parts.moments)

    def _starts(self, improver: Improver) -> Iterator[Choices]:
        search = self._begun_search
        yield incumbents(search.problem)
        yield from self._of_one_kind(search)
        if self._propose is not None:
            yield self._propose(search, improver, self.watch)

    def _of_one_kind(self, search: MixedSearch) -> Iterator[Choices]:
        """Yields the results of searches for one kind: all as slow as the slowest, and each group
        alone if it may be faster."""
        problem, cluster = search.problem, search.problem.cluster
        blocks = cluster.blocks
        questions = [(slowest_hardware(blocks), len(blocks.blocks), EVEN)]
        for name in {group.name: None for group in blocks.groups}:
            weights = tuple(int(group.name == name) for group in blocks.groups)
            same = [n for n, p in enumerate(cluster.proportions) if p.reduced == weights]
            if same and sum(weights) < len(weights):
                questions.append((blocks.hardware.of_group(name), sum(weights), same[0]))
        most = min(self._options.max_configurations, MOST_CONFIGURATIONS)
        options = replace(self._options, max_configurations=most)
        for hardware, count, number in questions:
            limit_s = min(self.watch.left_s * SHARE_OF_ONE, MOST_OF_ONE_S)
            watch = Watch(self.watch.report, limit_s, strict=self.watch.strict)
            mesh = mesh_of_alike(blocks, count, most)
            try:
                draft = Draft.of(
                    search.subject, hardware, mesh, options, watch.costing, search.micro_batches
                )
            except OutOfTime:
                continue
            one = Count(draft, watch)
            if number != EVEN and one.least_s >= self.time_within(self.limit_bytes):
                continue
            one.search_within(one.limit_bytes, inf, OF_ONE)
            if one.pool is not None:
                best = one.pool.choices[one.pool.best(one.limit_bytes)]
                yield mapped_rows(one.result().problem, best, problem, number).choices[None]

    def tighten(self, limit_bytes: float, best_s: float, seconds: float) -> None:
        search, outcome = self._search, self._outcome
        if search is None or self._mixed_bounding is None or outcome is None:
            return
        branches = Branches(
            search.mixed_replayer, self._mixed_bounding, self._options, self._tightening
        )
        started = self.watch.spent_s
        proof = branches.divide(
            self._begun_game,
            outcome.met,
            outcome.mix,
            limit_bytes,
            lambda: started + seconds - self.watch.spent_s,
            best_s / (1.0 + max(self._options.epsilon, TIGHT)),
        )
        self._parts = (proof,)
        self.seconds += self.watch.spent_s - started
        if branches.cancelled:
            self.status = "cancelled"
        if branches.met:
            choices, edges = (
                np.concatenate([getattr(met, name) for met in branches.met])
                for name in ("choices", "edge_choices")
            )
            _, first = np.unique(
                np.concatenate([choices, edges], axis=1), axis=0, return_index=True
            )
            some = np.sort(first)[-MOST_REPLAYED:]
            self._add(Pool.of(search.replayer, choices[some], edges[some]))

    def _tightening(self, stage: str, fraction: float) -> bool:
        return self.watch.report(stage, fraction)

    def _improve(
        self, outcome: Outcome, limit_bytes: float, effort: Effort, cutoff_s: float = inf
    ) -> None:
        self._outcome = outcome
        self._solve_each(outcome, limit_bytes)
        super()._improve(outcome, limit_bytes, effort, cutoff_s)

    def _solve_each(self, outcome: Outcome, limit_bytes: float) -> None:
        """Adds the cheapest strategy of each proportion, used by all groups that can."""
        search = self._begun_search
        found: list[Cheapest] = []
        known_s = self.time_within(limit_bytes) if limit_bytes < inf else inf
        for number in range(len(search.problem.cluster.proportions)):
            self._improving(0.0)
            if search.problem.least_everywhere_s(number) >= known_s:
                continue
            for costs in (outcome.charges, self._sums):
                found += self._cheapest(search, costs, number)
        if found:
            choices = np.stack([one.choices for one in found])
            self._add(self._improver(outcome.charges, limit_bytes).replayed(choices))

    @cached_property
    def _sums(self) -> OwnerCosts:
        """Computation and communication summed over all places."""
        return self._begun_game.sums()

    def _cheapest(self, search: MixedSearch, costs: OwnerCosts, number: int) -> list[Cheapest]:
        """Returns the cheapest strategy of one proportion, empty if not found in time."""
        masks = search.problem.everywhere(number)
        try:
            return [
                cheapest(
                    search.problem,
                    costs,
                    allowed=masks,
                    time_limit_s=min(self.watch.left_s, MOST_SOLVING_S),
                    memory_limit_bytes=self._options.search_memory_bytes,
                    threads=self._options.threads,
                    progress=self._bounding,
                )
            ]
        except (SolverError, ValueError):
            return []  # other strategies are still to be tried

    def _improver(self, charges: OwnerCosts, limit_bytes: float) -> Improver:
        return MixedImprover(self._begun_search.replayer, charges, limit_bytes, apart=True)

    def _search_sums(self, limit_bytes: float) -> None:
        """Does nothing: summed times do not rank strategies on several kinds."""
