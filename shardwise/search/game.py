"""The best proven bound on the replayed time of every strategy that fits: a game by double oracle.

    value = max over (mixes y of paths, prices mu >= 0) of
                min over strategies s of [sum_t w_y(t) p_t(s) + sum_r mu_r (m_r(s) - M)]

with w_y the weights of the mean path (`replay/bound.py`), m_r lower bounds on the memory held at a
moment (`replay/moments.py`) and M the limit. Each inner minimum is one elimination, and a lower
bound on the replayed time of every strategy that fits. Strategies and paths are added as best
responses to each other (double oracle, McMahan et al. 2003). A query is halfway between the best
one so far and the solution of the linear programme, which would jump between corners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite
from time import monotonic
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Options, Progress, go_on
from shardwise.cost.part import Masks
from shardwise.errors import SolverError
from shardwise.replay.bound import Paths, StepBound, with_host
from shardwise.replay.linear import LinearStep
from shardwise.replay.moments import Moments
from shardwise.replay.owner_costs import Choices as AnyChoices
from shardwise.replay.owner_costs import OwnerCosts, priced
from shardwise.replay.replay import Replayer, StrategyReplayer
from shardwise.search.elimination import cheapest
from shardwise.search.linear_programme import Equilibrium, equilibrium
from shardwise.search.search import Line
from shardwise.sharding.layout import Floats

TOLERANCE = 2e-3
"""Relative: a game ends when the bound is this near the value of the mixtures."""
MOST_QUERIES = 24
PATIENCE = 6
"""Stop after this many queries without progress."""
MOST_PATHS = 10
"""Maximum number of paths added between two queries."""
KEPT = 40
"""Paths and strategies kept although no equilibrium uses them."""
NEEDED = 1e-7
"""Mixture weights below this are dropped."""
MOST_MOMENTS = 4
WIDE = 1e-4
"""Relative: a larger difference between bound and strategy means that the elimination copied
operators."""
BOUNDING = "bounding"
ON_PATH = 1e-4
"""Relative: no path is added if the mean strategy's longest path is this near the value."""

Choices = NDArray[np.uint32]


@dataclass(frozen=True)
class Met:
    """Strategies: choices (S, groups) and (S, edges), durations (S, tasks + 1), the host's last.

    Also the replayed steps' peak, time, and the task that reaches the peak, (S,).
    """

    choices: Choices
    edge_choices: Choices
    durations_s: Floats
    peak_bytes: Floats
    time_s: Floats
    peak_task: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Met:
        """Returns some of the strategies."""
        return Met(*(getattr(self, field.name)[rows] for field in fields(Met)))

    def joined(self, other: Met) -> Met:
        """Returns the union of both."""
        return Met(
            *(
                np.concatenate([getattr(self, field.name), getattr(other, field.name)])
                for field in fields(Met)
            )
        )


class TimeBound(Protocol):
    """Task weights whose weighted sum is a lower bound on every step (`replay/bound.py`)."""

    def durations(
        self, durations_s: Floats, choices: AnyChoices, edge_choices: AnyChoices
    ) -> Floats: ...
    def longest(self, durations_s: Floats) -> Paths: ...
    def weights(self, once: Floats, again: Floats) -> Floats: ...
    def sums(self) -> Floats: ...


class WeightedStep(Protocol):
    """Sums over the tasks of a step (`replay/linear.py`)."""

    def weighted(self, weights: Floats) -> OwnerCosts: ...


class MemoryMoments(Protocol):
    """Moments with a lower bound on the memory held (`replay/moments.py`)."""

    @property
    def last_backward(self) -> int: ...
    def task_of(self, task: int) -> int: ...
    def held(self, task: int) -> OwnerCosts: ...


@dataclass(frozen=True)
class Bounding:
    """The bounds of a replayer's problem."""

    bound: TimeBound
    linear: WeightedStep
    moments: MemoryMoments

    @classmethod
    def of(cls, replayer: Replayer) -> Bounding:
        """Returns the bounds for devices of one kind."""
        return cls(StepBound(replayer), LinearStep(replayer), Moments(replayer))


@dataclass(frozen=True)
class Outcome:
    """The result of a game: a lower bound `bound_s` on every strategy within the limit (infinite:
    none fits).

    `charges` are the costs that the best query minimised, `held` the memory that it priced, `time`
    its charges for time alone. `met` are the strategies, `mix` (S,) their weights in the mean
    strategy; the last `new` of them were added by this game.
    """

    bound_s: float
    charges: OwnerCosts
    time: OwnerCosts
    held: OwnerCosts | None
    met: Met
    mix: Floats
    new: int


@dataclass(frozen=True)
class Query:
    """A mean of paths (`once`, `again`: `replay/bound.py`) with prices of moments, and its bound.

    `program` is the tape of the paths; problems with the same program can share queries.
    """

    line: Line
    once: Floats
    again: Floats
    prices: Mapping[int, float]
    program: object


class Game:
    """The games of one search problem, under successive limits.

    `progress` returns False to end a game. `allowed` restricts the configurations. Strategies,
    paths and queries are kept from one game to the next.
    """

    def __init__(
        self,
        replayer: StrategyReplayer,
        bounding: Bounding,
        options: Options,
        progress: Progress,
        allowed: Masks | None = None,
    ) -> None:
        self.replayer = replayer
        self._allowed = allowed
        self._options = options
        self._progress = progress
        self._fraction = 0.0
        self.is_wide = False
        """Whether some elimination returned a strategy above its bound, because the graph is
        wide."""
        self._bound = bounding.bound
        self._linear = bounding.linear
        self._moments = bounding.moments
        self._tasks: list[int] = []
        self._asked: Met | None = None
        self._board: _Board | None = None
        self.queries: list[Query] = []

    def met(self, choices: Choices, edge_choices: Choices) -> Met:
        """Returns strategies with their replayed steps."""
        values = self.replayer.values(choices, edge_choices)
        host_s = self.replayer.host_times(choices, edge_choices)
        replayed = self.replayer.replay_values(values, host_s)
        return Met(
            choices,
            edge_choices,
            with_host(self._bound.durations(values[0], choices, edge_choices), host_s),
            replayed.peak_bytes,
            replayed.time_s,
            replayed.peak_task,
        )

    def sums(self) -> OwnerCosts:
        """Returns the summed times."""
        return self._linear.weighted(self._bound.sums())

    def cheapest(self, charges: OwnerCosts, time_limit_s: float = inf) -> tuple[float, Met]:
        """Returns the cheapest strategy, and a lower bound on every strategy's cost.

        Raises `Cancelled`, and `SolverError` if time or memory runs out.
        """
        answer = cheapest(
            self.replayer.problem,
            charges,
            allowed=self._allowed,
            time_limit_s=max(time_limit_s, 1e-3) if isfinite(time_limit_s) else None,
            memory_limit_bytes=self._options.search_memory_bytes,
            threads=self._options.threads,
            progress=lambda _, __: self._progress(BOUNDING, self._fraction),
        )
        cost = charges.of(
            self.replayer.problem, answer.choices[None, :], answer.edge_choices[None, :]
        )
        self.is_wide |= bool(cost[0] > answer.bound * (1.0 + WIDE))
        return answer.bound, self.met(answer.choices[None, :], answer.edge_choices[None, :])

    def charged_time(self) -> OwnerCosts:
        """Returns the time charges of the best query without a limit, else the sums."""
        query = self.best_query(inf)
        if query is None:
            return self.sums()
        return self._linear.weighted(self._bound.weights(query.once, query.again))

    def least_held(self) -> OwnerCosts:
        """Returns a lower bound on the bytes held when the last written backward pass begins."""
        return self._moments.held(self._moments.last_backward)

    def smallest(self, time_limit_s: float = inf) -> tuple[float, Met]:
        """Returns a lower bound on every strategy's peak in bytes, and the strategy that attains
        it.

        Raises as `cheapest`.
        """
        return self.cheapest(self.least_held(), time_limit_s)

    def bound_s(self, limit_bytes: float) -> float:
        """Returns the best bound on every step within a limit, over all queries so far."""
        best = self.best_query(limit_bytes)
        return 0.0 if best is None else best.line.at(limit_bytes)

    def best_query(self, limit_bytes: float) -> Query | None:
        """Returns the query with that bound; without a limit one without memory prices."""
        free = not isfinite(limit_bytes)
        some = (query for query in self.queries if not (free and query.line.price))
        return max(some, key=lambda query: query.line.at(limit_bytes), default=None)

    def try_first(self, first: Query | None, time_limit_s: float = inf) -> bool:
        """Asks another micro-batch count's query, if there is one and none was asked yet.

        Returns whether it was asked; it is not if the step is another program. Raises as
        `cheapest`.
        """
        if first is None or self.queries or first.program is not self.replayer.tape:
            return False
        self.price(first.prices)
        self._asked = self._ask(first.once, first.again, first.prices, time_limit_s)
        return True

    def play(
        self,
        met: Met,
        limit_bytes: float,
        *,
        cutoff_s: float = inf,
        time_limit_s: float = inf,
        tolerance: float = TOLERANCE,
        most_queries: int = MOST_QUERIES,
    ) -> Outcome:
        """Plays, with these strategies added, until bound and value are near or the bound reaches a
        cut-off.

        An infinite limit prices no memory. Raises `Cancelled`, and `SolverError` if no query ended
        in time and memory.
        """
        started = monotonic()
        board = self._joined(met)
        bounds: list[float] = []
        while len(bounds) < most_queries and monotonic() - started < time_limit_s:
            self._fraction = len(bounds) / most_queries
            go_on(self._progress, BOUNDING, self._fraction)
            best = self.best_query(limit_bytes)
            board.drop_unneeded()
            now = self._equilibrium(board, limit_bytes)
            if not self._tasks and now.strategies @ board.met.peak_bytes > limit_bytes:
                self._add_moment(board, self._moments.last_backward)
                now = self._equilibrium(board, limit_bytes)
            reached = best.line.at(limit_bytes) if best is not None else 0.0
            if now.value_s <= (1.0 + tolerance) * reached or reached >= cutoff_s:
                break
            once, again, prices = self._halfway(board, now, best)
            try:
                left_s = time_limit_s - (monotonic() - started)
                one = self._ask(once, again, prices, left_s)
            except SolverError:
                if best is None:
                    raise
                break
            board.add_strategy(one, self._bound.longest(one.durations_s))
            bounds.append(self.bound_s(limit_bytes))
            if bounds[-1] >= cutoff_s:
                break
            if len(bounds) > PATIENCE and bounds[-1] < bounds[-1 - PATIENCE] * (1.0 + tolerance):
                break
            self._watch(board, one, limit_bytes)
        best = self.best_query(limit_bytes)
        if best is None:
            raise SolverError("the time limit passed before there was any bound")
        return self._outcome(board, best, limit_bytes, len(bounds))

    def _ask(
        self, once: Floats, again: Floats, prices: Mapping[int, float], time_limit_s: float
    ) -> Met:
        """Returns the cheapest strategy under a query's charges, and records its bound."""
        weights = self._bound.weights(once, again)
        charges = priced([(1.0, self._linear.weighted(weights)), *self._rows(prices)])
        bound, one = self.cheapest(charges, time_limit_s)
        line = Line(bound, sum(prices.values()))
        self.queries.append(Query(line, once, again, prices, self.replayer.tape))
        return one

    def _rows(self, prices: Mapping[int, float]) -> list[tuple[float, OwnerCosts]]:
        """Returns the bytes held at the priced moments, and the prices."""
        return [(p, self._moments.held(t)) for t, p in prices.items() if p > 0.0]

    def _joined(self, met: Met) -> _Board:
        """Returns the strategies so far and these; adds their paths if there was none."""
        if self._board is None:
            if self._asked is not None:
                met = self._asked.joined(met)
            self._board = _Board(self, met)
            self._board.add_paths(self._bound.longest(met.durations_s))
        else:
            self._board.join(met)
        return self._board

    def held(self, task: int) -> OwnerCosts:
        """Returns a lower bound on the bytes held at the start of a task."""
        return self._moments.held(task)

    @property
    def moments(self) -> Sequence[int]:
        """The tasks at which memory is priced."""
        return self._tasks

    def _equilibrium(self, board: _Board, limit_bytes: float) -> Equilibrium:
        """Returns the equilibrium, after adding all paths that the mean strategy calls for."""
        free = not isfinite(limit_bytes)
        over = board.held_bytes[:, :0] if free else board.held_bytes - limit_bytes
        for _ in range(MOST_PATHS):
            now = equilibrium(board.times_s, over, 1.0 if free else limit_bytes)
            board.path_mix = now.paths
            mean = now.strategies @ board.met.durations_s
            longest = self._bound.longest(mean[None, :])
            board.mix = now.strategies
            if longest.length_s[0] <= (1.0 + ON_PATH) * now.value_s:
                break
            board.add_paths(longest)
        return now

    def _halfway(
        self, board: _Board, now: Equilibrium, best: Query | None
    ) -> tuple[Floats, Floats, dict[int, float]]:
        """Returns the midpoint between an equilibrium's paths and prices and those of the best
        query."""
        once, again = board.mean_path(now.paths)
        prices = {t: max(float(p), 0.0) for t, p in zip(self._tasks, now.prices, strict=False)}
        if best is not None:
            once, again = 0.5 * (once + best.once), 0.5 * (again + best.again)
            tasks = {**best.prices, **prices}
            prices = {t: 0.5 * (prices.get(t, 0.0) + best.prices.get(t, 0.0)) for t in tasks}
        return once, again, prices

    def _watch(self, board: _Board, one: Met, limit_bytes: float) -> None:
        """Adds the moment of a peak above the limit that is not priced yet."""
        task = int(one.peak_task[0])
        if one.peak_bytes[0] <= limit_bytes or len(self._tasks) >= MOST_MOMENTS:
            return
        if not self._tasks or task < 0 or board.held_bytes[-1].max() > limit_bytes:
            return
        moment = self._moments.task_of(task)
        if moment not in self._tasks:
            self._add_moment(board, moment)

    def _add_moment(self, board: _Board, task: int) -> None:
        self._tasks.append(task)
        board.add_moment(task)

    def price(self, tasks: Iterable[int]) -> None:
        """Adds moments before the board exists."""
        self._tasks += [task for task in tasks if task not in self._tasks]

    def _outcome(self, board: _Board, best: Query, limit_bytes: float, new: int) -> Outcome:
        time = self._linear.weighted(self._bound.weights(best.once, best.again))
        rows = self._rows(best.prices)
        total = sum(price for price, _ in rows)
        shares = [(price / total, row) for price, row in rows]
        mix = np.append(board.mix, np.zeros(len(board.met.time_s) - len(board.mix)))
        return Outcome(
            best.line.at(limit_bytes),
            priced([(1.0, time), *rows]),
            time,
            priced(shares) if shares else None,
            board.met,
            mix,
            new,
        )


class _Board:
    """The strategies and paths of a game so far: `times_s` (S, P), `held_bytes` (S, moments)."""

    def __init__(self, game: Game, met: Met) -> None:
        self._game = game
        self.met = met
        self.mix = self.path_mix = np.zeros(0)
        self._paths: list[tuple[Floats, Floats, Floats]] = []
        self.times_s = np.zeros((len(met.time_s), 0))
        self.held_bytes = self._held(game.moments, met)

    def add_paths(self, paths: Paths) -> None:
        """Adds paths."""
        times = self.met.durations_s @ paths.weights.T
        self.times_s = np.concatenate([self.times_s, times], axis=1)
        self._paths += zip(paths.weights, paths.once, paths.again, strict=True)

    def mean_path(self, mix: Floats) -> tuple[Floats, Floats]:
        """Returns the weighted mean of the first paths, over written and repeated micro-batches."""
        some = [(float(mix[p]), self._paths[p]) for p in np.flatnonzero(mix > NEEDED).tolist()]
        total = sum(share for share, _ in some)
        once = sum(share / total * once for share, (_, once, _) in some)
        again = sum(share / total * again for share, (_, _, again) in some)
        return np.asarray(once), np.asarray(again)

    def join(self, met: Met) -> None:
        """Adds strategies, without their paths."""
        self.met = self.met.joined(met)
        times = np.stack([met.durations_s @ weights for weights, _, _ in self._paths], axis=1)
        self.times_s = np.concatenate([self.times_s, times])
        self.held_bytes = np.concatenate([self.held_bytes, self._held(self._game.moments, met)])

    def add_strategy(self, one: Met, path: Paths) -> None:
        """Adds one strategy and its longest path."""
        self.join(one)
        self.add_paths(path)

    def add_moment(self, task: int) -> None:
        """Adds a moment at which memory is priced."""
        self.held_bytes = np.concatenate([self.held_bytes, self._held((task,), self.met)], axis=1)

    def drop_unneeded(self) -> None:
        """Drops strategies and paths with no weight in the last equilibrium, except the latest."""
        strategies = _needed(self.mix, len(self.met.time_s))
        paths = _needed(self.path_mix, len(self._paths))
        self.met = self.met.take(strategies)
        self._paths = [self._paths[p] for p in paths.tolist()]
        self.times_s = self.times_s[np.ix_(strategies, paths)]
        self.held_bytes = self.held_bytes[strategies]
        self.mix, self.path_mix = np.zeros(0), np.zeros(0)

    def _held(self, tasks: Sequence[int], met: Met) -> Floats:
        problem = self._game.replayer.problem
        rows = [self._game.held(t).of(problem, met.choices, met.edge_choices) for t in tasks]
        return np.stack(rows, axis=1) if rows else np.zeros((len(met.time_s), 0))


def _needed(mix: Floats, count: int) -> NDArray[np.int64]:
    """Returns the members with weight in a mixture, those added since, and the latest."""
    needed = np.ones(count, dtype=bool)
    needed[: len(mix)] = mix > NEEDED
    needed[max(count - KEPT, 0) :] = True
    return np.flatnonzero(needed)
