"""The search for the shortest *replayed* time under the memory limit, with a proven gap.

For each number of micro-batches, that of the least computation first; a number of which nothing
fits that practitioners would try waits for the others, one whose computation alone is no shorter
than the best answer so far is given up:

1. the weights of another number give a bound, if the step is the same program; where nothing fits
   yet, the least memory that is surely held may prove that nothing does;
2. a game (`game.py`) bounds the replayed time of every strategy that fits, and meets fast ones; it
   ends early where the bound exceeds the best answer so far;
3. when all numbers are bounded, that of the least bound first: mixes of the strategies met, where
   memory binds frontiers of what the game charges and of sums near the limit, and windows of one
   strategy in another (`improve.py`) are replayed, as long as that may beat the best answer so far.

The answer is the fastest that fits of all that was replayed; it is proven against the least bound
of all numbers of micro-batches.
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
"""The share of a search when all is costed."""
BOUNDED = 0.4
"""The share of a search when all numbers of micro-batches are bounded, on devices of one kind."""
MOST_DRAFTING = 0.2
"""The share of the time limit after which no further number of micro-batches is costed, on devices
of several kinds."""
MOST_WAITING = 2
"""Numbers of micro-batches of which nothing fits that practitioners would try, and which wait for
others: with more the first one is bounded, since what fits of it may spare the others (of Llama 3
8B on 37 H100 those of 8 to 64)."""
FEW_NUMBERS = (1, 2, 4, 8)
"""The numbers of micro-batches that are tried on devices of several kinds, where none are given."""
TIGHTENING = 0.25
"""The share of the time limit in which bounds are raised after the answer is known, at most."""
KEPT_FOR_BOUNDS = 0.15
"""What is kept of the time limit for that, on devices of several kinds."""
SEVERAL_KINDS_S = 60.0
"""The seconds of a search on devices of several kinds, where no limit is given."""
FIRST_ANSWER_S = 30.0
"""The seconds in which a first strategy of several kinds is costed and replayed, however short the
limit: a late answer is worth more than none."""
SHARE_OF_NUMBER = 0.6
"""Of the time that is left on devices of several kinds, what one number of micro-batches may take
where others may be faster."""
WORTH_BEGINNING = 1.5
"""Another number is begun while at least this many times as long is left as beginning one took."""


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
    """Returns one search for each number of micro-batches, with its proof.

    A number of like devices may have a `mesh` of its own; `propose` gives strategies of several
    kinds of devices to begin with. Points are replayed strategies that none of the same search
    beats in peak and time; a search that was found to be hopeless at once has none, nor has one
    that is surely no faster than `cutoff_s`. Under a strict time limit, which devices of several
    kinds have, none has any where the limit and `FIRST_ANSWER_S` passed before a strategy was
    replayed. Raises as `search` does.
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
    """Searches all numbers of micro-batches: `searching` is the watch without what is kept for
    bounds. Raises `Cancelled`."""
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
    """Spends what is left of the time on the number of micro-batches with the fastest answer, if it
    was left for the others before it was done."""
    first = min(counts, key=lambda count: count.time_within(count.limit_bytes))
    known_s = first.time_within(first.limit_bytes)
    if first.status != "budget" or watch.is_over or not first.least_s < known_s < inf:
        return
    first.watch = first.watch.again(1.0, watch)
    first.status = "within_epsilon"
    best.time_s = inf  # its own answer is no reason to end
    best.improve(first)


def check_replayed(searches: Sequence[Search]) -> None:
    """Raises `SolverError` where the time limit passed before any strategy was replayed."""
    if any(len(search.time_s) for search in searches):
        return
    if any(search.solution.status == "budget" for search in searches):
        raise SolverError("the time limit passed before any strategy was replayed")


def _tighten(counts: list[Count], best_s: float, watch: Watch, limit_s: float | None) -> None:
    """Raises the least bounds of all numbers of micro-batches towards the time of the answer."""
    left_s = TIGHTENING * (limit_s or SEVERAL_KINDS_S)
    for count in sorted(counts, key=lambda count: count.bound_s(count.limit_bytes)):
        if left_s > 0.0 and count.bound_s(count.limit_bytes) < best_s < inf:
            count.watch = watch.part(1.0, 1.0)
            count.tighten(count.limit_bytes, best_s, min(left_s, watch.left_s))
            left_s -= count.watch.spent_s


def watch_of(gpus: Devices, options: Options, progress: Progress, *, strict: bool = False) -> Watch:
    """Returns the watch of a search; it is strict for devices of several kinds, which have
    `FIRST_ANSWER_S` for a first strategy."""
    several = gpus.of_groups
    return Watch(
        progress,
        time_limit_s(gpus, options),
        strict=strict or several,
        least_costing_s=FIRST_ANSWER_S if several else 0.0,
    )


def time_limit_s(gpus: Devices, options: Options) -> float | None:
    """Returns the seconds that a search may take: devices of several kinds have a limit of their
    own where none is given."""
    if gpus.of_groups and options.time_limit_s is None:
        return SEVERAL_KINDS_S
    return options.time_limit_s


def _part(watch: Watch, first: float, last: float, done: int, of: int) -> Watch:
    """Returns the watch of one of several equal parts of a stretch."""
    each = (last - first) / of
    return watch.part(first + done * each, first + (done + 1) * each)


class _Best:
    """The time of the best answer so far, and the best query of the last number that was played."""

    def __init__(self, time_s: float = inf) -> None:
        self.time_s = time_s
        self._query: Query | None = None

    def improve(self, count: Count) -> None:
        """Searches with another number of micro-batches."""
        self.bound(count)
        self.improve_met(count)

    def excludes(self, count: Count) -> bool:
        """Returns whether the query of another number of micro-batches shows that this one has no
        step faster than the best."""
        count.first = self._query
        return self._query is not None and count.is_excluded(self.time_s)

    def bound(self, count: Count) -> None:
        """Bounds the step with another number of micro-batches; what that meets counts."""
        count.first = self._query
        count.bound_within(count.limit_bytes, self.time_s)
        self.time_s = min(self.time_s, count.time_within(count.limit_bytes))
        self._query = count.best_query or self._query

    def improve_met(self, count: Count) -> None:
        """Improves what bounding a number has met, as far as that may beat all others."""
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
    """Returns the searches of all numbers of micro-batches, that of the least computation first.

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
            # A rule may ask for more samples than a small micro-batch has.
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
    """Returns the search of one number of micro-batches."""
    if gpus.of_groups:
        mixed = MixedDraft.of(subject, hardware, gpus, options, watch.costing, number)
        return MixedCount(mixed, watch, propose)
    mesh = mesh or mesh_of(hardware, gpus.gpus)
    return Count(Draft.of(subject, hardware, mesh, options, watch.costing, number), watch)


def answered(counts: list[Count]) -> list[Search]:
    """Returns the searches, those with points first, each in the order of micro-batches."""
    searches = [count.result() for count in counts]
    return sorted(searches, key=lambda s: (len(s.time_s) == 0, s.micro_batches))
