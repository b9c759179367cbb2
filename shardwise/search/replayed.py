"""The search for the shortest *replayed* time under the memory limit, with a proven gap.

For each number of micro-batches, that of the least computation first; a number of which nothing
fits that practitioners would try waits for the others, one whose computation alone is no shorter
than the best answer so far is given up:

1. the weights of another number give a bound, if the step is the same program; where nothing fits
   yet, the least memory that is surely held may prove that nothing does;
2. a game (`game.py`) bounds the replayed time of every strategy that fits, and meets fast ones; it
   ends early where the bound exceeds the best answer so far;
3. mixes of the strategies met, a frontier of what the game charges near the limit where memory
   binds, and windows of one strategy in another (`improve.py`) are replayed.

The answer is the fastest that fits of all that was replayed; it is proven against the least bound
of all numbers of micro-batches.
"""

from __future__ import annotations

from math import inf

from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import BadInput
from shardwise.hardware import Bundle, Hardware, Mesh
from shardwise.search.count import Count
from shardwise.search.game import Query
from shardwise.search.mixed.search import MixedCount, MixedDraft, Propose
from shardwise.search.search import Draft, Search, Subject, mesh_of
from shardwise.search.watch import Watch

DRAFTED = 0.1
"""The share of a search when all is costed."""
MOST_DRAFTING = 0.2
"""The share of the time limit after which no further number of micro-batches is costed, on devices
of several kinds."""
FEW_NUMBERS = (1, 2, 4, 8)
"""The numbers of micro-batches that are tried on devices of several kinds, where none are given."""
SEVERAL_KINDS_S = 60.0
"""The seconds of a search on devices of several kinds, where no limit is given."""


def search_replayed(
    subject: Subject,
    hardware: Hardware,
    gpus: int | Bundle,
    options: Options,
    progress: Progress = quiet,
    mesh: Mesh | None = None,
    propose: Propose | None = None,
) -> list[Search]:
    """Returns one search for each number of micro-batches, with its proof.

    A number of like devices may have a `mesh` of its own; `propose` gives strategies of several
    kinds of devices to begin with. Points are replayed strategies that none of the same search
    beats in peak and time; a search that was found to be hopeless at once has none. Raises as
    `search` does.
    """
    watch = Watch(progress, time_limit_s(gpus, options))
    part = watch.part(0.0, DRAFTED)
    counts = drafted(subject, hardware, gpus, options, part, mesh, propose)
    best = _Best()
    waiting: list[Count] = []
    for place, count in enumerate(counts):
        count.watch = watch.part(_share(place, len(counts)), _share(place + 1, len(counts)))
        if count.least_s < best.time_s:
            if best.time_s < inf and watch.is_over:
                count.status = "budget"
                continue
            count.begin()
            if best.time_s == count.time_within(count.limit_bytes) == inf:
                waiting.append(count)
            else:
                best.improve(count)
    for count in waiting:
        best.improve(count)
    return answered(counts)


def time_limit_s(gpus: int | Bundle, options: Options) -> float | None:
    """Returns the seconds that a search may take: devices of several kinds have a limit of their
    own where none is given."""
    if isinstance(gpus, Bundle) and options.time_limit_s is None:
        return SEVERAL_KINDS_S
    return options.time_limit_s


def _share(done: int, of: int) -> float:
    return DRAFTED + (1.0 - DRAFTED) * done / of


class _Best:
    """The time of the best answer so far, and the best query of the last number that was played."""

    def __init__(self) -> None:
        self.time_s = inf
        self._query: Query | None = None

    def improve(self, count: Count) -> None:
        """Searches with another number of micro-batches."""
        count.first = self._query
        count.search_within(count.limit_bytes, self.time_s)
        self.time_s = min(self.time_s, count.time_within(count.limit_bytes))
        self._query = count.best_query or self._query


def drafted(
    subject: Subject,
    hardware: Hardware,
    gpus: int | Bundle,
    options: Options,
    watch: Watch,
    mesh: Mesh | None = None,
    propose: Propose | None = None,
) -> list[Count]:
    """Returns the searches of all numbers of micro-batches, that of the least computation first.

    Raises as `search` does.
    """
    numbers = options.counts(subject.graph.batch_size)
    if isinstance(gpus, Bundle) and not options.micro_batches:
        numbers = tuple(number for number in numbers if number in FEW_NUMBERS)
    counts: list[Count] = []
    for place, number in enumerate(numbers):
        part = watch.part(place / len(numbers), (place + 1) / len(numbers))
        if isinstance(gpus, Bundle) and counts and watch.spent_share > MOST_DRAFTING:
            break
        try:
            draft = _drafted(subject, hardware, gpus, options, part, number, mesh, propose)
            counts.append(draft)
        except BadInput:
            # A rule may ask for more samples than a small micro-batch has.
            if number in (numbers[0], *options.micro_batches):
                raise
    return sorted(counts, key=lambda count: count.least_s)


def _drafted(
    subject: Subject,
    hardware: Hardware,
    gpus: int | Bundle,
    options: Options,
    watch: Watch,
    number: int,
    mesh: Mesh | None,
    propose: Propose | None,
) -> Count:
    """Returns the search of one number of micro-batches."""
    if isinstance(gpus, Bundle):
        mixed = MixedDraft.of(subject, hardware, gpus, options, watch.report, number)
        return MixedCount(mixed, watch, propose)
    mesh = mesh or mesh_of(hardware, gpus)
    return Count(Draft.of(subject, hardware, mesh, options, watch.report, number), watch)


def answered(counts: list[Count]) -> list[Search]:
    """Returns the searches, those with points first, each in the order of micro-batches."""
    searches = [count.result() for count in counts]
    return sorted(searches, key=lambda s: (len(s.time_s) == 0, s.micro_batches))
