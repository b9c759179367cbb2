"""The search for the shortest *replayed* time under the memory limit, with a proven gap.

Micro-batch counts are ordered by their least computation. Counts where no customary strategy fits
are tried last; those whose computation alone is no shorter than the best answer are skipped:

1. the weights of another count give a bound, if the step is the same program; if nothing fits yet,
   the least memory that is surely held may prove that nothing does;
2. a game (`game.py`) bounds the replayed time of every strategy that fits, and meets fast ones; it
   ends early if the bound exceeds the best answer so far;
3. when all counts are bounded, that of the least bound first: mixtures of the strategies met, if
   memory binds frontiers of the game's charges and of sums near the limit, and windows of one
   strategy in another (`improve.py`) are replayed, as long as that may beat the best answer.

The answer is the fastest replayed strategy that fits; its gap is to the least bound of all counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import BadInput, Cancelled, SolverError
from shardwise.hardware import Devices, Hardware, Mesh
from shardwise.search.count import Count
from shardwise.search.game import Query
from shardwise.search.mixed.search import MixedCount, MixedDraft, Propose
from shardwise.search.search import Draft, Search, Subject, mesh_of
from shardwise.search.watch import OutOfTime, Watch

DRAFTED = 0.1
"""Share of the progress when costs are computed."""
BOUNDED = 0.4
"""Share of the progress when all counts are bounded, on devices of one kind."""
MOST_DRAFTING = 0.2
"""Share of the time limit after which no further count is costed, on devices of several kinds."""
MOST_WAITING = 2
"""Maximum number of deferred counts, for which no customary strategy fits; with more, the first one
is bounded anyway, since a strategy that fits may exclude the others (for Llama 3 8B on 37 H100
those of 8 to 64)."""
FEW_NUMBERS = (1, 2, 4, 8)
"""Default micro-batch counts on devices of several kinds."""
TIGHTENING = 0.25
"""Maximum share of the time limit for raising bounds after the answer is known."""
KEPT_FOR_BOUNDS = 0.15
"""Share of the time limit reserved for that, on devices of several kinds."""
SEVERAL_KINDS_S = 60.0
"""Default time limit on devices of several kinds, in seconds."""
FIRST_ANSWER_S = 30.0
"""Seconds for a first strategy on several kinds, even under a shorter limit: a late answer is
better than none."""
SHARE_OF_NUMBER = 0.6
"""Maximum share of the remaining time for one count on several kinds if others may be faster."""
WORTH_BEGINNING = 1.5
"""Another count is begun if this many times the seconds of beginning one remain."""


def search_replayed(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    progress: Progress = quiet,
    mesh: Mesh | None = None,
    propose: Propose | None = None,
    *,
    cutoff_s: float = inf,
    strict: bool = False,
) -> list[Search]:
    """Returns one search per micro-batch count, with its proof.

    Devices of one kind may have their own `mesh`; `propose` gives further initial strategies for
    several kinds. Points are replayed strategies that none of the same search beats in peak and
    time; a hopeless search, or one proven no faster than `cutoff_s`, has none. Under a strict time
    limit, as for several kinds, all may be empty if the limit and `FIRST_ANSWER_S` passed before
    any strategy was replayed. Raises as `search` does.
    """
    watch = watch_of(gpus, options, progress, strict=strict)
    searching = watch.within(1.0 - KEPT_FOR_BOUNDS) if gpus.of_groups else watch
    part = watch.part(0.0, DRAFTED)
    counts = drafted(subject, hardware, gpus, options, part, mesh, propose)
    best = _Best(cutoff_s)
    try:
        _search(counts, best, watch, searching)
    except Cancelled:
        if not any(count.time_within(count.limit_bytes) < inf for count in counts):
            raise
        for count in counts:
            count.status = "cancelled"
        return answered(counts)
    _tighten(counts, best.time_s, watch, time_limit_s(gpus, options))
    return answered(counts)


def _search(counts: Sequence[Count], best: _Best, watch: Watch, searching: Watch) -> None:
    """Searches all counts; `searching` is the watch without the time reserved for bounds. Raises
    `Cancelled`."""
    strict = watch.strict
    waiting: list[Count] = []
    beginning_s = 0.0
    for place, count in enumerate(counts):
        last = 1.0 if strict else BOUNDED
        count.watch = _part(searching, DRAFTED, last, place, len(counts))
        if count.least_s < best.time_s:
            known = best.time_s < inf
            too_late = known and searching.left_s < WORTH_BEGINNING * beginning_s
            over = searching.is_over if known else searching.is_over_for_costs
            if over or too_late if strict else searching.is_over and known:
                count.status = "budget"
                continue
            if strict and any(other.least_s < best.time_s for other in counts[place + 1 :]):
                count.watch = count.watch.within(SHARE_OF_NUMBER)
            if not strict and known and best.excludes(count):
                continue
            started = watch.spent_s
            count.begin()
            beginning_s = max(beginning_s, watch.spent_s - started)
            if best.time_s == count.time_within(count.limit_bytes) == inf:
                waiting.append(count)
                if len(waiting) > MOST_WAITING and not strict:
                    best.bound(waiting.pop(0))
            elif strict:
                best.improve(count)
            else:
                best.bound(count)
    for place, count in enumerate(waiting, 1):
        if strict:
            share = SHARE_OF_NUMBER if place < len(waiting) else 1.0
            count.watch = count.watch.again(share, searching)
            best.improve(count)
        else:
            best.bound(count)
    if strict:
        _go_on_with_the_best(counts, searching, best)
    else:
        by_bound = sorted(counts, key=lambda count: count.bound_s(count.limit_bytes))
        for place, count in enumerate(by_bound):
            count.watch = _part(searching, BOUNDED, 1.0, place, len(counts))
            best.improve_met(count)


def _go_on_with_the_best(counts: Sequence[Count], watch: Watch, best: _Best) -> None:
    """Resumes the fastest micro-batch count with the remaining time, if it was interrupted for
    others."""
    first = min(counts, key=lambda count: count.time_within(count.limit_bytes))
    known_s = first.time_within(first.limit_bytes)
    if first.status != "budget" or watch.is_over or not first.least_s < known_s < inf:
        return
    first.watch = first.watch.again(1.0, watch)
    first.status = "within_epsilon"
    best.time_s = inf  # its own result must not cut it off
    best.improve(first)


def check_replayed(searches: Sequence[Search]) -> None:
    """Raises `SolverError` if the time limit passed before any strategy was replayed."""
    if any(len(search.time_s) for search in searches):
        return
    if any(search.solution.status == "budget" for search in searches):
        raise SolverError("the time limit passed before any strategy was replayed")


def _tighten(counts: list[Count], best_s: float, watch: Watch, limit_s: float | None) -> None:
    """Raises the least bounds of all counts towards the answer's time."""
    left_s = TIGHTENING * (limit_s or SEVERAL_KINDS_S)
    for count in sorted(counts, key=lambda count: count.bound_s(count.limit_bytes)):
        if left_s > 0.0 and count.bound_s(count.limit_bytes) < best_s < inf:
            count.watch = watch.part(1.0, 1.0)
            count.tighten(count.limit_bytes, best_s, min(left_s, watch.left_s))
            left_s -= count.watch.spent_s


def watch_of(gpus: Devices, options: Options, progress: Progress, *, strict: bool = False) -> Watch:
    """Returns the watch of a search; for several kinds it is strict, with `FIRST_ANSWER_S` for a
    first strategy."""
    several = gpus.of_groups
    return Watch(
        progress,
        time_limit_s(gpus, options),
        strict=strict or several,
        least_costing_s=FIRST_ANSWER_S if several else 0.0,
    )


def time_limit_s(gpus: Devices, options: Options) -> float | None:
    """Returns the time limit in seconds; several kinds have a default."""
    if gpus.of_groups and options.time_limit_s is None:
        return SEVERAL_KINDS_S
    return options.time_limit_s


def _part(watch: Watch, first: float, last: float, done: int, of: int) -> Watch:
    """Returns the watch of one of several equal parts of an interval."""
    each = (last - first) / of
    return watch.part(first + done * each, first + (done + 1) * each)


class _Best:
    """The time of the best answer so far, and the best query of the last count played."""

    def __init__(self, time_s: float = inf) -> None:
        self.time_s = time_s
        self._query: Query | None = None

    def improve(self, count: Count) -> None:
        """Searches another micro-batch count."""
        self.bound(count)
        self.improve_met(count)

    def excludes(self, count: Count) -> bool:
        """Returns whether another count's query proves that this one cannot beat the best
        answer."""
        count.first = self._query
        return self._query is not None and count.is_excluded(self.time_s)

    def bound(self, count: Count) -> None:
        """Bounds another count's step; the strategies met count."""
        count.first = self._query
        count.bound_within(count.limit_bytes, self.time_s)
        self.time_s = min(self.time_s, count.time_within(count.limit_bytes))
        self._query = count.best_query or self._query

    def improve_met(self, count: Count) -> None:
        """Improves the strategies met by bounding a count, as far as they may beat all others."""
        count.improve_within(count.limit_bytes, self.time_s)
        self.time_s = min(self.time_s, count.time_within(count.limit_bytes))


def drafted(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    watch: Watch,
    mesh: Mesh | None = None,
    propose: Propose | None = None,
) -> list[Count]:
    """Returns the searches of all micro-batch counts, by least computation.

    Raises as `search` does.
    """
    numbers = options.counts(subject.graph.batch_size)
    if gpus.of_groups and not options.micro_batches:
        numbers = tuple(number for number in numbers if number in FEW_NUMBERS)
    counts: list[Count] = []
    for place, number in enumerate(numbers):
        part = watch.part(place / len(numbers), (place + 1) / len(numbers))
        if watch.strict and counts and watch.spent_share > MOST_DRAFTING:
            break
        try:
            draft = _drafted(subject, hardware, gpus, options, part, number, mesh, propose)
            counts.append(draft)
        except BadInput:
            # A pin may require more samples than a small micro-batch has.
            if number in (numbers[0], *options.micro_batches):
                raise
        except OutOfTime:
            break
    if not counts:
        raise SolverError("the time limit passed before the search began")
    return sorted(counts, key=lambda count: count.least_s)


def _drafted(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    watch: Watch,
    number: int,
    mesh: Mesh | None,
    propose: Propose | None,
) -> Count:
    """Returns the search of one micro-batch count."""
    if gpus.of_groups:
        mixed = MixedDraft.of(subject, hardware, gpus, options, watch.costing, number)
        return MixedCount(mixed, watch, propose)
    mesh = mesh or mesh_of(hardware, gpus.gpus)
    return Count(Draft.of(subject, hardware, mesh, options, watch.costing, number), watch)


def answered(counts: list[Count]) -> list[Search]:
    """Returns the searches, those with points first, in the order of micro-batch counts."""
    searches = [count.result() for count in counts]
    return sorted(searches, key=lambda s: (len(s.time_s) == 0, s.micro_batches))
