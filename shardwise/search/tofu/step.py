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

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from shardwise import _core
from shardwise.graph.graph import Tensor
from shardwise.search.tofu.traffic import (
    WHOLE,
    Split,
    gradient_bytes,
    own_after,
    statistics_bytes,
    tensor_bytes,
)
from shardwise.search.tofu.uses import Parts, Use
from shardwise.sharding.coarsen import Group
from shardwise.sharding.layout import Floats, shard_fits

NONE = -1
"""The choice of a group with no variable left to split: all k do all of its work."""

Solve = Callable[[_core.Problem], _core.Solution]
Check = Callable[[], None]
"""Raises if the search is cancelled or out of time; called between groups."""


@dataclass(frozen=True)
class TofuGroup:
    """A group of operators as the recursion sees it; groups of one `pattern` cost alike."""

    group: Group
    pattern: Hashable
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

    @property
    def elements(self) -> int:
        """Elements of one share."""
        return prod(-(-e // p) for e, p in zip(self.tensor.shape, self.parts, strict=True))

    @classmethod
    def whole(cls, tensor: Tensor, groups: tuple[int, ...], *, has_gradient: bool) -> Stored:
        ones = [1] * len(tensor.shape)
        own = dict.fromkeys(groups, 1.0)
        return cls(tensor, groups, has_gradient, ones, list(ones), own, dict(own))


@dataclass
class Workers:
    """What one worker group holds: the shapes that are left after the steps so far."""

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


def partition(workers: Workers, k: int, solve: Solve, check: Check) -> StepPlan:
    """Returns the plan of one step that moves the fewest bytes when every worker group is split in
    k."""
    step = Step(workers, k, check)
    problem, tables = _core.Problem(), _Tables()
    costs = [step.costs_of(g) for g in range(len(workers.groups))]
    for member, cost in zip(workers.groups, costs, strict=True):
        problem.add_operator(member.group.name, tables.costs(problem, cost.inner))
    node = {
        name: problem.add_operator(name, tables.costs(problem, np.zeros(len(pairs))))
        for name, pairs in step.pairs.items()
    }
    for g, cost in enumerate(costs):
        for name, moved in zip(step.shared(g), cost.edges, strict=True):
            tables.edge(problem, g, node[name], moved)
    solution = solve(problem)
    chosen = solution.choices[0].tolist()
    variables = [step.options[g][c] for g, c in enumerate(chosen[: len(costs)])]
    storages = {name: pairs[chosen[node[name]]] for name, pairs in step.pairs.items()}
    for g, variable in enumerate(variables):
        for name in step.inner(g):
            storages[name] = step.best_pair(g, name, variable)[1]
    total = float(solution.time_s[0]) * workers.count
    return StepPlan(k, tuple(variables), storages, total, bool(solution.exact))


def divide(workers: Workers, plan: StepPlan) -> Workers:
    """Returns what each of the k worker groups holds after the plan.

    All hold alike (Tofu §5.2, 3.).
    """
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


@dataclass(frozen=True)
class _GroupCosts:
    """Bytes of one group: by itself (K,), and per tensor that others touch too (K, pairs)."""

    inner: Floats
    edges: list[Floats]


class Step:
    """The choices of one step and what they move; equal groups are computed once."""

    def __init__(self, workers: Workers, k: int, check: Check) -> None:
        self.workers = workers
        self.k = k
        self.check = check
        self.options = [self._variables(g) for g in range(len(workers.groups))]
        self.pairs = {n: self._pairs(s) for n, s in workers.stored.items() if len(s.groups) > 1}
        self._known: dict[Hashable, _GroupCosts] = {}

    def shared(self, g: int) -> list[str]:
        """Returns tensors of a group that others make or read."""
        return [name for name in self.workers.groups[g].uses if name in self.pairs]

    def inner(self, g: int) -> list[str]:
        """Returns its parameters, and tensors that it alone makes and reads."""
        return [name for name in self.workers.groups[g].uses if name not in self.pairs]

    def costs_of(self, g: int) -> _GroupCosts:
        key = self._likeness(g)
        if key not in self._known:
            self.check()
            variables = self.options[g]
            self._known[key] = _GroupCosts(
                np.array([self._inner_bytes(g, v) for v in variables]),
                [
                    np.array([self._moved(g, name, v, self.pairs[name]) for v in variables])
                    for name in self.shared(g)
                ],
            )
        return self._known[key]

    def best_pair(self, g: int, name: str, variable: int) -> tuple[float, tuple[int, int]]:
        """Returns the cheapest storages of a tensor that only group g touches."""
        pairs = self._pairs(self.workers.stored[name])
        moved = self._moved(g, name, variable, pairs)
        best = int(moved.argmin())
        return float(moved[best]), pairs[best]

    def _likeness(self, g: int) -> Hashable:
        """Returns a key: groups of one pattern, split alike, with equal choices, cost alike."""
        member = self.workers.groups[g]
        history = tuple(
            (*s.parts, *s.gradient_parts, s.own[g], s.gradient_own[g])
            for s in (self.workers.stored[name] for name in member.uses)
        )
        choices = tuple(tuple(self.pairs.get(name, ())) for name in member.uses)
        return (member.pattern, self.workers.parts[g].tobytes(), history, choices)

    def _variables(self, g: int) -> list[int]:
        """Returns the variables of a group that can be split k times more."""
        legal, parts = self.workers.groups[g].legal, self.workers.parts[g]
        return [v for v in range(len(parts)) if legal(v, int(parts[v]) * self.k)] or [NONE]

    def _pairs(self, stored: Stored) -> list[tuple[int, int]]:
        """Returns where a tensor and its gradient may lie."""
        forward = self._storages(stored, stored.parts)
        if stored.tensor.role == "parameter" or not stored.has_gradient:
            # The optimizer is element-wise: it wants weight and gradient alike (Tofu §5.1).
            return [(f, f) for f in forward]
        return list(product(forward, self._storages(stored, stored.gradient_parts)))

    def _storages(self, stored: Stored, parts: list[int]) -> list[int]:
        """Returns dimensions that can be split k times more; of the unused ones, only the first."""
        shape = stored.tensor.shape
        dims = [d for d, e in enumerate(shape) if shard_fits(e, parts[d] * self.k)]
        wanted = {
            use.fetched(v)
            for g in stored.groups
            for use in self.workers.groups[g].uses[stored.tensor.name]
            for v in self.options[g]
        }
        return [d for d in dims if d in wanted] or dims[:1] or [WHOLE]

    def _moved(self, g: int, name: str, variable: int, pairs: list[tuple[int, int]]) -> Floats:
        """Returns what group g moves of a tensor and its gradient, for each of the storages
        `pairs`."""
        stored, uses = self.workers.stored[name], self.workers.groups[g].uses[name]
        split = Split(variable, self.k, self.workers.parts[g])
        own, gradient_own = stored.own[g], stored.gradient_own[g]
        forward = {f: tensor_bytes(split, uses, f, own) for f, _ in pairs}
        if not stored.has_gradient:
            return np.array([forward[f] for f, _ in pairs])
        backward = {b: gradient_bytes(split, uses, b, gradient_own) for _, b in pairs}
        return np.array([forward[f] + backward[b] for f, b in pairs])

    def _inner_bytes(self, g: int, variable: int) -> float:
        """Returns the bytes that a group moves by itself: parameters, inner tensors, statistics."""
        split = Split(variable, self.k, self.workers.parts[g])
        total = statistics_bytes(split, self.workers.groups[g].group.members)
        return total + sum(self.best_pair(g, name, variable)[0] for name in self.inner(g))


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
