"""The search for one micro-batch count, under successive memory limits (`replayed.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, isfinite
from typing import Protocol

import numpy as np

from shardwise.cost.options import Options, Progress
from shardwise.errors import Cancelled, InternalError, SolverError
from shardwise.hardware.host import soft_maximum
from shardwise.replay.linear import evened
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.search.customary import customary
from shardwise.search.elimination import near
from shardwise.search.game import Bounding, Game, Outcome, Query
from shardwise.search.improve import Choices, Improver, Pool, shared
from shardwise.search.search import Charges, Proof, Search, search_near
from shardwise.search.solution import STATUSES
from shardwise.search.watch import OutOfTime, Watch
from shardwise.sharding.layout import Floats

IMPROVING = 0.7
"""Share of one count's progress at which improvement begins."""
GOOD = 2.5e-3
"""Relative: an answer this near the bound is good enough."""
CLOSE = 1.5e-2
"""Relative: above this gap, also try a frontier of sums and, where memory binds, one of charges."""
FAR = 5e-2
"""Relative: above this gap, try windows before sums."""
TRACKED = 5e-3
"""The error (epsilon) of that frontier."""
COARSE = 1e-2
"""The error (epsilon) of a frontier over all memories."""
MOST_TRACKING = 500_000
"""Work limit of a candidate frontier. Work is counted (`_core.solve`), so that answers do not
depend on the load of a machine. On 64 H100 the longest frontier of Llama 3 8B takes 108,000 (0.4
s), of 70B 264,000 (1.6 s), of T5-large 161,000 (1.8 s)."""
MOST_TRACKED = 120
"""Points of that frontier that are replayed."""
MOST_POINTS = 48
"""Points nearest to the limit that are replayed."""
FEW = 5
"""Sample size for the median ratio of peak to priced memory."""
NEAR = 0.01
"""Relative: memory targets this close are the same."""
ROUNDING = 1e-9
"""Relative: rounding tolerance between two sums of the same times."""


class AnyDraft(Protocol):
    """A query with all group costs, on devices of one kind or several."""

    @property
    def options(self) -> Options: ...
    @property
    def limit_bytes(self) -> float: ...
    @property
    def groups(self) -> LeastCosts: ...
    def joined(self, progress: Progress) -> Search: ...
    def alone(self) -> Search: ...


class LeastCosts(Protocol):
    """A lower bound on every strategy, in seconds."""

    def least_compute_s(self) -> float: ...
    def least_host_s(self) -> float: ...


@dataclass(frozen=True)
class Effort:
    """Effort limits: game queries, frontiers near the limit, rounds of windows."""

    queries: int
    frontiers: int
    rounds: int


THOROUGH = Effort(queries=24, frontiers=4, rounds=24)


@dataclass(frozen=True)
class _Goal:
    """The aim of improvement: a strategy within the limit that takes at most `good_s`, or at least
    beats `cutoff_s`, the time of other counts."""

    limit_bytes: float
    good_s: float
    cutoff_s: float

    def is_out_of_reach(self, before_s: float, now_s: float, rounds: int) -> bool:
        """Returns whether `rounds` more rounds with the last gain would still miss the cut-off."""
        return before_s < inf and now_s - rounds * (before_s - now_s) > self.cutoff_s


class Count:
    """The search for one micro-batch count, under successive memory limits.

    `watch` reports its progress; `first` is a query of another count, asked first.
    """

    def __init__(self, draft: AnyDraft, watch: Watch) -> None:
        self._draft = draft
        self._options = draft.options
        self.limit_bytes = draft.limit_bytes
        self.watch = watch
        self.seconds = watch.spent_s
        self.first: Query | None = None
        least_s = np.array([draft.groups.least_compute_s(), draft.groups.least_host_s()])
        self.least_s = float(soft_maximum(least_s[0], least_s[1])) * (1.0 - ROUNDING)
        self._least_bytes = 0.0
        self._game: Game | None = None
        self._search: Search | None = None
        self._pool: Pool | None = None
        self._ratio = 1.0
        self._has_customary = False
        self._charges: Charges | None = None
        self._unimproved: Outcome | None = None
        self.status = "within_epsilon"
        self._parts: tuple[Proof, ...] = ()

    @property
    def best_query(self) -> Query | None:
        """The query with the best bound within the limit."""
        return None if self._game is None else self._game.best_query(self.limit_bytes)

    @property
    def proof(self) -> Proof:
        """The bounds proven so far."""
        lines = [] if self._game is None else [query.line for query in self._game.queries]
        return Proof(self.least_s, self._least_bytes, tuple(lines), self._parts)

    def bound_s(self, limit_bytes: float) -> float:
        """Returns the best bound on every step within a limit."""
        return self.proof.bound_s(limit_bytes)

    @property
    def pool(self) -> Pool | None:
        """The replayed strategies; None before the first."""
        return self._pool

    def time_within(self, limit_bytes: float) -> float:
        """Returns the time of the fastest strategy within a limit; infinite if there is none."""
        return inf if self._pool is None else self._pool.time_within(limit_bytes)

    def search_within(self, limit_bytes: float, cutoff_s: float, effort: Effort = THOROUGH) -> None:
        """Searches within a limit, until the bound reaches `cutoff_s` or no round gains.

        An infinite limit ignores memory. Raises `Cancelled` if `progress` returns False before
        anything fits.
        """
        self.bound_within(limit_bytes, cutoff_s, effort)
        self.improve_within(limit_bytes, cutoff_s, effort)

    def is_excluded(self, cutoff_s: float) -> bool:
        """Returns whether the first query alone proves that no step within the limit beats
        `cutoff_s`."""
        started = self.watch.spent_s
        with suppress(OutOfTime, SolverError):  # what bounds the step next says so
            self._begun_game.try_first(self.first, self.watch.left_s)
        self.seconds += self.watch.spent_s - started
        return self.bound_s(self.limit_bytes) >= cutoff_s

    def bound_within(self, limit_bytes: float, cutoff_s: float, effort: Effort = THOROUGH) -> None:
        """Bounds the step within a limit and adds the strategies met; raises as `search_within`."""
        if self.least_s < cutoff_s:
            self._attempt(limit_bytes, cutoff_s, lambda: self._play(limit_bytes, cutoff_s, effort))

    def improve_within(
        self, limit_bytes: float, cutoff_s: float, effort: Effort = THOROUGH
    ) -> None:
        """Improves the strategies met by bounding, unless the bound reaches `cutoff_s`; raises as
        `search_within`."""
        outcome, self._unimproved = self._unimproved, None
        if outcome is None or outcome.bound_s >= min(cutoff_s, self.time_within(limit_bytes)):
            return
        self._attempt(
            limit_bytes, cutoff_s, lambda: self._improve(outcome, limit_bytes, effort, cutoff_s)
        )

    def _attempt(self, limit_bytes: float, cutoff_s: float, part: Callable[[], None]) -> None:
        """Runs a part of a search and records how it ended."""
        started = self.watch.spent_s
        status = "budget"
        try:
            part()
            fits = self.time_within(limit_bytes) < inf
            hopeless = self.bound_s(limit_bytes) >= cutoff_s
            # Otherwise there is neither a strategy nor a proof of infeasibility.
            open_end = limit_bytes == self.limit_bytes and not (fits or hopeless)
            status = "budget" if open_end and self._unimproved is None else "within_epsilon"
        except (OutOfTime, SolverError):
            pass
        except Cancelled:
            if not self.time_within(limit_bytes) < inf:
                raise
            status = "cancelled"
        self.status = max(self.status, status, key=STATUSES.index)
        self.seconds += self.watch.spent_s - started

    def _play(self, limit_bytes: float, cutoff_s: float, effort: Effort) -> None:
        """Plays the game, whose strategies may then be improved."""
        self._unimproved = None
        game = self._begun_game
        if game.try_first(self.first, self.watch.left_s) and self.bound_s(limit_bytes) >= cutoff_s:
            return
        if not self._first_pool().fits(limit_bytes).any():
            self.find_least()
            if self._least_bytes > limit_bytes:
                return
        pool = self._known
        at = {int(pool.time_s.argmin()), int(pool.peak_bytes.argmin()), pool.best(limit_bytes)}
        start = sorted(at)
        met = game.met(pool.choices[start], pool.edge_choices[start])
        outcome = game.play(
            met,
            limit_bytes,
            cutoff_s=cutoff_s,
            time_limit_s=self.watch.left_s,
            most_queries=effort.queries,
        )
        self._charges = Charges(outcome.time, outcome.held)
        self._add(Pool.of_met(outcome.met.take(np.arange(-outcome.new, 0))))
        if outcome.bound_s < min(cutoff_s, self.time_within(limit_bytes)):
            self._unimproved = outcome

    @property
    def _begun_search(self) -> Search:
        """The search, joined on first use."""
        if self._search is None:
            self._search = self._draft.joined(self.watch.costing)
        return self._search

    @property
    def _begun_game(self) -> Game:
        """The game, started on first use."""
        if self._game is None:
            search = self._begun_search
            bounding = self._bounding_of_search()
            self._game = Game(search.replayer, bounding, self._options, self._bounding)
        return self._game

    def _bounding_of_search(self) -> Bounding:
        """Returns the bounds of the search's problem."""
        return Bounding.of(self._begun_search.own_replayer)

    def _improver(self, charges: OwnerCosts, limit_bytes: float) -> Improver:
        """Returns an improver under the charges of a game."""
        return Improver(self._begun_search.replayer, charges, limit_bytes)

    def _starts(self, improver: Improver) -> Iterator[Choices]:
        """Yields customary strategies, (S, groups), each batch replayed before the next is
        requested; `improver` replays strategies."""
        yield customary(self._begun_search.problem)

    def _bounding(self, stage: str, fraction: float) -> bool:
        return self.watch.part(0.0, IMPROVING).report(stage, fraction)

    def tighten(self, limit_bytes: float, best_s: float, seconds: float) -> None:
        """Raises the bound within a limit towards the best answer's time, in at most `seconds`.

        Does nothing on devices of one kind.
        """

    def begin(self) -> None:
        """Replays customary strategies, as many as a strict limit leaves time for."""
        started = self.watch.spent_s
        try:
            self._first_pool()
        except OutOfTime:
            self.status = "budget"
        self.seconds += self.watch.spent_s - started

    def _first_pool(self) -> Pool:
        """Returns the strategies so far, including customary ones."""
        if not self._has_customary:
            game, search = self._begun_game, self._begun_search
            improver = Improver(search.replayer, game.sums(), self.limit_bytes)
            for choices in self._starts(improver):
                self._add(improver.replayed(choices))
                self._has_customary = True
        return self._known

    def find_least(self) -> None:
        """Adds the strategy with the least proven memory, and the bound on every peak.

        Raises `Cancelled`, and `SolverError` if time or memory runs out.
        """
        if self._least_bytes == 0.0:
            self._least_bytes, smallest = self._begun_game.smallest(self.watch.left_s)
            self._add(Pool.of_met(smallest))

    @property
    def _known(self) -> Pool:
        """The strategies so far; there must be some."""
        if self._pool is None:
            raise InternalError("strategies of a search are used before any was replayed")
        return self._pool

    def _add(self, pool: Pool) -> None:
        self._pool = pool if self._pool is None else self._pool.joined(pool)

    def _improve(
        self, outcome: Outcome, limit_bytes: float, effort: Effort, cutoff_s: float = inf
    ) -> None:
        """Adds improvements of the strategies met by the game."""
        game, improver = self._begun_game, self._improver(outcome.charges, limit_bytes)
        self._add(improver.replayed(improver.mixes(outcome.met, outcome.mix)))
        goal = _Goal(limit_bytes, outcome.bound_s * (1.0 + GOOD), cutoff_s)
        close_s = outcome.bound_s * (1.0 + CLOSE)
        donors = outcome.met.choices[shared(outcome.met, outcome.mix)]
        near_limit = self._known.time_s.min() < self.time_within(limit_bytes)
        near_limit = near_limit and not game.is_wide and effort.frontiers > 0
        sums_first = False
        if near_limit:
            held = outcome.held or game.least_held()
            for _ in range(effort.frontiers):
                if self.time_within(limit_bytes) <= close_s:
                    break
                if not self._search_near(outcome.time, held, limit_bytes):
                    break
            # Sums usually replace windows, unless they lead away from what windows would find.
            sums_first = self.time_within(limit_bytes) <= outcome.bound_s * (1.0 + FAR)
            if sums_first and self.time_within(limit_bytes) > close_s:
                self._search_sums(limit_bytes)
        self._replace_parts(improver, donors, goal, effort)
        if effort.frontiers and not sums_first and self.time_within(limit_bytes) > close_s:
            self._search_sums(limit_bytes)
            self._replace_parts(improver, donors, goal, effort)

    def _replace_parts(
        self, improver: Improver, donors: Choices, goal: _Goal, effort: Effort
    ) -> None:
        """Replaces parts of the best strategy by parts of others."""
        if not self._known.fits(goal.limit_bytes).any():
            smallest = np.argsort(self._known.peak_bytes)[:FEW]
            donors = np.concatenate([donors, self._known.choices[smallest]])
        pools = improver.improve(self._known, donors, goal.good_s, self._improving)
        for number, pool in enumerate(islice(pools, effort.rounds), 1):
            before_s = self.time_within(goal.limit_bytes)
            self._pool = pool
            now_s = self.time_within(goal.limit_bytes)
            if goal.is_out_of_reach(before_s, now_s, effort.rounds - number):
                break

    def track(self) -> None:
        """Adds a frontier over all memories, of the best query's charges or of sums.

        Raises `Cancelled` and `OutOfTime`.
        """
        game = self._begun_game
        self._first_pool()
        if game.is_wide:
            return
        solved = self._near(game.charged_time(), game.least_held(), None, epsilon=COARSE)
        if solved is not None:
            choices, edge_choices, _ = solved
            some = np.unique(np.linspace(0, len(choices) - 1, MOST_TRACKED).astype(np.int64))
            self._add(Pool.of(self._begun_search.replayer, choices[some], edge_choices[some]))

    def _search_sums(self, limit_bytes: float) -> None:
        """Adds the frontier of sums near the limit, whose weights of time lead to other
        strategies."""
        self._improving(0.0)
        try:
            sums = search_near(
                self._begun_search,
                limit_bytes,
                self._left_s,
                self._bounding,
                work_limit=MOST_TRACKING,
            ).solution
        except SolverError:
            return  # other strategies are still to be tried
        self._add(Pool.of(self._begun_search.replayer, sums.choices, sums.edge_choices))

    def _search_near(self, time: OwnerCosts, held: OwnerCosts, limit_bytes: float) -> bool:
        """Adds a frontier of charged time and priced memory near the limit; returns whether another
        one may gain.

        Peaks exceed the priced memory, so the next frontier is tracked where this one's peaks
        should meet the limit.
        """
        before = self.time_within(limit_bytes)
        solved = self._near(time, held, limit_bytes / self._ratio, epsilon=TRACKED)
        if solved is None:
            return False
        choices, edge_choices, sums = solved
        # A strategy without memory at the priced moments has sum 0 and an infinite ratio.
        with np.errstate(invalid="ignore"):
            away = np.abs(sums * self._ratio / limit_bytes - 1.0)
        nearest = np.argsort(away)[:MOST_POINTS]
        replayer = self._begun_search.replayer
        some = Pool.of(replayer, choices[nearest], edge_choices[nearest])
        self._add(some)
        with np.errstate(divide="ignore"):
            few = float(np.median(some.peak_bytes[:FEW] / sums[nearest[:FEW]]))
        moved = abs(few / self._ratio - 1.0) >= NEAR
        self._ratio = few
        return moved or self.time_within(limit_bytes) < before

    def _near(
        self, time: OwnerCosts, held: OwnerCosts, target_bytes: float | None, epsilon: float
    ) -> tuple[Choices, Choices, Floats] | None:
        """Returns a frontier as `near` does; None if there is none within the limits."""
        self._improving(0.0)
        problem = self._begun_search.problem
        try:
            return near(
                problem,
                evened(problem, held),
                evened(problem, time),
                target_bytes,
                epsilon=epsilon,
                time_limit_s=self._left_s,
                memory_limit_bytes=self._options.search_memory_bytes,
                work_limit=MOST_TRACKING,
                threads=self._options.threads,
                progress=self.watch.part(IMPROVING, IMPROVING).report,
            )
        except SolverError:
            return None  # other strategies are still to be tried

    @property
    def _left_s(self) -> float | None:
        """Remaining seconds; None without a limit."""
        return self.watch.left_s if isfinite(self.watch.left_s) else None

    def _improving(self, fraction: float) -> None:
        """Reports progress of improvement; raises if the search has to end."""
        self.watch.part(IMPROVING, 1.0).go_on("improving", fraction)

    def result(self) -> Search:
        """Returns the search with its points and proof."""
        if self._search is None or self._pool is None:
            alone = self._draft.alone()
            if self.watch.strict:
                alone = replace(alone, solution=replace(alone.solution, status=self.status))
            return replace(alone, proof=self.proof)
        solution = self._pool.solution(
            self._search.problem,
            self.limit_bytes,
            self.bound_s(self.limit_bytes),
            status=self.status,
            seconds=self.seconds,
        )
        return replace(self._search, solution=solution, proof=self.proof, charges=self._charges)
