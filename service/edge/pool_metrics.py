"""Use of a process's shared limits (service/base/pools.py), not by tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.base.byte_budget import ByteBudget
from service.base.fair_pool import FairPool
from service.base.fair_slots import Places
from service.base.pools import Pools


def pool_families() -> dict[str, GaugeMetricFamily]:
    """Returns the gauges, still empty, by name without the prefix."""
    gauges = (
        ("open", "What is open: event streams, waiting agents, archives, uploads.", ("what",)),
        ("open_limit", "How many tenants may have open together.", ("what",)),
        ("open_of_one", "The most that one tenant, or all operators, have open.", ("what",)),
        ("calls_running", "Calls that have a thread of a pool.", ("pool",)),
        ("calls_waiting", "Calls that wait for a thread of a pool.", ("pool",)),
        ("bodies_ratio", "Bytes of bodies in memory, of what tenants may have together.", ()),
    )
    return {
        name: GaugeMetricFamily(f"shardwise_{name}", text, labels=labels)
        for name, text, labels in gauges
    }


class PoolCollector(Collector):
    """Reads the counts of a process's pools."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def describe(self) -> list[Metric]:
        """Returns the families without values."""
        return list(pool_families().values())

    def collect(self) -> Iterator[Metric]:
        """Yields the families."""
        families = pool_families()
        for name, pool in vars(self._pools).items():
            if isinstance(pool, Places):
                _add_places(families, name, pool)
            elif isinstance(pool, FairPool):
                families["calls_running"].add_metric((name,), pool.slots.running)
                families["calls_waiting"].add_metric((name,), pool.slots.waiting())
            elif isinstance(pool, ByteBudget):
                families["bodies_ratio"].add_metric((), pool.shares.taken / pool.shares.most)
        yield from families.values()


def _add_places(families: Mapping[str, GaugeMetricFamily], name: str, places: Places) -> None:
    families["open"].add_metric((name,), places.shares.taken)
    families["open_of_one"].add_metric((name,), places.shares.taken_by_one)
    if places.shares.most != inf:
        families["open_limit"].add_metric((name,), places.shares.most)
