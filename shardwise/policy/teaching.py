"""Tasks for training: a family's graph on a random cluster, and the search's best strategy for it.

Strategies of data parallelism alone are searched, which is what actions can say: every group splits
its samples or nothing. Effort is counted, not timed, so that the same seed teaches the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shardwise.cost.mixed.assemble import MixedCosted
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import parse_pin
from shardwise.errors import InternalError
from shardwise.graph import Graph
from shardwise.policy.architecture import Size
from shardwise.policy.clusters import random_cluster
from shardwise.policy.task import Task, task_of
from shardwise.search.count import Effort
from shardwise.search.mixed.search import MixedCount, MixedDraft, MixedSearch
from shardwise.search.search import Subject
from shardwise.search.watch import Watch
from shardwise.sharding.layout import Floats

EFFORT = Effort(queries=8, frontiers=0, rounds=6)
OPTIONS = Options(threads=1, pins=(parse_pin("split=batch,none"),))


@dataclass(frozen=True)
class Family:
    """A model by name, with its graph."""

    name: str
    graph: Graph


@dataclass(frozen=True)
class Joined:
    """A draft whose search has been joined, for several counts of one problem."""

    draft: MixedDraft
    search: MixedSearch

    @property
    def options(self) -> Options:
        return self.draft.options

    @property
    def limit_bytes(self) -> float:
        return self.draft.limit_bytes

    @property
    def groups(self) -> MixedCosted:
        return self.draft.groups

    def joined(self, progress: Progress) -> MixedSearch:
        return self.search

    def alone(self) -> MixedSearch:
        return self.draft.alone()


def joined_of(family: Family, seed: tuple[int, ...], options: Options) -> Joined:
    """Returns a family's graph on the random cluster of a seed."""
    hardware, bundle = random_cluster(np.random.default_rng(seed))
    draft = MixedDraft.of(Subject.of(family.graph), hardware, bundle, options, quiet, 1)
    return Joined(draft, draft.joined(quiet))


@dataclass(frozen=True)
class Lesson:
    """What the search has found for a task: how well each action fits its best strategy (units,
    actions), and a bound on the time of every strategy."""

    shares: Floats
    scale_s: float


def lesson_of(joined: Joined, task: Task) -> Lesson:
    """Searches a task and returns its lesson."""
    count = MixedCount(joined, Watch(quiet))
    count.search_within(count.limit_bytes, inf, EFFORT)
    pool = count.pool
    if pool is None:
        raise InternalError(f"a search of {joined.search.bundle} replayed no strategy")
    bound_s = count.bound_s(count.limit_bytes)
    scale_s = bound_s if isfinite(bound_s) and bound_s > 0.0 else count.least_s
    return Lesson(task.fitting(pool.choices[pool.best(count.limit_bytes)]), scale_s)


def bare_task(joined: Joined, size: Size) -> Task:
    """Returns the task of a joined search, with unscaled times."""
    return task_of(joined.search, size, 1.0)
