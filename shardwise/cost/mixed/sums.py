"""Sums of gradients between devices of several kinds: parameter servers, and uneven shards.

`server(d)` is ZeRO 1 whose one shard is all at block d (spread over the ranks in it that repeat the
parameter): gradients go there, it updates, parameters come back. With stage 0 the sum comes back
and all update, which is HeteroG's PS. Uneven shards give each block the share of the optimizer's
state that its free memory is of all (Cephalo's decoupling of state from computation).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.mixed.cluster import BLOCKS_BIT, Cluster
from shardwise.cost.mixed.proportions import Proportion
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class _Sum(ABC):
    """A sum at the devices of one place; without a place it marks where places are joined."""

    cluster: Cluster
    place: int | None
    name: str
    stages: tuple[int, ...]

    def reaches(self, masks: NDArray[np.int64], proportions: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Returns where replicas are in several blocks, the server's or those with shards too."""
        sizes = self.cluster.support_sizes[proportions]
        allowed = self._allowed[proportions]
        return np.asarray((masks & BLOCKS_BIT > 0) & (sizes > 1) & allowed)

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        """The proportions that support this sum."""
        return np.array([self._allows(p) for p in self.cluster.proportions])

    def one_way_s(
        self, sizes_bytes: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns how long the place's links are busy, (n,) seconds."""
        reaches = self.reaches(masks, proportions)
        if self.place is None:
            return reaches.astype(np.float64)
        seconds, block = np.zeros(len(masks)), self.cluster.places[self.place].block
        for p in np.unique(proportions[reaches]).tolist():
            support = self.cluster.proportions[p].support
            if block not in support:
                continue
            of_proportion = reaches & (proportions == p)
            for mask in np.unique(masks[of_proportion]).tolist():
                chosen = of_proportion & (masks == mask)
                ranks = self.cluster.ranks_inside(mask)
                seconds[chosen] = self._seconds(sizes_bytes[chosen], block, support, ranks)
        return seconds

    def _inside(self, masks: NDArray[np.int64]) -> NDArray[np.int64]:
        distinct, inverse = np.unique(masks, return_inverse=True)
        ranks = [self.cluster.ranks_inside(mask) for mask in distinct.tolist()]
        return np.array(ranks, dtype=np.int64)[inverse]

    @abstractmethod
    def _allows(self, proportion: Proportion) -> bool:
        """Returns whether blocks with these shares support this sum."""

    @abstractmethod
    def _seconds(
        self, sizes_bytes: Floats, block: int, support: tuple[int, ...], ranks: int
    ) -> Floats:
        """Returns how long the links of the place, in a block, are busy with a sum over the blocks
        of `support`, (n,) seconds."""


@dataclass(frozen=True)
class ServerSum(_Sum):
    """All gradients are summed at one block."""

    server: int

    def elements(
        self, whole: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns the shard of a parameter of `whole` elements: all of it, or none, (n,)."""
        here = self.place is not None and self.cluster.places[self.place].block == self.server
        return np.asarray(np.ceil(whole / self._inside(masks)) if here else np.zeros_like(whole))

    def _allows(self, proportion: Proportion) -> bool:
        return proportion.weights[self.server] > 0

    def _seconds(
        self, sizes_bytes: Floats, block: int, support: tuple[int, ...], ranks: int
    ) -> Floats:
        return self.cluster.links.to_server_s(sizes_bytes, self.server, block, support, ranks)


@dataclass(frozen=True)
class UnevenSum(_Sum):
    """Every block has its own share of every parameter's state."""

    shares: Proportion

    def elements(
        self, whole: Floats, masks: NDArray[np.int64], proportions: NDArray[np.int8]
    ) -> Floats:
        """Returns the shard of a parameter of `whole` elements, (n,)."""
        if self.place is None:
            return np.asarray(np.ceil(whole / self._inside(masks)))
        weights = np.array(self.shares.weights, dtype=np.float64)
        own = weights[self.cluster.places[self.place].block]
        totals = np.array([weights[list(p.support)].sum() for p in self.cluster.proportions])
        return np.asarray(np.ceil(whole / self._inside(masks) * own / totals[proportions]))

    def _allows(self, proportion: Proportion) -> bool:
        return all(self.shares.weights[block] > 0 for block in proportion.support)

    def _seconds(
        self, sizes_bytes: Floats, block: int, support: tuple[int, ...], ranks: int
    ) -> Floats:
        weights = [self.shares.weights[block] for block in support]
        least = min(weights) / (sum(weights) * ranks)
        even = 1.0 / (len(support) * ranks)
        times = self.cluster.links.times("all_gather", sizes_bytes, support, ranks)
        return np.asarray(times * (1.0 - least) / (1.0 - even))


def server_name(cluster: Cluster, block: int) -> str:
    """Returns the name of a server sum in answers."""
    return f"server {cluster.blocks.groups[block].name}"


def sums_at(cluster: Cluster, place: int | None) -> tuple[ServerSum | UnevenSum | None, ...]:
    """Returns a place's kinds of gradient sum, that of collectives (None) first."""
    servers = [
        ServerSum(cluster, place, server_name(cluster, block), (0, 1), block)
        for block in cluster.servers
    ]
    uneven = [UnevenSum(cluster, place, p.origin, (1, 2, 3), p) for p in cluster.states]
    return (None, *servers, *uneven)
