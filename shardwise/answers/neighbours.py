"""Why not something near it: an answer's neighbours, in the words of parallel training.

    pure FSDP           samples over all devices, ZeRO-3
    TP n, no TP         one more and one less degree of tensor parallelism in every product
    no recomputation    where the answer recomputes
    recomputation       everywhere, where the answer has none and that lowers the peak
    more room           the answer leaves less than a tenth of its memory free

Each is the fastest strategy found with the property (`search/neighbours.py`). One that is faster
than the answer becomes the answer. More room is not searched for; it is the fastest strategy known
by then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from shardwise.answers.label import Labels
from shardwise.answers.roles import GroupRoles, Role
from shardwise.answers.summary import Summaries
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import Progress
from shardwise.cost.part import Masks
from shardwise.documents.plan import MORE_ROOM, Neighbour
from shardwise.errors import Cancelled, SolverError
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.customary import fully_sharded
from shardwise.search.neighbours import Allowed, Candidate, fastest_allowed, joined
from shardwise.search.search import Search
from shardwise.search.watch import OutOfTime, Watch

ROOM = 0.1
"""Share of the limit that counts as room: one of every nine published runs peaks higher above its
prediction (docs/accuracy.md)."""
MOST_ANSWERS = 3
"""Maximum times that a neighbour becomes the answer."""

Choices = NDArray[np.uint32]


def with_neighbours(
    searches: Sequence[Search], progress: Progress
) -> tuple[list[Search], list[Neighbour]]:
    """Returns searches whose fastest strategy is no slower than its neighbours, and the neighbours.

    There are none if nothing fits, or the search was cancelled or out of time.
    """
    searches, near = list(searches), Neighbourhood(progress)
    named: list[Named] = []
    for _ in range(MOST_ANSWERS):
        answer = fastest(searches)
        if answer is None or any(s.solution.status == "cancelled" for s in searches):
            break
        named = near.of(answer, searches)
        best = min((one for one in named if one.strategy.fits), key=_time_s, default=None)
        if best is None or _time_s(best) >= answer.replayed_time_s:
            break
        named.remove(best)
        held = best.strategy.search
        searches = [joined(s, best.strategy) if s is held else s for s in searches]
    return searches, [one.document() for one in named]


def with_room(
    answer: Chosen, searches: Sequence[Search], near: Sequence[Neighbour]
) -> list[Neighbour]:
    """Returns the fastest known strategy that leaves room; none if the answer does."""
    summaries = Summaries(searches)
    if answer.peak_bytes <= (1.0 - ROOM) * answer.search.limit_bytes:
        return []
    known = [replace(one, name=MORE_ROOM) for one in near]
    for search in searches:
        replayed = search.replayed
        roomy = np.flatnonzero(replayed.peak_bytes <= (1.0 - ROOM) * search.limit_bytes)
        if len(roomy):
            at = int(roomy[np.argmin(replayed.time_s[roomy])])
            known.append(
                Neighbour(
                    name=MORE_ROOM,
                    label=summaries.label(search, at),
                    micro_batches=search.micro_batches,
                    replayed_time_s=float(replayed.time_s[at]),
                    peak_bytes=round(float(replayed.peak_bytes[at])),
                    fits=True,
                )
            )
    most = (1.0 - ROOM) * answer.search.limit_bytes
    roomy_ones = (one for one in known if one.peak_bytes <= most)
    best = min(roomy_ones, key=lambda one: (one.replayed_time_s, one.peak_bytes), default=None)
    return [] if best is None else [best]


@dataclass(frozen=True)
class _Property:
    """A name, the configurations that have the property, and a test for strategies."""

    name: str
    allowed: Allowed
    holds: Callable[[Candidate], bool]


@dataclass(frozen=True)
class Named:
    """A neighbour: its property, its label, and the strategy."""

    name: str
    label: str
    strategy: Candidate

    def document(self) -> Neighbour:
        return Neighbour(
            name=self.name,
            label=self.label,
            micro_batches=self.strategy.search.micro_batches,
            replayed_time_s=self.strategy.time_s,
            peak_bytes=round(self.strategy.peak_bytes),
            fits=self.strategy.fits,
        )


def _time_s(neighbour: Named) -> float:
    return neighbour.strategy.time_s


class Neighbourhood:
    """Finds the neighbours of answers to one query."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._summaries = Summaries(())

    def of(self, answer: Chosen, searches: Sequence[Search]) -> list[Named]:
        """Returns the neighbours of an answer found in time."""
        watch = Watch(self._progress, left_s(searches))
        choices = answer.search.solution.choices[answer.point]
        own = self._label(Candidate.of(answer))
        named = []
        for wanted in self._properties(answer, choices):
            try:
                strategy = fastest_allowed(searches, answer.search, wanted.allowed, watch)
            except SolverError:
                continue
            except (Cancelled, OutOfTime):
                break
            if strategy is not None and wanted.holds(strategy):
                label = self._label(strategy)
                if label != own:
                    named.append(Named(wanted.name, label, strategy))
        return named

    def _label(self, one: Candidate) -> str:
        step = one.time_s, one.peak_bytes
        return self._labels(one.search).of(one.choices, one.edge_choices, step)

    def _labels(self, search: Search) -> Labels:
        return self._summaries.labels(search)

    def _properties(self, answer: Chosen, choices: Choices) -> Iterator[_Property]:
        if answer.search.mesh.gpus > 1:
            yield _Property("pure FSDP", self._pure_fsdp, lambda one: True)
        for degree in self._other_degrees(answer.search, choices):
            yield self._tensor_parallel(degree)
        if _recomputes(answer.search, choices):
            yield _Property(
                "no recomputation",
                lambda search: _masks_of(search, lambda cost: ~cost.recompute),
                lambda one: not _recomputes(one.search, one.choices),
            )
        else:
            yield _Property(
                "recomputation",
                lambda search: _masks_of(search, lambda cost: cost.recompute),
                lambda one: one.peak_bytes < answer.peak_bytes,
            )

    def _pure_fsdp(self, search: Search) -> Masks | None:
        """Returns the rows of FSDP over all devices, with recomputation or without it."""
        strategies = fully_sharded(search.problem)
        own = self._labels(search).uniform(strategies[0])
        if own is None or not own.fully_sharded(search.mesh.gpus):
            return None
        known: dict[Hashable, NDArray[np.bool_]] = {}
        masks = []
        for cost, rows in zip(search.problem.costs, strategies.T.tolist(), strict=True):
            key = (id(cost), *rows)
            if key not in known:
                known[key] = np.zeros(len(cost.time_s), dtype=bool)
                known[key][rows] = True
            masks.append(known[key])
        return masks

    def _other_degrees(self, search: Search, choices: Choices) -> list[int]:
        """Returns the next larger and the next smaller degree of tensor parallelism."""
        degrees = self._labels(search).degrees(choices)
        if degrees is None:
            return []
        own, sizes = degrees.model, search.problem.context.mesh.sizes.tolist()
        possible = {
            prod(some) for count in range(len(sizes) + 1) for some in combinations(sizes, count)
        }
        more = sorted(n for n in possible if n > own and n % own == 0)
        less = sorted((n for n in possible if n < own and own % n == 0), reverse=True)
        return [*more[:1], *less[:1]]

    def _tensor_parallel(self, degree: int) -> _Property:
        def allowed(search: Search) -> Masks | None:
            sizes, groups = search.problem.context.mesh.sizes, self._labels(search).groups
            known: dict[Hashable, NDArray[np.bool_]] = {}
            masks, reached = [], False
            for cost, roles in zip(search.problem.costs, groups, strict=True):
                key = (id(cost), roles.roles, roles.product)
                if key not in known:
                    degrees = _model_degrees(cost, roles, sizes)
                    most = degrees[degrees <= degree].max(initial=0)
                    if roles.product and most == 0:
                        return None
                    reached |= roles.product and bool(most == degree)
                    known[key] = (degrees == most) | (not roles.product)
                masks.append(known[key])
            return masks if reached else None

        def holds(one: Candidate) -> bool:
            degrees = self._labels(one.search).degrees(one.choices)
            return degrees is not None and degrees.model == degree

        return _Property(f"TP {degree}" if degree > 1 else "no TP", allowed, holds)


def left_s(searches: Sequence[Search]) -> float | None:
    """Returns the seconds that searches have left of their limit; None without one."""
    limit_s = searches[0].options.time_limit_s
    if limit_s is None:
        return None
    return limit_s - sum(float(search.solution.seconds) for search in searches)


def _recomputes(search: Search, choices: Choices) -> bool:
    costs = search.problem.costs
    return any(bool(cost.recompute[k]) for cost, k in zip(costs, choices, strict=True))


def _masks_of(search: Search, marked: Callable[[GroupCosts], NDArray[np.bool_]]) -> Masks | None:
    """Returns each group's marked rows, or all if none is marked; None without any mark."""
    known: dict[int, NDArray[np.bool_]] = {}
    masks, some = [], False
    for cost in search.problem.costs:
        if id(cost) not in known:
            mask = marked(cost)
            some |= bool(mask.any())
            known[id(cost)] = mask if mask.any() else ~mask
        masks.append(known[id(cost)])
    return masks if some else None


def _model_degrees(
    cost: GroupCosts, roles: GroupRoles, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the number of shares of the model's dimensions per configuration, (K,)."""
    model = [v for v, role in enumerate(roles.roles) if role is Role.MODEL]
    return np.asarray(np.where(np.isin(cost.assignment, model), sizes, 1).prod(axis=1))
