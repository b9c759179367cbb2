"""What practitioners run, as rows of a search problem: data parallelism and dp × tp, with ZeRO.

    method          split                                  ZeRO
    data-parallel   samples over all devices               0
    zero            samples over all devices               1, 2
    fsdp            samples over all devices               3 over all devices
    hsdp            samples over all devices               3 inside each of several nodes
    megatron        dp × tp, tp above 1, with or without   0, 1 (its distributed optimizer), 3
                    sequence parallelism (`megatron.py`)

each without recomputation and, where the options allow it, with

    selective       what runs again is every group of a block that multiplies by no weights:
                    normalisations, activation functions, dropouts, and the core of attention
    full            every group of a block

A block is a segment of several groups (`sharding/segments.py`); in a model without blocks all is
one. What tensor parallelism splits is the least sum of the factorisation's space, found once and
taken under every ZeRO stage and recomputation. A search drops configurations that others beat in
every term: a group whose ZeRO stage was dropped takes the nearest that is left.

Edges take their fastest copies; where these do not fit, their smallest are tried.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import ALWAYS, AUTO, NEVER, Progress, go_on, quiet
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import Step, edge_alternatives, steps_of
from shardwise.peers.megatron import Grid, MegatronSpace
from shardwise.peers.restrict import least_time
from shardwise.replay.replay import Replayer
from shardwise.sharding.layout import shard_fits


@dataclass(frozen=True)
class Method:
    """What practitioners call by one name, and the ZeRO stages that it is run with."""

    title: str
    found_by: str
    stages: tuple[int, ...]


HYBRID, MEGATRON = "hsdp", "megatron"

METHODS = {
    "data-parallel": Method(
        "Data parallelism", "the batch over all devices, all parameters on each", (0,)
    ),
    "zero": Method(
        "ZeRO-1 and ZeRO-2",
        "data parallelism with the optimizer's state in shards, with ZeRO-2 gradients too",
        (1, 2),
    ),
    "fsdp": Method(
        "FSDP (ZeRO-3)",
        "data parallelism with parameters, gradients and state in shards over all devices",
        (3,),
    ),
    HYBRID: Method(
        "HSDP",
        "data parallelism with parameters, gradients and state in shards inside each node",
        (3,),
    ),
    MEGATRON: Method(
        "Megatron-style",
        "tensor parallelism on the innermost axes, data parallelism on the others, every "
        "factorisation; the least sum of its columns, rows, heads and vocabulary splits",
        (0, 1, 3),
    ),
}
"""In the order of documents."""

NONE, SELECTIVE, FULL = "", "selective recompute", "full recompute"
RECOMPUTATIONS = {NEVER: (NONE,), AUTO: (NONE, SELECTIVE, FULL), ALWAYS: (FULL,)}
STAGE = "practitioners"

Choices = NDArray[np.uint32]


@dataclass(frozen=True)
class Practice:
    """One strategy in a problem: `choices` (groups,) and `edge_choices` (edges,).

    `method` is one of `METHODS`, `label` says which of its strategies it is, the same under every
    number of micro-batches. `lean`: edges keep the smallest copies, which are not the fastest.
    """

    method: str
    label: str
    choices: Choices
    edge_choices: Choices
    lean: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.label

    @property
    def content(self) -> bytes:
        """Is equal for equal strategies."""
        return self.choices.tobytes() + self.edge_choices.tobytes()


@dataclass(frozen=True)
class Practised:
    """A strategy of a problem and its replayed step."""

    practice: Practice
    problem: SearchProblem
    step: Step

    def rank(self, limit_bytes: float) -> tuple[bool, float, float]:
        """Returns what is less for a better one: those that fit by time, others by their peak."""
        peak_bytes, time_s = self.step.peak_bytes, self.step.time_s
        if peak_bytes <= limit_bytes:
            return False, time_s, peak_bytes
        return True, peak_bytes, time_s


def best_of_counts(
    replayers: Iterable[Replayer],
    limit_bytes: float,
    progress: Progress = quiet,
    *,
    methods: Container[str] = METHODS,
) -> list[Practised]:
    """Returns each strategy with its best number of micro-batches, one replayer for each number.

    The best is the fastest that fits, or where none does the one of the least peak. Raises as
    `practitioners` does.
    """
    best: dict[tuple[str, str], Practised] = {}
    for replayer in replayers:
        practices = practitioners(replayer.problem, progress, methods=methods)
        for one in replayed(replayer, practices, limit_bytes):
            known = best.get(one.practice.key)
            if known is None or one.rank(limit_bytes) < known.rank(limit_bytes):
                best[one.practice.key] = one
    order = list(METHODS)
    return sorted(best.values(), key=lambda one: order.index(one.practice.method))


def replayed(
    replayer: Replayer, practices: Sequence[Practice], limit_bytes: float
) -> list[Practised]:
    """Returns strategies of the replayer's problem, replayed; those with the smallest copies only
    where the fastest do not fit."""
    plain = _replay(replayer, [one for one in practices if not one.lean])
    fit = {one.practice.key for one in plain if one.step.peak_bytes <= limit_bytes}
    return plain + _replay(replayer, [o for o in practices if o.lean and o.key not in fit])


def _replay(replayer: Replayer, practices: Sequence[Practice]) -> list[Practised]:
    """Returns strategies with their steps; those of several names are replayed once."""
    distinct = {one.content: one for one in practices}
    steps = steps_of(
        replayer,
        [one.choices for one in distinct.values()],
        [one.edge_choices for one in distinct.values()],
    )
    known = dict(zip(distinct, steps, strict=True))
    return [Practised(one, replayer.problem, known[one.content]) for one in practices]


def practitioners(
    problem: SearchProblem, progress: Progress = quiet, *, methods: Container[str] = METHODS
) -> list[Practice]:
    """Returns the strategies of practitioners that the options of a problem allow.

    Some may be equal where configurations were dropped. Those that need more shares of samples
    than a micro-batch has are left out. Raises `Cancelled` when `progress` returns False, and for
    Megatron's `SolverError` when a limit of the options is met.
    """
    named = list(_Practices(problem, progress).named(methods))
    if not named:
        return []
    choices = np.stack([rows for _, _, rows in named])
    practices: list[Practice] = []
    for lean in (False, True):
        edges = edge_alternatives(problem, choices, smallest=lean)
        practices += [
            Practice(method, label, rows, of_edges, lean)
            for (method, label, rows), of_edges in zip(named, edges, strict=True)
        ]
    plain = {one.key: one.content for one in practices[: len(named)]}
    return [one for one in practices if not one.lean or one.content != plain[one.key]]


def is_offered(name: str, problem: SearchProblem) -> bool:
    """Returns whether options and mesh are such that practitioners would use a method."""
    axes, node = len(problem.context.mesh.axes), _axes_in_a_node(problem)
    inside_some = 0 < node < (1 << axes) - 1
    stages = set(METHODS[name].stages) & set(problem.context.options.zero)
    return bool(stages) and axes > 0 and (inside_some or name != HYBRID)


def _axes_in_a_node(problem: SearchProblem) -> int:
    """Returns the bit mask of the axes inside a node."""
    mesh = problem.context.mesh
    node = mesh.mesh.levels[0]
    return sum(1 << a for a, axis in enumerate(mesh.axes) if axis.level == node)


class _Practices:
    """The strategies of one problem."""

    def __init__(self, problem: SearchProblem, progress: Progress) -> None:
        self._problem = problem
        self._options = problem.context.options
        self._progress = progress
        sizes, node = problem.context.mesh.sizes, _axes_in_a_node(problem)
        self._rows = {id(cost): _Rows(cost, sizes, node) for cost in problem.costs}

    def named(self, methods: Container[str]) -> Iterator[tuple[str, str, Choices]]:
        """Yields method, label and choices of each of these methods."""
        go_on(self._progress, STAGE, 0.0)
        if self._has_samples_for(int(self._problem.context.mesh.sizes.prod())):
            yield from self._data_parallel(methods)
        if MEGATRON in methods:
            space = MegatronSpace(self._problem)
            for grid in space.grids():
                go_on(self._progress, STAGE, 0.0)
                if any(grid.tp) and self._has_samples_for(grid.shares):
                    yield from self._megatron(space, grid)

    def _has_samples_for(self, shares: int) -> bool:
        """Returns whether a micro-batch can be cut into this many shares."""
        samples = self._problem.context.graph.batch_size
        return samples is None or shard_fits(samples, shares)

    def _data_parallel(self, methods: Container[str]) -> Iterator[tuple[str, str, Choices]]:
        splits = data_parallel_rows(self._problem).choices
        for name, method in METHODS.items():
            if name in methods and name != MEGATRON and is_offered(name, self._problem):
                for stage in method.stages:
                    label = f"zero-{stage}" if len(method.stages) > 1 else ""
                    yield from self._under(splits, name, label, stage, inside=name == HYBRID)

    def _megatron(self, space: MegatronSpace, grid: Grid) -> Iterator[tuple[str, str, Choices]]:
        splits = self._least_sum(space, grid)
        if splits is not None:
            for stage in METHODS[MEGATRON].stages:
                label = grid.label + (f"·zero-{stage}" if stage else "")
                yield from self._under(splits, MEGATRON, label, stage)

    def _least_sum(self, space: MegatronSpace, grid: Grid) -> Choices | None:
        """Returns the factorisation's strategy of the least sum, under the least ZeRO stage and
        recomputation; None where a group cannot follow the factorisation."""
        stage, recompute = min(self._options.zero), self._recomputations[0]
        masks = []
        for g, mask in enumerate(space.masks(grid)):
            rows = self._rows[id(self._problem.costs[g])]
            of_splits = rows.by_split(stage, False, bool(self._recomputing[recompute][g]))
            only = np.zeros(len(mask), dtype=bool)
            only[of_splits] = mask[of_splits]
            if not only.any():
                return None
            masks.append(only)
        chosen, _ = least_time(self._problem, masks, self._options, self._progress)
        return chosen

    def _under(
        self, splits: Choices, method: str, label: str, stage: int, *, inside: bool = False
    ) -> Iterator[tuple[str, str, Choices]]:
        """Yields the strategy that splits as `splits` do, under a ZeRO stage and each
        recomputation."""
        if stage not in self._options.zero:
            return
        for recompute in self._recomputations:
            again = self._recomputing[recompute]
            rows = [
                self._rows[id(cost)].like(int(splits[g]), stage, inside, bool(again[g]))
                for g, cost in enumerate(self._problem.costs)
            ]
            words = "·".join(filter(None, (label, recompute)))
            yield method, words, np.array(rows, dtype=np.uint32)

    @property
    def _recomputations(self) -> tuple[str, ...]:
        return RECOMPUTATIONS[self._options.recomputation]

    @cached_property
    def _recomputing(self) -> dict[str, NDArray[np.bool_]]:
        """Which groups run forward again under each recomputation."""
        _, segment, count = np.unique(
            self._problem.context.segments, return_inverse=True, return_counts=True
        )
        block = count[segment.reshape(-1)] > 1
        if not block.any():
            block = np.ones_like(block)
        weights = np.array([self._has_weights(g) for g in range(len(block))], dtype=bool)
        return {NONE: np.zeros_like(block), SELECTIVE: block & ~weights, FULL: block}

    def _has_weights(self, group: int) -> bool:
        """Returns whether a group multiplies by weights: has a heavy operator with a parameter."""
        tensors = self._problem.context.graph.tensors
        return any(
            tensors[name].role == "parameter"
            for member in self._problem.coarsened.groups[group].members
            if member.semantics.category == "heavy"
            for name in member.operator.inputs
        )


class _Rows:
    """The rows of a group's costs by their split: one for each ZeRO stage and recomputation."""

    def __init__(self, cost: GroupCosts, sizes: NDArray[np.int64], node: int) -> None:
        self._cost = cost
        self._node = node
        marked = cost.zero_axes[:, None] >> np.arange(len(sizes)) & 1
        self._ranks = np.where(marked, sizes, 1).prod(axis=1)
        _, split = np.unique(cost.assignment, axis=0, return_inverse=True)
        self._split = split.reshape(-1)
        self._known: dict[tuple[int, bool, bool], NDArray[np.int64]] = {}

    def by_split(self, stage: int, inside: bool, recompute: bool) -> NDArray[np.int64]:
        """Returns for every split the row nearest in recomputation, then in stage, then in where
        it shards, then the fastest."""
        key = (stage, inside, recompute)
        if key not in self._known:
            cost = self._cost
            beyond = (cost.zero_axes & ~self._node != 0) & inside
            distance = np.abs(cost.zero.astype(np.int64) - stage)
            keys = (cost.time_s, -self._ranks, beyond, distance, cost.recompute != recompute)
            order = np.lexsort((*keys, self._split))
            _, first = np.unique(self._split[order], return_index=True)
            self._known[key] = order[first]
        return self._known[key]

    def like(self, row: int, stage: int, inside: bool, recompute: bool) -> int:
        """Returns the row that splits as another one does."""
        return int(self.by_split(stage, inside, recompute)[self._split[row]])
