"""The order in which queued jobs are computed, and when each will begin.

Between tenants: the one with the least service over its weight is next
(store/attained.py). Among one tenant's jobs: the higher priority, then the lesser

    turn_s = cost_s + AGEING · created_at

so that short jobs go first, and a long one goes before a short one that was asked
(cost difference) / AGEING seconds after it. `store/leases.py` claims in this order; here it is
simulated over the whole queue, as an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import TypeVar

from sqlalchemy import ColumnElement

AGEING = 0.5
"""Seconds of estimated cost that one second of waiting offsets."""

PRIORITIES = (-10, 10)
"""The lowest and the highest priority."""


Moment = TypeVar("Moment", float, ColumnElement[float])


def turn_s(cost_s: float, created_at: Moment) -> Moment:
    """Returns when a job counts as due, among jobs of its tenant and priority.

    `created_at` is a number or a database expression.
    """
    return created_at * AGEING + cost_s


@dataclass(frozen=True)
class Waiting:
    """A queued job."""

    id: str
    tenant: str
    priority: int
    cost_s: float
    turn_s: float

    @property
    def order(self) -> tuple[int, float, str]:
        """The sort key among the jobs of its tenant, ascending."""
        return (-self.priority, self.turn_s, self.id)


@dataclass(frozen=True)
class Share:
    """The service that a tenant has had, in seconds over its weight."""

    virtual_s: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True)
class Place:
    """The place of a queued job; times are seconds from now.

    `place` counts from 1 over all tenants; `before` are the tenant's own jobs before it, `higher`
    those of them that have a higher priority.
    """

    place: int
    before: int
    higher: int
    starts_s: float
    ends_s: float


@dataclass(frozen=True)
class Slots:
    """When each slot is free, in seconds from now; `short` are those for short jobs alone."""

    general: tuple[float, ...]
    short: tuple[float, ...] = ()
    short_job_s: float = 0.0


@dataclass
class _Queue:
    """One tenant's jobs in order: all, and the short ones among them."""

    jobs: list[Waiting]
    short: list[Waiting]
    at: int = 0
    at_short: int = 0
    taken: set[str] = field(default_factory=set)

    def next(self, *, short: bool) -> Waiting | None:
        """Returns the first job that is not taken."""
        if short:
            while self.at_short < len(self.short) and self.short[self.at_short].id in self.taken:
                self.at_short += 1
            return self.short[self.at_short] if self.at_short < len(self.short) else None
        while self.at < len(self.jobs) and self.jobs[self.at].id in self.taken:
            self.at += 1
        return self.jobs[self.at] if self.at < len(self.jobs) else None


class _Tenants:
    """The tenants that have jobs left, by the service that they have had."""

    def __init__(self, queues: Mapping[str, _Queue], shares: Mapping[str, Share]) -> None:
        self._queues = queues
        self._shares = {tenant: shares.get(tenant, Share()) for tenant in queues}
        self._virtual_s = {tenant: share.virtual_s for tenant, share in self._shares.items()}
        self._heaps = [[(v, tenant) for tenant, v in self._virtual_s.items()] for _ in range(2)]
        for heap in self._heaps:
            heapify(heap)

    def take(self, *, short: bool) -> Waiting | None:
        """Returns the next job for such a slot, charged to its tenant."""
        heap = self._heaps[short]
        while heap:
            virtual_s, tenant = heap[0]
            job = None
            if virtual_s == self._virtual_s[tenant]:
                job = self._queues[tenant].next(short=short)
            if job is None:
                heappop(heap)
                continue
            self._queues[tenant].taken.add(job.id)
            virtual_s += job.cost_s / self._shares[tenant].weight
            self._virtual_s[tenant] = virtual_s
            for each in self._heaps:
                heappush(each, (virtual_s, tenant))
            return job
        return None


def places(
    waiting: Iterable[Waiting], shares: Mapping[str, Share], slots: Slots
) -> dict[str, Place]:
    """Returns the place of each queued job by its id, if jobs take as long as estimated.

    Without any slot the order is that of one slot, and jobs never start.
    """
    by_tenant: dict[str, list[Waiting]] = {}
    for each in waiting:
        by_tenant.setdefault(each.tenant, []).append(each)
    queues = {}
    for tenant, jobs in by_tenant.items():
        jobs.sort(key=lambda job: job.order)
        queues[tenant] = _Queue(jobs, [job for job in jobs if job.cost_s <= slots.short_job_s])
    tenants = _Tenants(queues, shares)
    free = [(at, False) for at in slots.general] + [(at, True) for at in slots.short]
    free = free or [(inf, False)]
    heapify(free)
    place_of: dict[str, Place] = {}
    started: dict[str, Counter[int]] = {tenant: Counter() for tenant in queues}
    while free:
        at_s, short = free[0]
        job = tenants.take(short=short)
        if job is None:
            heappop(free)
            continue
        own = started[job.tenant]
        higher = sum(count for priority, count in own.items() if priority > job.priority)
        place_of[job.id] = Place(len(place_of) + 1, own.total(), higher, at_s, at_s + job.cost_s)
        own[job.priority] += 1
        heapreplace(free, (at_s + job.cost_s, short))
    return place_of
