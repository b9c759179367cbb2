"""The order of execution of a plan: the program's, or one by upward rank if that is faster.

The search, its bound and `gap` are about the program's order. The strategy found is then also
replayed in orders by upward rank (HeteroG §4.2).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from shardwise.documents.plan import PlannedSchedule
from shardwise.errors import BadInput
from shardwise.hardware import Devices
from shardwise.replay.scheduling import RANK, WITHIN_MEMORY, Kind, Scheduled, scheduled
from shardwise.search.chosen import Chosen
from shardwise.search.mixed.search import MixedSearch, limits_of
from shardwise.search.search import Infeasible, Search

PROGRAM, AUTO = "program", "auto"
ORDERS = (PROGRAM, RANK, AUTO)

LEAST_GAIN = 1e-3
"""Minimum relative gain of another order, which makes the plan's list worthwhile."""


def asked_order(order: str | None, devices: Devices) -> str:
    """Returns the requested order: by default the program's on one kind of devices, and the faster
    one on several. Raises `BadInput` for an unknown one."""
    if order is None:
        return AUTO if devices.of_groups else PROGRAM
    if order not in ORDERS:
        raise BadInput(f"unknown order {order!r}", field="order", expected=", ".join(ORDERS))
    return order


class Ordered:
    """A point of a search in its own order."""

    def __init__(self, chosen: Chosen, scheduled: Scheduled) -> None:
        self.program = chosen
        self.scheduled = scheduled
        search, point = chosen.search, chosen.point
        solution = search.solution
        one = slice(point, point + 1)
        alone = replace(
            solution,
            memory_bytes=solution.memory_bytes[one],
            time_s=solution.time_s[one],
            choices=solution.choices[one],
            edge_choices=solution.edge_choices[one],
        )
        ordered = replace(search, solution=alone, replayer_of=lambda: scheduled.replayer)
        self.chosen = Chosen(ordered, 0)

    @property
    def document(self) -> PlannedSchedule:
        """The order's member of a plan."""
        program = self.program
        return PlannedSchedule(
            kind=RANK,
            backward=list(self.scheduled.order.backward),
            program_time_s=program.replayed_time_s,
            program_peak_bytes=round(program.peak_bytes),
        )

    @property
    def forward(self) -> list[str]:
        """The operators in forward order."""
        return list(self.scheduled.order.forward)

    def id_of(self, plan_id: str) -> str:
        """Returns the strategy's id in this order, given its id in the program's."""
        digest = hashlib.sha256(plan_id.encode())
        digest.update(repr(self.scheduled.order).encode())
        return f"sha256:{digest.hexdigest()}"


def ordered(chosen: Chosen, order: str) -> Ordered | None:
    """Returns a point in the requested order; None for the program's order, or if the point does
    not fit.

    `rank` takes the order by upward rank, within memory if necessary, whether or not it is faster;
    `auto` only if it saves `LEAST_GAIN`. Raises `Infeasible` if `rank` does not fit.
    """
    if order == PROGRAM or not chosen.fits or not chosen.search.options.replays:
        return None
    found = by_rank(chosen)
    if order == AUTO:
        good = [one for one in found if one.time_s <= chosen.replayed_time_s * (1.0 - LEAST_GAIN)]
    else:
        good = found
    if not good:
        if order == AUTO:
            return None
        raise Infeasible("the strategy fits in the program's order, and in none by rank")
    return Ordered(chosen, min(good, key=lambda one: one.time_s))


def by_rank(chosen: Chosen) -> list[Scheduled]:
    """Returns a point's orders by upward rank that fit; the one within memory only if the other
    does not."""
    search = chosen.search
    for kind in (RANK, WITHIN_MEMORY):
        one = replayed_in(search, chosen.point, kind)
        if one.peak_bytes <= search.limit_bytes:
            return [one]
    return []


def replayed_in(search: Search, point: int, kind: Kind) -> Scheduled:
    """Returns a point in an order computed for it (`replay/scheduling.py`)."""
    solution, options = search.solution, search.options
    limits = np.array([search.limit_bytes])
    if isinstance(search, MixedSearch):
        limits = limits_of(search.problem, options)
    choices, edges = solution.choices[point], solution.edge_choices[point]
    return scheduled(search.problem, options.step, choices, edges, kind, limits)
