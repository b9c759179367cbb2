"""What the executor reads of a plan, whichever document it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import UnsetType

from shardwise.documents.plan import PlannedCluster, PlannedEdge, PlannedGroup, PlannedSchedule


class Strategy(Protocol):
    """A strategy for a graph: `shardwise.plan/1`, or what a pipeline has for all of its stages.

    `order` is empty where the document does not list all operators of the graph.
    """

    @property
    def graph(self) -> str: ...
    @property
    def graph_name(self) -> str: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def groups(self) -> Sequence[PlannedGroup]: ...
    @property
    def edges(self) -> Sequence[PlannedEdge]: ...
    @property
    def order(self) -> Sequence[str]: ...
    @property
    def cluster(self) -> PlannedCluster | UnsetType: ...
    @property
    def schedule(self) -> PlannedSchedule | UnsetType: ...
    @property
    def kernels(self) -> str | UnsetType: ...
    @property
    def assumed(self) -> bool | UnsetType: ...
    @property
    def tune(self) -> str | UnsetType: ...
