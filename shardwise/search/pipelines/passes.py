"""The best mean of paths through a stage's passes within a memory limit: a game.

    value = max over means w of paths and prices mu >= 0 of
            min over strategies s of [ sum over tasks of w_t p_t(s) + mu (m_k(s) - M) ]

The paths are those between the marks of a repeated micro-batch, so w p is a lower bound on its
passes (`ranges.py`); m_k = held + (k - 1) kept is a lower bound on the bytes held while k
micro-batches are kept, M the limit; tasks and bytes are those of a range of units. The best mean
without a limit charges little for what only low-memory strategies do, such as recomputation, so
each range and memory has its own. Strategies and paths are of the whole model, so what is found for
one range bounds all. They are added as best responses to each other (double oracle, McMahan et al.
2003), and kept from game to game.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Progress
from shardwise.errors import InternalError
from shardwise.hardware.host import soft_maximum, supporting_weights
from shardwise.replay.linear import LinearStep
from shardwise.replay.moments import Moments
from shardwise.replay.owner_costs import OwnerCosts, priced
from shardwise.replay.stages import units_of_values
from shardwise.search.elimination import cheapest, least_of
from shardwise.search.linear_programme import Equilibrium, equilibrium
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

QUERIES = 10
"""Maximum number of eliminations of a game."""

PATHS = 10
"""Maximum number of paths added between two of them."""

NEAR = 2e-3
"""Relative: a game ends when its bound is this near its value."""

ON_PATH = 1e-4
"""Relative: no path is added if the mean strategy's longest path is this near the value."""

NEEDED = 1e-7
"""Mixture weights below this are dropped."""

LATEST = 20
"""Strategies and paths kept from game to game although no mean uses them."""


@dataclass(frozen=True)
class Priced:
    """Charges for a micro-batch's passes (seconds), and a price of memory (seconds per byte)."""

    time: OwnerCosts
    price: float


@dataclass(frozen=True)
class _Range:
    """A range of units: its shares of the tasks and, approximately, of the host's time, (tasks +
    1,), and its owners, groups and then edges."""

    groups: list[int]
    shares: Floats
    owners: NDArray[np.bool_]


@dataclass
class PassesGame:
    """The games of a model's unit ranges on the devices of a stage, with four micro-batches or
    more."""

    search: Search
    units: Units
    progress: Progress
    _mix: Equilibrium | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        replayer, problem = self.search.own_replayer, self.search.problem
        self._replayer, self._linear = replayer, LinearStep(replayer)
        self._batches = problem.context.micro_batches
        self._of_group = np.array(self.units.of_group)
        edges = [(self._of_group[e.source], self._of_group[e.target]) for e in problem.edges]
        self._of_edge = np.array(edges, dtype=np.int64).reshape(-1, 2)
        self._of_task = units_of_values(replayer, self._of_group, replayer.tape.durations)
        owners = len(problem.costs) + len(problem.edges)
        # Strategies so far: (S, tasks + 1), the host's seconds per micro-batch last; held and kept
        # bytes per owner, (S, owners).
        self._durations_s = np.zeros((0, replayer.tasks + 1))
        self._held_bytes = self._kept_bytes = np.zeros((0, owners))
        # Paths so far, (P, tasks + 1).
        self._paths = np.zeros((0, replayer.tasks + 1))

    @cached_property
    def _memory(self) -> tuple[OwnerCosts, OwnerCosts]:
        """Lower bounds on the bytes held when the last backward begins, and on the part that each
        further kept micro-batch adds."""
        return Moments(self._replayer).held_by_stages()

    @cached_property
    def _alike(self) -> tuple[Floats, Floats]:
        """The same for edges without a choice, which strategy sums leave out, (owners,) each."""
        held, kept = (
            [float(costs.max()) if costs.size == 1 else 0.0 for costs in of.edges]
            for of in self._memory
        )
        none = [0.0] * len(self.search.problem.costs)
        return np.array(none + held), np.array(none + kept)

    def memory(self, kept: int) -> OwnerCosts:
        """Returns a lower bound on the bytes held while `kept` micro-batches are kept."""
        return priced(list(zip((1.0, kept - 1.0), self._memory, strict=True)))

    def charges(self, kept: int, of: Priced) -> OwnerCosts:
        """Returns a micro-batch's total charges, for passes and memory."""
        return priced([(1.0, of.time), (of.price, self.memory(kept))])

    def free(self) -> Priced:
        """Returns the charges of the best mean of paths through the whole model, without a memory
        price.

        Raises `Cancelled`, and `SolverError` if memory runs out.
        """
        return self.best(0, len(self.units), 1, inf)

    def best(self, first: int, last: int, kept: int, limit_bytes: float) -> Priced:
        """Returns the charges with the best bound found on units `first` to `last` - 1 that keep
        `kept` micro-batches within a limit; raises as `free`."""
        of, memory = self._range(first, last), self.memory(kept)
        limited = isfinite(limit_bytes)
        left_bytes = limit_bytes - memory.constant
        self._drop_unneeded()
        if not len(self._durations_s):
            self._meet(self._charges(np.append(np.ones(self._replayer.tasks), 0.0)))
        if limited and not (self._bytes(of, kept) <= left_bytes).any():
            self._meet(memory)
        best_s, best = -inf, (self._paths[-1], 0.0)
        for _ in range(QUERIES):
            value_s, weights, price = self._equilibrium(of, kept, left_bytes)
            if best_s > -inf:
                if value_s <= best_s + NEAR * abs(best_s):
                    break
                # Halfway to the best so far; the linear programme would jump between corners.
                weights, price = (weights + best[0]) / 2, (price + best[1]) / 2
            charges = priced([(1.0, self._charges(weights)), (price, memory)])
            bound_s = self.least_s(charges, of.groups)
            if limited:
                bound_s -= price * left_bytes
            if bound_s > best_s:
                best_s, best = bound_s, (weights, price)
            self._meet(charges)
        return Priced(self._charges(best[0]), best[1])

    def least_s(self, charges: OwnerCosts, groups: list[int]) -> float:
        """Returns the least charge of any strategy of these groups, without constants."""
        options = self.search.options
        return least_of(
            self.search.problem,
            charges,
            groups,
            memory_limit_bytes=options.search_memory_bytes,
            threads=options.threads,
        )

    def _range(self, first: int, last: int) -> _Range:
        """Returns a range of units, without crossings from units before it, as in the bounds of
        ranges."""
        inside = [(first <= units) & (units < last) for units in (self._of_group, self._of_task)]
        edges = ((first <= self._of_edge) & (self._of_edge < last)).all(axis=1)
        return _Range(
            self.units.groups_of(first, last),
            np.append(inside[1], inside[0].mean()),
            np.concatenate([inside[0], edges]),
        )

    def _bytes(self, of: _Range, kept: int) -> Floats:
        """Returns lower bounds on the bytes held in a range by the strategies so far, (S,), without
        constants."""
        held_alike, kept_alike = self._alike
        each = self._held_bytes + (kept - 1.0) * self._kept_bytes
        return np.asarray((each + held_alike + (kept - 1.0) * kept_alike) @ of.owners)

    def _equilibrium(self, of: _Range, kept: int, left_bytes: float) -> tuple[float, Floats, float]:
        """Returns the value of the game with the strategies so far, the mean of paths and the
        price, after adding the paths that the mean strategy calls for."""
        durations_s = self._durations_s * of.shares
        held = self._bytes(of, kept)
        limited = isfinite(left_bytes)
        over = (held - left_bytes)[:, None] if limited else np.zeros((len(held), 0))
        for _ in range(PATHS):
            now = equilibrium(durations_s @ self._paths.T, over, left_bytes if limited else 1.0)
            mean = now.strategies @ self._durations_s
            _, path = self._longest(mean)
            price = float(now.prices[0]) if limited else 0.0
            paid_s = price * float(now.strategies @ over[:, 0]) if limited else 0.0
            length_s = float((mean * of.shares) @ path)
            if length_s + paid_s <= now.value_s + ON_PATH * abs(now.value_s):
                break
            self._paths = np.vstack([self._paths, path])
        self._mix = now
        return now.value_s, np.asarray(now.paths @ self._paths[: len(now.paths)]), price

    def _drop_unneeded(self) -> None:
        """Drops strategies and paths with no weight in the last mean, except the latest."""
        if self._mix is None:
            return
        some = _needed(self._mix.strategies, len(self._durations_s))
        self._durations_s = self._durations_s[some]
        self._held_bytes, self._kept_bytes = self._held_bytes[some], self._kept_bytes[some]
        self._paths = self._paths[_needed(self._mix.paths, len(self._paths))]
        self._mix = None

    def _charges(self, weights: Floats) -> OwnerCosts:
        """Returns the charges for weights of tasks and of the host's seconds per micro-batch."""
        of_step = np.append(weights[:-1], weights[-1] / self._batches)
        return self._linear.weighted(of_step)

    def _meet(self, charges: OwnerCosts) -> None:
        """Adds the cheapest strategy and its longest path."""
        replayer, problem, options = self._replayer, self.search.problem, self.search.options
        answer = cheapest(
            problem,
            charges,
            memory_limit_bytes=options.search_memory_bytes,
            threads=options.threads,
            progress=self.progress,
        )
        chosen = answer.choices[None, :], answer.edge_choices[None, :]
        host_s = replayer.host_times(*chosen) / self._batches
        durations_s = np.append(replayer.values(*chosen)[0][0], host_s)
        self._durations_s = np.vstack([self._durations_s, durations_s])
        held, kept = (of.each(problem, *chosen).T for of in self._memory)
        self._held_bytes = np.vstack([self._held_bytes, held])
        self._kept_bytes = np.vstack([self._kept_bytes, kept])
        self._paths = np.vstack([self._paths, self._longest(durations_s)[1]])

    def _longest(self, durations_s: Floats) -> tuple[float, Floats]:
        """Returns the seconds of a micro-batch's longest path beside the host, and its weights:
        those of its tasks times the soft maximum's slope, and the host's slope."""
        repeat = self._replayer.repeat
        if repeat is None:
            raise InternalError(f"a pipeline of {self._batches} micro-batches has no period")
        marks = repeat.begins, repeat.ends
        tasks_s = np.ascontiguousarray(durations_s[None, :-1])
        length_s, members = self._replayer.program.longest_paths(tasks_s, between=marks)
        host_s = durations_s[-1:]
        device, host = supporting_weights(length_s, host_s)
        weights = np.append(device[0] * members[0], host[0])
        return float(soft_maximum(length_s, host_s)[0]), weights


def _needed(mix: Floats, count: int) -> NDArray[np.bool_]:
    """Returns the members with weight in a mean, those added since, and the latest."""
    needed = np.ones(count, dtype=bool)
    needed[: len(mix)] = mix > NEEDED
    needed[max(count - LATEST, 0) :] = True
    return needed
