"""The context that the costs of all groups of a query share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from shardwise.cost.operator_family import Families
from shardwise.cost.options import Options
from shardwise.cost.pins import Pins
from shardwise.cost.reschedule import Rescheduling
from shardwise.cost.space import SearchMesh
from shardwise.cost.units import require_units
from shardwise.graph.graph import Graph
from shardwise.hardware import Device, Hardware
from shardwise.hardware.power import at_limit
from shardwise.sharding.pattern import Patterns
from shardwise.sharding.rerun import Rerun


class ReschedulerFor(Protocol):
    """Returns the rescheduler for a shape, an item size in bytes, and the collective that may not
    end a sum."""

    def __call__(
        self, shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
    ) -> Rescheduling: ...


@dataclass(frozen=True)
class CostContext:
    """What a group's cost depends on besides the group itself.

    `graph` has the batch of one micro-batch; `segments` is each group's recomputation segment,
    `rerun` the part of a segment that runs again.
    """

    graph: Graph
    hardware: Hardware
    mesh: SearchMesh
    options: Options
    patterns: Patterns
    rescheduler: ReschedulerFor
    pins: Pins
    segments: tuple[int, ...]
    families: Families
    micro_batches: int = 1
    rerun: Rerun = field(default_factory=Rerun)

    def __post_init__(self) -> None:
        """Raises `BadInput` if a device has no units for the requested precision."""
        require_units(self.hardware.devices, self.options)

    @cached_property
    def device(self) -> Device:
        """The kind of device that computes, at the power limit of the options."""
        return at_limit(self.hardware, self.options.power_limit_w)

    def shares_segment(self, group: int) -> bool:
        """Returns whether other groups are in a group's segment of recomputation."""
        return self._segment_sizes[self.segments[group]] > 1

    @cached_property
    def _segment_sizes(self) -> Counter[int]:
        return Counter(self.segments)
