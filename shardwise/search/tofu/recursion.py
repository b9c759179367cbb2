"""Tofu's recursion (Tofu §5.2): split all workers in k₁ groups, each of these in k₂, and so on.

    1. find the basic partition plan that moves the fewest bytes between k worker groups;
    2. one worker group is left with its shares and what it fetched;
    3. repeat on it until a worker group is one device; the others do alike.

With k = k₁ · k₂ · … · k_m, kᵢ ≥ kᵢ₊₁: the factors are the axes of the searched mesh, largest
first, outermost first among equals (the first steps go to the top of the hierarchy). Above 16
devices neighbouring axes of the searched mesh are merged (ADR 0003), and such an axis is one
step with k > 2. Only communication counts; neither time nor memory is considered.

The result is one strategy of the searched space, priced by the same cost model as all others:

- Steps name their axes. The space holds for every strategy the one whose axes of one level and
  size are in canonical order (ADR 0003); that one is priced, with as many shares of every
  variable at every level. `renamed_groups` counts the groups where the order changed.
- Tofu stores shares and fetches again for backward, so of the copies that an edge may keep it
  has the smallest.
- Tofu stores parameters in shares too. The space has no such choice yet, so a parameter that a
  group reads whole is kept whole: the bytes are the same or fewer, the memory is more than
  Tofu's. `stored_bytes` is what Tofu itself would store, 1/k of one device's.

Forward and backward of an operator share one split, as everywhere in this space; Tofu may split
them differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchEdge, SearchProblem
from shardwise.cost.legality import Legality, keeping_rows
from shardwise.cost.options import TOFU, Options, Progress, go_on
from shardwise.cost.space import SearchAxis, canonical
from shardwise.documents.common import TofuReport, TofuStep
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.search.solution import Solution
from shardwise.search.tofu.step import (
    NONE,
    StepPlan,
    Stored,
    TofuGroup,
    Workers,
    divide,
    partition,
)
from shardwise.search.tofu.uses import Use, uses_of
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class TofuSolution(Solution):
    """The one strategy that Tofu finds: its steps, the axis of each, and what Tofu would store."""

    steps: tuple[StepPlan, ...] = ()
    step_axes: tuple[str, ...] = ()
    renamed_groups: int = 0
    stored_bytes: float = 0.0

    def report(self) -> TofuReport:
        """Returns what Tofu itself minimised, for the answer's `search`."""
        return TofuReport(
            steps=[
                TofuStep(axis, plan.k, plan.total_bytes)
                for axis, plan in zip(self.step_axes, self.steps, strict=True)
            ],
            stored_bytes=self.stored_bytes,
            renamed_groups=self.renamed_groups,
        )


def tofu(problem: SearchProblem, options: Options, progress: Progress) -> TofuSolution:
    """Returns Tofu's strategy, with the memory and time that our cost model gives it.

    Raises `TimeoutError` and `RuntimeError` as `_core.solve` does.
    """
    solver = _Solver(options, progress, monotonic())
    axes = problem.context.mesh.axes
    workers = whole_graph(problem)
    named = np.full((len(workers.groups), len(axes)), NONE, dtype=np.int8)
    steps: list[StepPlan] = []
    for axis in step_order(axes):
        now = solver.at(len(steps) + 1, len(axes))
        plan = partition(workers, axes[axis].size, now.solve, now.check)
        workers = divide(workers, plan)
        named[:, axis] = plan.variables
        steps.append(plan)
    choices, renamed = _in_the_space(problem, named)
    memory, time, taken = _priced(problem, choices)
    return TofuSolution(
        np.array([memory]),
        np.array([time]),
        choices[None, :],
        taken[None, :],
        exact=False,
        epsilon=inf,
        time_lower_bound_s=None,
        status="heuristic",
        seconds=monotonic() - solver.start,
        method=TOFU,
        statistics={"steps": len(steps), "renamed_groups": renamed},
        steps=tuple(steps),
        step_axes=tuple(axes[axis].name for axis in step_order(axes)),
        renamed_groups=renamed,
        stored_bytes=stored_bytes(problem, workers),
    )


def step_order(axes: tuple[SearchAxis, ...]) -> list[int]:
    """Returns positions of the axes in the order of the steps: kᵢ ≥ kᵢ₊₁, outermost first."""
    return sorted(range(len(axes)), key=lambda a: (-axes[a].size, a))


def whole_graph(problem: SearchProblem) -> Workers:
    """Returns all workers as one group, before the first step."""
    patterns = problem.context.patterns
    groups = [
        TofuGroup(
            group,
            pattern.key,
            uses_of(group, patterns),
            keeping_rows(group.variables, Legality(patterns.graph, group).even),
        )
        for group, pattern in zip(problem.coarsened.groups, problem.patterns, strict=True)
    ]
    touching: dict[str, list[int]] = defaultdict(list)
    uses: dict[str, list[Use]] = defaultdict(list)
    for g, tofu_group in enumerate(groups):
        for name, here in tofu_group.uses.items():
            touching[name].append(g)
            uses[name] += here
    stored = {
        name: Stored.whole(
            patterns.graph.tensors[name],
            tuple(where),
            has_gradient=any(use.gradient for use in uses[name]),
        )
        for name, where in touching.items()
    }
    return Workers(groups, stored)


def stored_bytes(problem: SearchProblem, workers: Workers) -> float:
    """Returns what one device stores if all that training keeps is split (Tofu §5)."""
    context, total = problem.context, 0.0
    patterns, options = context.patterns, context.options
    kept = {
        patterns.storage_of(name)
        for name, stored in workers.stored.items()
        for g in stored.groups
        if patterns.kept_by(name, g)
    }
    for name, stored in workers.stored.items():
        item = DTYPE_BYTES[stored.tensor.dtype]
        if stored.tensor.role == "parameter":
            trained = patterns.carries_gradient(name)
            total += stored.elements * (
                options.training_bytes_per_element(item) if trained else item
            )
        elif name in kept:
            total += stored.elements * item
    inputs = {n for p in problem.patterns for n in p.kept if n not in workers.stored}
    total += sum(patterns.graph.tensors[n].size_bytes for n in inputs) / workers.count
    return total + problem.fixed_memory_bytes


@dataclass
class _Solver:
    """The solver with one objective, bytes in place of seconds, under the options' limits."""

    options: Options
    progress: Progress
    start: float
    stage: str = ""
    fraction: float = 0.0

    def at(self, step: int, steps: int) -> _Solver:
        self.stage, self.fraction = f"step {step} of {steps}", (step - 1) / steps
        return self

    def check(self) -> None:
        go_on(self.progress, self.stage, self.fraction)
        limit = self.options.time_limit_s
        if limit is not None and monotonic() - self.start > limit:
            raise TimeoutError(f"the time limit passed in {self.stage} of Tofu's recursion")

    def solve(self, problem: _core.Problem) -> _core.Solution:
        self.check()
        return _core.solve(
            problem,
            method="elimination",
            time_limit_s=self._left_s(),
            threads=self.options.threads,
            progress=lambda _, __: self.progress(self.stage, self.fraction),
        )

    def _left_s(self) -> float | None:
        limit = self.options.time_limit_s
        return None if limit is None else max(limit - (monotonic() - self.start), 1e-9)


def _in_the_space(
    problem: SearchProblem, named: NDArray[np.int8]
) -> tuple[NDArray[np.uint32], int]:
    """Returns the choice of every group, and how many have their axes in another order."""
    choices, renamed = [], 0
    for cost, row in zip(problem.costs, named, strict=True):
        wanted = canonical(problem.context.mesh.axes, row)
        if (wanted != row).any():
            renamed += 1
        choices.append(int(np.flatnonzero((cost.assignment == wanted).all(axis=1))[0]))
    return np.array(choices, dtype=np.uint32), renamed


def _priced(
    problem: SearchProblem, choices: NDArray[np.uint32]
) -> tuple[float, float, NDArray[np.uint32]]:
    """Returns a strategy's memory (bytes) and time (seconds), and every edge's alternative."""
    pairs = list(zip(problem.costs, choices, strict=True))
    memory = sum(float(cost.memory_bytes[k]) for cost, k in pairs)
    time = sum(float(cost.time_s[k]) for cost, k in pairs)
    taken = []
    for memory_bytes, time_s in _alternatives(problem.edges, choices):
        # The smallest copy; among equals the fastest.
        best = int(np.lexsort((time_s, memory_bytes))[0])
        memory += float(memory_bytes[best])
        time += float(time_s[best])
        taken.append(best)
    return memory, time, np.array(taken, dtype=np.uint32)


def _alternatives(
    edges: Iterable[SearchEdge], choices: NDArray[np.uint32]
) -> Iterable[tuple[Floats, Floats]]:
    for edge in edges:
        table = edge.table
        cell = (table.rows[choices[edge.source]], table.columns[choices[edge.target]])
        count = int(table.count[cell])
        yield table.memory_bytes[cell][:count], table.time_s[cell][:count]
