"""One pipeline query: fixed numbers of ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.hardware import Mesh
from shardwise.search.pipelines.cuts import Cuts
from shardwise.search.pipelines.hops import RankLinks
from shardwise.search.pipelines.kinds import Guide, StageKind, StageKinds
from shardwise.search.pipelines.pipeline import StageSearches
from shardwise.search.pipelines.rules import StageRules
from shardwise.search.pipelines.searched import Run, ScheduleKind
from shardwise.search.pipelines.subject import Tied
from shardwise.search.pipelines.units import Units
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class PipelineQuery:
    """A number of ranks and of micro-batches on the devices of a mesh, with the schedules that
    allow them.

    Rank r has devices of the kind `kind_of[r]` of `kinds`. `least_s` is a lower bound on every
    pipeline.
    """

    mesh: Mesh
    units: Units
    rules: StageRules
    tied: Sequence[Tied]
    axes: RankLinks
    kinds: StageKinds
    kind_of: tuple[int, ...]
    runs: Sequence[Run]
    least_s: float

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.kind_of)

    @property
    def first(self) -> StageKind:
        """The kind of the first rank's devices."""
        return self.kinds.each[self.kind_of[0]]

    @property
    def searches(self) -> StageSearches | None:
        """The device kinds of a pipeline; None if all are the same."""
        kinds = self.kinds
        if kinds.whole is None or kinds.bundle is None:
            return None
        searches = tuple(kind.search for kind in kinds.each)
        groups = tuple(kind.group for kind in kinds.each)
        return StageSearches(kinds.whole, kinds.bundle, searches, groups, self.kind_of)

    def of_stages(self, run: Run) -> list[int]:
        """Returns the number of the kind that each stage is on."""
        return [self.kind_of[rank] for rank in run.rank_of]

    @cached_property
    def scales(self) -> Floats:
        """Each rank's memory limit relative to that of the smallest device, (ranks,)."""
        limits = np.array([self.kinds.each[kind].limit_bytes for kind in self.kind_of])
        return np.asarray(limits / self.kinds.limit_bytes)


@dataclass(frozen=True)
class Guided:
    """The stages under one guide.

    `hops_s` has per kind of schedules and stage, (U + 1,), the seconds of the hop into that stage
    by the unit behind the cut, 0 without a hop.
    """

    guide: Guide
    hops_s: Mapping[ScheduleKind, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Within:
    """Cuts, and each stage's memory, (stages,)."""

    cuts: Cuts
    within: Floats
