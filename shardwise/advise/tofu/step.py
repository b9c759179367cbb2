"""One recursive step: the basic partition plan that moves the fewest bytes (Tofu §5.1, §5.2).

The coarsened graph has a node for each group of operators and one for each tensor (with its
gradient) between groups, as in Tofu's Figure 5(c):

    choices of a group     the variables that may be split among k
    choices of a tensor    the dimensions that it and its gradient lie along
    cost of a group        parameters, tensors inside the group, statistics
    cost of an edge        what the group moves of the tensor

Every operator and tensor that can be split is split; nothing is replicated by choice. The paper's
dynamic programme walks a linear coarsened graph. Here the solver eliminates nodes in any order
with memory 0 and bytes for time, the same minimum on graphs of any shape. Inside a group the
storages are tried one by one, as the paper does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from shardwise import _core
from shardwise.advise.layout import Floats, shard_fits
from shardwise.advise.tofu.traffic import (
    WHOLE,
    Split,
    gradient_bytes,
    own_after,
    statistics_bytes,
    tensor_bytes,
)
from shardwise.advise.tofu.uses import Parts, Use
from shardwise.graph.coarsen import Group
from shardwise.graph.graph import Tensor

NONE = -1
"""The choice of a group that no variable can be split of any more: all k do all of its work."""

Solve = Callable[[_core.Problem], _core.Solution]


@dataclass(frozen=True)
class TofuGroup:
    """A group of operators as the recursion sees it."""

    group: Group
    uses: dict[str, list[Use]]
    legal: Callable[[int, int], bool]


@dataclass
class Stored:
    """A tensor as stored so far: shares of each dimension, and of each dimension of its gradient.

    `own` and `gradient_own` are, by group, the fraction of what the group touches that its own
    worker group stores. `groups` make or read it.
    """

    tensor: Tensor
    groups: tuple[int, ...]
    has_gradient: bool
    parts: list[int]
    gradient_parts: list[int]
    own: dict[int, float]
    gradient_own: dict[int, float]

    @classmethod
    def whole(cls, tensor: Tensor, groups: tuple[int, ...], *, has_gradient: bool) -> Stored:
        ones = [1] * len(tensor.shape)
        own = dict.fromkeys(groups, 1.0)
        return cls(tensor, groups, has_gradient, ones, list(ones), own, dict(own))


@dataclass
class Workers:
    """What one worker group holds: the shapes that the steps so far have left."""

    groups: list[TofuGroup]
    stored: dict[str, Stored]
    count: int = 1
    parts: list[Parts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = self.parts or [
            np.ones(len(g.group.variables), dtype=np.int64) for g in self.groups
        ]


@dataclass(frozen=True)
class StepPlan:
    """A basic partition plan: a variable for each group, storages for each tensor, its bytes.

    `total_bytes` is δ of Tofu's Theorem 1: what all worker groups move at this step.
    """

    k: int
    variables: tuple[int, ...]
    storages: dict[str, tuple[int, int]]
    total_bytes: float
    exact: bool


def partition(workers: Workers, k: int, solve: Solve) -> StepPlan:
    """The plan of one step that moves the fewest bytes when every worker group is split in k."""
    options = [_variables(workers, g, k) for g in range(len(workers.groups))]
    between = {n: _pairs(workers, s, k, options) for n, s in workers.stored.items() if _shared(s)}
    problem, tables = _core.Problem(), _Tables()
    for g, variables in enumerate(options):
        costs = np.array([_inner_bytes(workers, g, v, k, options) for v in variables])
        problem.add_operator(workers.groups[g].group.name, tables.costs(problem, costs))
    for position, (name, pairs) in enumerate(between.items(), start=len(options)):
        problem.add_operator(name, tables.costs(problem, np.zeros(len(pairs))))
        for g in workers.stored[name].groups:
            table = _edge_bytes(workers, g, name, options[g], pairs, k)
            tables.edge(problem, g, position, table)
    solution = solve(problem)
    chosen = solution.choices[0].tolist()
    variables = tuple(v[c] for v, c in zip(options, chosen, strict=False))
    storages = {n: p[c] for (n, p), c in zip(between.items(), chosen[len(options) :], strict=True)}
    for name, stored in workers.stored.items():
        if not _shared(stored):
            g = stored.groups[0]
            storages[name] = _best_pair(workers, g, name, variables[g], k, options)[1]
    total = float(solution.time_s[0]) * workers.count
    return StepPlan(k, variables, storages, total, bool(solution.exact))


def divide(workers: Workers, plan: StepPlan) -> Workers:
    """What each of the k worker groups holds after the plan; all hold alike (Tofu §5.2, 3.)."""
    parts = [p.copy() for p in workers.parts]
    for p, v in zip(parts, plan.variables, strict=True):
        if v != NONE:
            p[v] *= plan.k
    stored = {n: _divided(workers, s, plan) for n, s in workers.stored.items()}
    return Workers(workers.groups, stored, workers.count * plan.k, parts)


def _divided(workers: Workers, stored: Stored, plan: StepPlan) -> Stored:
    forward, backward = plan.storages[stored.tensor.name]
    own, gradient_own = dict(stored.own), dict(stored.gradient_own)
    for g in stored.groups:
        split = Split(plan.variables[g], plan.k, workers.parts[g])
        uses = workers.groups[g].uses[stored.tensor.name]
        own[g] = own_after(split, uses, forward, own[g])
        gradient_own[g] = own_after(split, uses, backward, gradient_own[g])
    return Stored(
        stored.tensor,
        stored.groups,
        stored.has_gradient,
        _multiplied(stored.parts, forward, plan.k),
        _multiplied(stored.gradient_parts, backward, plan.k),
        own,
        gradient_own,
    )


def _multiplied(parts: list[int], dim: int, k: int) -> list[int]:
    return [p * k if d == dim else p for d, p in enumerate(parts)]


def _shared(stored: Stored) -> bool:
    return len(stored.groups) > 1


def _variables(workers: Workers, g: int, k: int) -> list[int]:
    """The variables of a group that can be split k times more."""
    legal, parts = workers.groups[g].legal, workers.parts[g]
    return [v for v in range(len(parts)) if legal(v, int(parts[v]) * k)] or [NONE]


def _pairs(
    workers: Workers, stored: Stored, k: int, options: list[list[int]]
) -> list[tuple[int, int]]:
    """Where a tensor and its gradient may lie."""
    forward = _storages(workers, stored, stored.parts, k, options)
    if stored.tensor.role == "parameter":
        # The optimizer is element-wise: it wants weight and gradient alike (Tofu §5.1).
        return [(f, f) for f in forward]
    if not stored.has_gradient:
        return [(f, f) for f in forward]
    return list(product(forward, _storages(workers, stored, stored.gradient_parts, k, options)))


def _storages(
    workers: Workers, stored: Stored, parts: list[int], k: int, options: list[list[int]]
) -> list[int]:
    """Dimensions that can be split k times more; of those that nobody wants one is enough."""
    dims = [d for d, e in enumerate(stored.tensor.shape) if shard_fits(e, parts[d] * k)]
    wanted = {
        use.fetched(v)
        for g in stored.groups
        for use in workers.groups[g].uses[stored.tensor.name]
        for v in options[g]
    }
    return [d for d in dims if d in wanted] or dims[:1] or [WHOLE]


def _moved(
    workers: Workers, g: int, name: str, variable: int, pair: tuple[int, int], k: int
) -> float:
    stored, uses = workers.stored[name], workers.groups[g].uses[name]
    split = Split(variable, k, workers.parts[g])
    total = tensor_bytes(split, uses, pair[0], stored.own[g])
    if stored.has_gradient:
        total += gradient_bytes(split, uses, pair[1], stored.gradient_own[g])
    return total


def _edge_bytes(
    workers: Workers,
    g: int,
    name: str,
    variables: list[int],
    pairs: list[tuple[int, int]],
    k: int,
) -> Floats:
    return np.array([[_moved(workers, g, name, v, p, k) for p in pairs] for v in variables])


def _best_pair(
    workers: Workers, g: int, name: str, variable: int, k: int, options: list[list[int]]
) -> tuple[float, tuple[int, int]]:
    """The cheapest storages of a tensor that only group g touches."""
    pairs = _pairs(workers, workers.stored[name], k, options)
    return min((_moved(workers, g, name, variable, p, k), p) for p in pairs)


def _inner_bytes(
    workers: Workers, g: int, variable: int, k: int, options: list[list[int]]
) -> float:
    """What a group moves by itself: parameters, tensors that stay inside, statistics."""
    member = workers.groups[g]
    total = statistics_bytes(Split(variable, k, workers.parts[g]), member.group.members)
    for name in member.uses:
        if not _shared(workers.stored[name]):
            total += _best_pair(workers, g, name, variable, k, options)[0]
    return total


class _Tables:
    """Costs and tables by content, so that the solver sees repeated layers as such."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def costs(self, problem: _core.Problem, time: Floats) -> int:
        key = ("costs", time.shape, time.tobytes())
        if key not in self._known:
            self._known[key] = problem.add_costs(np.zeros(len(time)), time)
        return self._known[key]

    def edge(self, problem: _core.Problem, source: int, target: int, moved: Floats) -> None:
        key = ("table", moved.shape, moved.tobytes())
        if key not in self._known:
            time = np.ascontiguousarray(moved[:, :, None])
            count = np.ones(moved.shape, dtype=np.uint8)
            self._known[key] = problem.add_table(np.zeros_like(time), time, count)
        rows, columns = (np.arange(n, dtype=np.uint32) for n in moved.shape)
        problem.add_edge(source, target, self._known[key], rows, columns)
