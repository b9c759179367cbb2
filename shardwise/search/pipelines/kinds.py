"""Device kinds of a pipeline's stages, each with the model's costs there.

Each stage is on devices of one kind. Groups have the same configurations on all kinds, row by row
(`cost/of_kinds.py`), so guides (`stages.py`) and rows mean the same everywhere. Only the
alternatives of crossings differ between kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Progress
from shardwise.cost.terms import GroupTerms
from shardwise.hardware import Devices, Hardware
from shardwise.replay.replay import Replayer
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.bounds import updates_beside
from shardwise.search.pipelines.guides import regular_strategies
from shardwise.search.pipelines.ranges import RangeBounds
from shardwise.search.pipelines.searched import ScheduleKind
from shardwise.search.pipelines.stages import StageProblems, layouts_of, narrowed
from shardwise.search.pipelines.staircases import Staircases
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search
from shardwise.sharding.layout import Floats

FEW = 128
"""Maximum configurations per group for solving stages over all of them; above this, only those used
on the frontiers of single units and in guides."""

IN_USE = 0.01
"""How far from the best the frontiers may be from which those are taken."""


@dataclass
class StageKind:
    """The devices of one stage, all of one kind, with costs of the units there.

    Lower bounds per unit, (U,): `passes_s` is the computation of forward and backward in a step,
    `backward_s` that of a micro-batch's backward, `parts_s` those of its forward, gradients of
    inputs and gradients of weights, `update_s` that of the update, and `host_s` the host's launches
    in a step.
    """

    draft: Draft
    units: Units
    progress: Progress
    group: str = ""
    """The devices' group in the profile, if it has groups."""

    @property
    def limit_bytes(self) -> float:
        """The memory limit of a device."""
        return self.draft.limit_bytes

    @cached_property
    def search(self) -> Search:
        """The whole model on the devices of one stage."""
        return self.draft.joined(self.progress)

    def replayer(self, *, splits: bool) -> StageReplayer:
        """Returns the replayer of stages on this kind, with split or whole backward."""
        if splits not in self._replayers:
            replayer = self._replaying(splits).own_replayer
            self._replayers[splits] = StageReplayer(replayer, self.units.of_group)
        return self._replayers[splits]

    def _replaying(self, splits: bool) -> Search:
        """Returns the search with a replayer that splits backward or does not."""
        return self._split_search if splits else self.search

    @cached_property
    def _split_search(self) -> Search:
        search = self.search
        write = partial(Replayer, search.problem, search.options.step, search.subject.kits)
        return replace(search, replayer_of=cache(partial(write, split=True)))

    @cached_property
    def passes_s(self) -> Floats:
        return self._by_unit(GroupTerms.least_passes_s)

    @cached_property
    def backward_s(self) -> Floats:
        return self._by_unit(GroupTerms.least_backward_s) / self.draft.groups.context.micro_batches

    @cached_property
    def parts_s(self) -> tuple[Floats, ...]:
        parts = GroupTerms.least_forward_s, GroupTerms.least_inputs_s, GroupTerms.least_weights_s
        batches = self.draft.groups.context.micro_batches
        return tuple(self._by_unit(least) / batches for least in parts)

    @cached_property
    def update_s(self) -> Floats:
        return self._by_unit(GroupTerms.least_update_s)

    @cached_property
    def host_s(self) -> Floats:
        return self._by_unit(lambda terms: terms.host.least_s)

    def _by_unit(self, least: Callable[[GroupTerms], float]) -> Floats:
        """Returns the sum over each unit's groups, (U,)."""
        groups = self.draft.groups
        of_kind = {kind: least(terms) for kind, terms in groups.terms.items()}
        return np.array([sum(of_kind[groups.kinds[g]] for g in own) for own in self.units.groups])

    @cached_property
    def updates_s(self) -> tuple[Floats, Floats]:
        """Lower bounds on what the units' updates, (U,), add to a step: for prefixes of the units,
        and for any units."""
        host = self.search.own_replayer.host
        if host is None:
            return self.update_s, self.update_s
        launched_s = np.zeros(len(self.units))
        for group, unit in enumerate(self.units.of_group):
            launched_s[unit] += float(host.groups[group].max())
        for edge, costs in zip(self.search.problem.edges, host.edges, strict=True):
            launched_s[self.units.of_group[edge.target]] += float(costs.max())
        return updates_beside(self.passes_s, self.update_s, launched_s, host.constant)

    def ranges(self, progress: Progress, *, splits: bool) -> RangeBounds:
        """Returns lower bounds on the passes of unit ranges, with split or whole backward; the
        first caller's `progress` receives the progress."""
        if splits not in self._ranges:
            self._ranges[splits] = RangeBounds(self._replaying(splits), self.units, progress)
        return self._ranges[splits]

    _ranges: dict[bool, RangeBounds] = field(default_factory=dict, init=False)
    _replayers: dict[bool, StageReplayer] = field(default_factory=dict, init=False)


@dataclass(frozen=True)
class _Under:
    """The stages on one kind under a guide: with all configurations (or those in use, if these are
    many), and with few."""

    all: StageProblems
    few: StageProblems


@dataclass(frozen=True)
class Guide:
    """The stages of each kind under one guide, and (`narrow`) with few configurations for
    staircases, per kind of schedules."""

    stages: tuple[StageProblems, ...]
    narrow: tuple[StageProblems, ...]
    staircases: Mapping[ScheduleKind, tuple[Staircases, ...]]


@dataclass
class StageKinds:
    """The device kinds of a query. `bundle` has the number of each, `whole` the profile with all;
    both are None if all devices are of one kind."""

    each: tuple[StageKind, ...]
    whole: Hardware | None = None
    bundle: Devices | None = None
    _guides: dict[Hashable, list[Guide]] = field(default_factory=dict, init=False)

    @property
    def limit_bytes(self) -> float:
        """The memory limit of a device with the least memory."""
        return min(kind.limit_bytes for kind in self.each)

    def guides(
        self, ranks: int, shares: Sequence[float], most_kept: Mapping[ScheduleKind, int]
    ) -> list[Guide]:
        """Returns the stages under guides with different layouts between units.

        `shares` are parts of the memory of all `ranks` that guides may use, `most_kept` the maximum
        number of micro-batches that a stage keeps, per kind of schedules.
        """
        key = ranks, tuple(shares), tuple(most_kept.items())
        if key not in self._guides:
            found = self._found(ranks, shares)
            kept = max(most_kept.values())
            every = [self._under(kind, found, kept) for kind in self.each]
            self._guides[key] = [
                Guide(
                    tuple(of.all for of in of_kinds),
                    tuple(of.few for of in of_kinds),
                    {
                        kind: tuple(Staircases(of.few, most) for of in of_kinds)
                        for kind, most in most_kept.items()
                    },
                )
                for of_kinds in zip(*every, strict=True)
            ]
        return self._guides[key]

    def _under(
        self, kind: StageKind, guides: Sequence[NDArray[np.int64]], kept: int
    ) -> list[_Under]:
        """Returns the stages on one kind under each guide."""
        problem = kind.search.problem
        stages = [StageProblems(problem, kind.units, guide) for guide in guides]
        if max(len(cost.time_s) for cost in problem.costs) <= FEW:
            few = narrowed(problem, guides)
            return [_Under(of, replace(of, narrow=few)) for of in stages]
        used: dict[int, set[int]] = defaultdict(set)
        for of in stages:
            for key, rows in of.of_units(kept, IN_USE).items():
                used[key] |= rows
        some = narrowed(problem, guides, used)
        narrow = [replace(of, narrow=some) for of in stages]
        return [_Under(of, of) for of in narrow]

    def _found(self, ranks: int, shares: Sequence[float]) -> list[NDArray[np.int64]]:
        """Returns strategies of the whole model on a stage's devices, with different layouts
        between units."""
        known: dict[Hashable, NDArray[np.int64]] = {}
        for kind in self.each:
            problem = kind.search.problem
            whole = [share * ranks * kind.limit_bytes for share in sorted(shares, reverse=True)]
            targets = [max(memory - problem.fixed_memory_bytes, 0.0) for memory in whole]
            for guide in regular_strategies(problem, targets):
                known.setdefault(layouts_of(problem, kind.units, guide), guide)
        return list(known.values())
