"""The search for the shortest *replayed* time under the memory limit, with a proven gap.

For each number of micro-batches, those with the least sums first:

1. the search of sums near the limit, and what practitioners would try, give the first strategies;
2. a game (`game.py`) bounds the replayed time of every strategy that fits, and meets fast ones; it
   ends early where the bound exceeds the best answer so far;
3. mixes of the strategies met, a frontier of what the game charges near the limit where memory
   binds, and windows of one strategy in another (`improve.py`) are replayed.

The answer is the fastest that fits of all that was replayed; it is proven against the least bound
of all numbers of micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite
from time import monotonic

import numpy as np

from shardwise import _core
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.errors import Cancelled, SolverError
from shardwise.hardware import Hardware
from shardwise.replay.linear import OwnerCosts
from shardwise.search.customary import customary
from shardwise.search.elimination import near
from shardwise.search.game import Game, Met, Outcome
from shardwise.search.improve import SHARE, Improver, Pool
from shardwise.search.search import Proof, Search, Subject, search_all
from shardwise.search.solution import Solution, sums_of

SUMS = 0.4
"""The share of the search of sums in the progress of all."""
IMPROVING = 0.7
"""Of one number of micro-batches: where improvement begins."""
GOOD = 5e-3
"""Relative: an answer this near the bound is not improved any further."""
CLOSE = 1.5e-2
"""Relative: where memory binds, an answer farther from the bound is sought along a frontier."""
TRACKED = 1e-3
"""The error of that frontier."""
MOST_FRONTIERS = 4
MOST_POINTS = 48
"""Points of a frontier, nearest to the limit, that are replayed."""
FEW = 5
"""Points of which the median says how peaks compare with the memory that is priced."""
NEAR = 0.01
"""Relative: targets of memory that are as good as one another."""


def search_replayed(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
) -> list[Search]:
    """Returns one search for each number of micro-batches, with its proof.

    Their points are replayed strategies that none of the same search beats in peak and time.
    Raises as `search` does.
    """
    searches = search_all(subject, hardware, gpus, options, _first_share(progress), near_limit=True)
    order = sorted(range(len(searches)), key=lambda i: _least_sum(searches[i]))
    best_s = inf
    for place, number in enumerate(order):
        left_s = inf
        if options.time_limit_s is not None:
            left_s = options.time_limit_s - searches[number].solution.seconds
        part = (_share(place, len(order)), _share(place + 1, len(order)))
        searches[number] = _Count(searches[number], progress, left_s, part).search(best_s)
        best_s = min(best_s, _best_s(searches[number]))
    return searches


def _first_share(progress: Progress) -> Progress:
    return lambda stage, fraction: progress(stage, SUMS * fraction)


def _share(done: int, of: int) -> float:
    return SUMS + (1.0 - SUMS) * done / of


def _least_sum(search: Search) -> float:
    point = search.fastest_within(search.limit_bytes)
    return inf if point is None else float(search.time_s[point])


def _best_s(search: Search) -> float:
    return float(np.where(search.fits, search.replayed.time_s, inf).min(initial=inf))


class _OutOfTime(Exception):
    """The time limit of the search has passed."""


class _Count:
    """The search of one number of micro-batches; `part` are its first and last share of it all."""

    def __init__(
        self, first: Search, progress: Progress, left_s: float, part: tuple[float, float]
    ) -> None:
        self._first = first
        self._options = first.options
        self._limit = first.limit_bytes
        self._replayer = first.replayer
        self._progress, self._part = progress, part
        self._started = monotonic()
        self._until = self._started + left_s
        self._game = Game(first.replayer, first.options, self._within(0.0, IMPROVING))
        self._pool = self._first_pool()

    def search(self, cutoff_s: float) -> Search:
        """Returns the search with replayed strategies and their proof.

        Raises `Cancelled` when `progress` returns False before anything fits.
        """
        proof, status = Proof(0.0, ()), "within_epsilon"
        try:
            least_bytes, smallest = self._game.smallest(self._left_s)
            self._add(Pool.of_met(smallest))
            if least_bytes > self._limit:
                return self._with(Proof(inf, ()), status)
            outcome = self._game.play(
                self._first_met(), self._limit, cutoff_s=cutoff_s, time_limit_s=self._left_s
            )
            self._add(Pool.of_met(outcome.met))
            proof = Proof(outcome.bound_s, outcome.lines)
            status = "within_epsilon" if outcome.ended else "budget"
            if outcome.bound_s < min(cutoff_s, self._pool.time_within(self._limit)):
                self._improve(outcome)
            if outcome.bound_s < cutoff_s and not self._any_fits:
                status = "budget"  # neither a strategy nor a proof that there is none
        except (_OutOfTime, SolverError, TimeoutError):
            status = "budget"
        except Cancelled:
            if not self._any_fits:
                raise
            status = "cancelled"
        return self._with(proof, status)

    @property
    def _any_fits(self) -> bool:
        return bool(self._pool.fits(self._limit).any())

    def _add(self, pool: Pool) -> None:
        self._pool = self._pool.joined(pool)

    def _first_pool(self) -> Pool:
        """Returns the points of the sums, and what practitioners would try, replayed."""
        solution, starts = self._first.solution, customary(self._replayer.problem)
        plain = Improver(self._replayer, self._game.sums(), self._limit)
        points = Pool.of(self._replayer, solution.choices, solution.edge_choices)
        return points.joined(plain.replayed(starts))

    def _first_met(self) -> Met:
        """Returns the strategies from which the game is played.

        These are the fastest, the fastest that fits and the one of least memory.
        """
        pool = self._pool
        at = sorted(
            {int(pool.time_s.argmin()), int(pool.peak_bytes.argmin()), pool.best(self._limit)}
        )
        return self._game.met(pool.choices[at], pool.edge_choices[at])

    def _improve(self, outcome: Outcome) -> None:
        """Adds strategies made of those that the game met."""
        improver = Improver(self._replayer, outcome.charges, self._limit)
        self._add(improver.replayed(improver.mixes(outcome.met, outcome.mix)))
        good_s = outcome.bound_s * (1.0 + GOOD)
        if outcome.held is not None and not self._game.is_wide:
            self._search_near(outcome.time, outcome.held, outcome.bound_s * (1.0 + CLOSE))
        donors = outcome.met.choices[outcome.mix > SHARE]
        if not self._any_fits:
            smallest = np.argsort(self._pool.peak_bytes)[:FEW]
            donors = np.concatenate([donors, self._pool.choices[smallest]])
        for pool in improver.improve(self._pool, donors, good_s, self._improving):
            self._pool = pool

    def _search_near(self, time: OwnerCosts, held: OwnerCosts, close_s: float) -> None:
        """Adds a frontier of charged time and priced memory near the limit.

        Peaks are higher than the memory that is priced, so the next frontier is tracked where the
        peaks of this one should meet the limit.
        """
        ratio = 1.0
        for _ in range(MOST_FRONTIERS):
            before = self._pool.time_within(self._limit)
            if before <= close_s:
                break
            self._improving(0.0)
            try:
                choices, edge_choices, sums = near(
                    self._replayer.problem,
                    held,
                    time,
                    self._limit / ratio,
                    epsilon=TRACKED,
                    time_limit_s=self._left_s if isfinite(self._left_s) else None,
                    memory_limit_bytes=self._options.search_memory_bytes,
                    threads=self._options.threads,
                    progress=self._within(IMPROVING, IMPROVING),
                )
            except _core.Cancelled:
                raise Cancelled from None
            except RuntimeError:
                break  # over the solver's memory; other strategies are still to be tried
            nearest = np.argsort(np.abs(sums * ratio / self._limit - 1.0))[:MOST_POINTS]
            some = Pool.of(self._replayer, choices[nearest], edge_choices[nearest])
            self._add(some)
            few = float(np.median(some.peak_bytes[:FEW] / sums[nearest[:FEW]]))
            if self._pool.time_within(self._limit) == before and abs(few / ratio - 1.0) < NEAR:
                break
            ratio = few

    def _with(self, proof: Proof, status: str) -> Search:
        kept = self._pool.unbeaten()
        memory, time = sums_of(self._replayer.problem, kept.choices, kept.edge_choices)
        best_s, bound_s = self._pool.time_within(self._limit), proof.bound_s
        proven = bound_s > 0.0 and isfinite(best_s)
        solution = Solution(
            memory,
            time,
            kept.choices,
            kept.edge_choices,
            exact=False,
            epsilon=max(best_s / bound_s - 1.0, 0.0) if proven else inf,
            time_lower_bound_s=None,
            status=status,
            seconds=self._first.solution.seconds + monotonic() - self._started,
            method="replayed",
        )
        return replace(self._first, solution=solution, proof=proof)

    @property
    def _left_s(self) -> float:
        return max(self._until - monotonic(), 1e-3)

    def _within(self, start: float, end: float) -> Progress:
        """Returns the progress of a stretch of this search as progress of the whole."""
        first, last = self._part

        def report(stage: str, fraction: float) -> bool:
            share = start + fraction * (end - start)
            return self._progress(stage, first + share * (last - first))

        return report

    def _improving(self, fraction: float) -> None:
        """Reports how far improvement is; raises where the search is to end."""
        go_on(self._within(IMPROVING, 1.0), "improving", fraction)
        if monotonic() > self._until:
            raise _OutOfTime
