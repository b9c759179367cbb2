"""The best proven bound on the replayed time of every strategy that fits: a game by double oracle.

    value = max over (mixes y of paths, prices mu >= 0) of
                min over strategies s of [sum_t w_y(t) p_t(s) + sum_r mu_r (m_r(s) - M)]

with w_y the weights of the mean path (`replay/bound.py`), m_r lower bounds on the memory held at a
moment (`replay/moments.py`) and M the limit. Every inner minimum is one elimination and a lower
bound on the replayed time of every strategy that fits. Strategies and paths join as each answers
the other (McMahan et al. 2003); queries are halfway between the best so far and that of the linear
programme, which alone jumps between corners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.options import Options, Progress, go_on
from shardwise.errors import Cancelled, SolverError
from shardwise.replay.bound import StepBound
from shardwise.replay.linear import LinearStep, OwnerCosts, priced
from shardwise.replay.moments import Moments
from shardwise.replay.replay import Replayer
from shardwise.search.elimination import cheapest
from shardwise.search.linear_programme import Equilibrium, equilibrium
from shardwise.search.search import Line
from shardwise.sharding.layout import Floats

TOLERANCE = 2e-3
"""Relative: a game ends when the bound is this near the value of the mixes."""
MOST_QUERIES = 24
PATIENCE = 6
"""Queries after which a bound that has not risen by the tolerance counts as final."""
MOST_PATHS = 30
"""Paths that join between two queries at most."""
MOST_MOMENTS = 4
WIDE = 1e-4
"""Relative: an elimination that leaves more between bound and strategy had to copy operators."""
BOUNDING = "bounding"
ON_PATH = 1e-4
"""Relative: a mean strategy whose longest path is this near the value needs no further path."""

Choices = NDArray[np.uint32]


@dataclass(frozen=True)
class Met:
    """Strategies: choices (S, groups) and (S, edges), durations (S, tasks).

    Of their replayed steps peak, time and the task that reaches the peak, (S,).
    """

    choices: Choices
    edge_choices: Choices
    durations_s: Floats
    peak_bytes: Floats
    time_s: Floats
    peak_task: NDArray[np.int64]

    def joined(self, other: Met) -> Met:
        """Returns the strategies of both."""
        return Met(
            *(
                np.concatenate([getattr(self, field.name), getattr(other, field.name)])
                for field in fields(Met)
            )
        )


@dataclass(frozen=True)
class Outcome:
    """What a game found: no strategy that fits is faster than `bound_s` (infinite: none fits).

    `charges` is what the best query minimised, `held` the memory that it priced; `met` are the
    strategies, `mix` (S,) their shares in the mean strategy; `lines` are the bounds of all
    queries. `time` is what the best query charged for time alone. `ended` says that the game
    reached its tolerance or cut-off.
    """

    bound_s: float
    charges: OwnerCosts
    time: OwnerCosts
    held: OwnerCosts | None
    met: Met
    mix: Floats
    lines: tuple[Line, ...]
    ended: bool


@dataclass(frozen=True)
class _Query:
    bound_s: float
    weights: Floats
    prices: Floats


class Game:
    """The games of one search problem, under one limit after another.

    `progress` returns False to end a game. Paths and moments stay from one game to the next.
    """

    def __init__(self, replayer: Replayer, options: Options, progress: Progress) -> None:
        self.replayer = replayer
        self._options = options
        self._progress = progress
        self._fraction = 0.0
        self.is_wide = False
        """Whether the graph is so wide that an elimination has met less than it has proven."""
        self._bound = StepBound(replayer)
        self._linear = LinearStep(replayer)
        self._moments = Moments(replayer)
        self._tasks: list[int] = [self._moments.last_backward]
        self._paths = np.zeros((0, replayer.tasks))

    def met(self, choices: Choices, edge_choices: Choices) -> Met:
        """Returns strategies with their replayed steps."""
        durations, _, _ = self.replayer.values(choices, edge_choices)
        replayed = self.replayer.replay(choices, edge_choices)
        return Met(
            choices,
            edge_choices,
            durations,
            replayed.peak_bytes,
            replayed.time_s,
            replayed.peak_task,
        )

    def sums(self) -> OwnerCosts:
        """Returns the time that the search of sums adds up."""
        return self._linear.weighted(self._bound.often)

    def smallest(self, time_limit_s: float = inf) -> tuple[float, Met]:
        """Returns a bound on the peak of every strategy in bytes, and the strategy that has it.

        Raises `Cancelled`, and `SolverError` where it is not found in time or memory.
        """
        return self._cheapest(self._moments.held(self._tasks[0]), time_limit_s)

    def play(
        self,
        met: Met,
        limit_bytes: float,
        *,
        cutoff_s: float = inf,
        time_limit_s: float = inf,
        tolerance: float = TOLERANCE,
    ) -> Outcome:
        """Plays from these strategies until bound and value are near, or the bound is a cut-off.

        Raises `Cancelled`, and `SolverError` where no query ended in time or memory.
        """
        started = monotonic()
        board = _Board(self, met, limit_bytes)
        board.add_paths(self._bound.longest(met.durations_s).weights)
        best: _Query | None = None
        lines: list[Line] = []
        bounds: list[float] = []
        ended = False
        while not ended and len(lines) < MOST_QUERIES and monotonic() - started < time_limit_s:
            self._fraction = len(lines) / MOST_QUERIES
            go_on(self._progress, BOUNDING, self._fraction)
            now = self._equilibrium(board)
            if best is not None and now.value_s <= (1.0 + tolerance) * best.bound_s:
                ended = True
                break
            query = self._query(board, now, best)
            try:
                charges = self._charges(query.weights, query.prices)
                bound, one = self._cheapest(charges, time_limit_s - (monotonic() - started))
            except SolverError:
                if best is None:
                    raise
                break
            lines.append(Line(bound, float(query.prices.sum())))
            query = replace(query, bound_s=lines[-1].at(limit_bytes))
            if best is None or query.bound_s > best.bound_s:
                best = query
            board.add_strategy(one, self._bound.longest(one.durations_s).weights)
            bounds.append(best.bound_s)
            ended = best.bound_s >= cutoff_s
            if len(bounds) > PATIENCE and bounds[-1] < bounds[-1 - PATIENCE] * (1.0 + tolerance):
                break
            self._watch(board, one)
        self._paths = board.paths
        if best is None:
            raise SolverError("the time limit passed before there was any bound")
        return self._outcome(board, best, lines, ended)

    @property
    def known_paths(self) -> Floats:
        """The weights of the paths of earlier games, shape (P, tasks)."""
        return self._paths

    def row(self, task: int) -> OwnerCosts:
        """Returns the bytes that are surely held at the start of a task."""
        return self._moments.held(task)

    @property
    def moments(self) -> Sequence[int]:
        """The tasks at which memory is priced."""
        return self._tasks

    def _equilibrium(self, board: _Board) -> Equilibrium:
        """Returns the equilibrium, after all paths have joined that the mean strategy asks for."""
        for _ in range(MOST_PATHS):
            now = equilibrium(
                board.times_s, board.held_bytes - board.limit_bytes, board.limit_bytes
            )
            mean = now.strategies @ board.met.durations_s
            longest = self._bound.longest(mean[None, :])
            board.mix = now.strategies
            if longest.length_s[0] <= (1.0 + ON_PATH) * now.value_s:
                break
            board.add_paths(longest.weights)
        return now

    def _query(self, board: _Board, now: Equilibrium, best: _Query | None) -> _Query:
        weights = now.paths @ board.paths[: len(now.paths)]
        prices = now.prices
        if best is not None:
            before = np.append(best.prices, np.zeros(len(prices) - len(best.prices)))
            weights, prices = 0.5 * (weights + best.weights), 0.5 * (prices + before)
        return _Query(-inf, weights, prices)

    def _charges(self, weights: Floats, prices: Floats) -> OwnerCosts:
        rows = [(float(p), self.row(t)) for p, t in zip(prices, self._tasks, strict=True) if p > 0]
        return priced([(1.0, self._linear.weighted(weights)), *rows])

    def _cheapest(self, charges: OwnerCosts, time_limit_s: float) -> tuple[float, Met]:
        try:
            answer = cheapest(
                self.replayer.problem,
                charges,
                time_limit_s=max(time_limit_s, 1e-3) if isfinite(time_limit_s) else None,
                memory_limit_bytes=self._options.search_memory_bytes,
                threads=self._options.threads,
                progress=lambda _, __: self._progress(BOUNDING, self._fraction),
            )
        except _core.Cancelled:
            raise Cancelled from None
        except (RuntimeError, TimeoutError) as error:
            raise SolverError(str(error)) from None
        cost = charges.of(
            self.replayer.problem, answer.choices[None, :], answer.edge_choices[None, :]
        )
        self.is_wide |= bool(cost[0] > answer.bound * (1.0 + WIDE))
        return answer.bound, self.met(answer.choices[None, :], answer.edge_choices[None, :])

    def _watch(self, board: _Board, one: Met) -> None:
        """Adds the moment of a peak above the limit that no row has seen."""
        task = int(one.peak_task[0])
        if task < 0 or one.peak_bytes[0] <= board.limit_bytes or len(self._tasks) >= MOST_MOMENTS:
            return
        if board.held_bytes[-1].max() > board.limit_bytes:
            return
        moment = self._moments.task_of(task)
        if moment not in self._tasks:
            self._tasks.append(moment)
            board.add_moment(moment)

    def _outcome(self, board: _Board, best: _Query, lines: Sequence[Line], ended: bool) -> Outcome:
        prices = np.append(best.prices, np.zeros(len(self._tasks) - len(best.prices)))
        time = self._linear.weighted(best.weights)
        total = float(prices.sum())
        rows = [(float(p), self.row(t)) for p, t in zip(prices, self._tasks, strict=True) if p > 0]
        shares = [(price / total, row) for price, row in rows]
        mix = np.append(board.mix, np.zeros(len(board.met.time_s) - len(board.mix)))
        return Outcome(
            best.bound_s,
            priced([(1.0, time), *rows]),
            time,
            priced(shares) if shares else None,
            board.met,
            mix,
            tuple(lines),
            ended,
        )


class _Board:
    """The strategies and paths of a game so far: `times_s` (S, P), `held_bytes` (S, moments)."""

    def __init__(self, game: Game, met: Met, limit_bytes: float) -> None:
        self._game = game
        self.met = met
        self.limit_bytes = limit_bytes
        self.mix = np.zeros(0)
        self.paths = game.known_paths
        self.times_s = met.durations_s @ self.paths.T
        self.held_bytes = np.zeros((len(met.time_s), 0))
        for task in game.moments:
            self.add_moment(task)

    def add_paths(self, weights: Floats) -> None:
        """Adds paths (P, tasks)."""
        self.times_s = np.concatenate([self.times_s, self.met.durations_s @ weights.T], axis=1)
        self.paths = np.concatenate([self.paths, weights])

    def add_strategy(self, one: Met, path: Floats) -> None:
        """Adds one strategy and its longest path (1, tasks)."""
        self.met = self.met.joined(one)
        self.times_s = np.concatenate([self.times_s, one.durations_s @ self.paths.T])
        self.held_bytes = np.concatenate([self.held_bytes, self._held(self._game.moments, one)])
        self.add_paths(path)

    def add_moment(self, task: int) -> None:
        """Adds a moment at which memory is priced."""
        self.held_bytes = np.concatenate([self.held_bytes, self._held((task,), self.met)], axis=1)

    def _held(self, tasks: Sequence[int], met: Met) -> Floats:
        problem = self._game.replayer.problem
        rows = [self._game.row(t).of(problem, met.choices, met.edge_choices) for t in tasks]
        return np.stack(rows, axis=1)
