"""What is asked of pipelines with one number of ranks and of micro-batches, and its guides."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.hardware import Mesh
from shardwise.search.pipelines.cuts import (
    Cuts,
)
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.rules import StageRules
from shardwise.search.pipelines.searched import Kind, Run
from shardwise.search.pipelines.stages import StageProblems, layouts_of, regular
from shardwise.search.pipelines.staircases import Staircases
from shardwise.search.pipelines.subject import Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft
from shardwise.search.solver_errors import solver_errors
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Question:
    """A number of ranks and of micro-batches on the devices of a mesh, and the schedules that they
    allow.

    No pipeline of it takes less than `least_s`. Of each unit, (U,), at least: `passes_s` is what
    forward and backward of a step compute, `backward_s` what backward of a micro-batch, `parts_s`
    what its forward, gradients of inputs and those of weights do each, where a schedule splits
    backward, and `update_s` what the update does, `host_s` what the host takes to launch a step.
    """

    mesh: Mesh
    units: Units
    rules: StageRules
    tied: Sequence[Tied]
    axes: StageAxes
    ranks: int
    draft: Draft
    runs: Sequence[Run]
    least_s: float
    passes_s: Floats
    backward_s: Floats
    parts_s: Sequence[Floats]
    update_s: Floats
    host_s: Floats


@dataclass(frozen=True)
class Guided:
    """The stages under one guide, and with layouts of guides only (`narrow`).

    By the kind of schedules: staircases, and (U + 1,) the seconds of a hop between any
    two stages, at most, by the unit before which the cut is, 0 where there is none.
    """

    stages: StageProblems
    narrow: StageProblems
    staircases: Mapping[Kind, Staircases]
    hops_s: Mapping[Kind, Sequence[float]]


@dataclass(frozen=True)
class Within:
    """Cuts, and the memory that each stage has, (stages,)."""

    cuts: Cuts
    within: Floats


def guides_of(
    problem: SearchProblem, question: Question, limit_bytes: float, shares: Sequence[float]
) -> Iterator[NDArray[np.int64]]:
    """Yields strategies of the whole model on the devices of a stage, with different layouts
    between units."""
    known: set[Hashable] = set()
    part = problem.sums
    for share in shares:
        target = max(share * question.ranks * limit_bytes - problem.fixed_memory_bytes, 0.0)
        with solver_errors():
            solution = _core.solve(
                part.problem, method="auto", epsilon=0.02, memory_target_bytes=target
            )
        fitting = np.flatnonzero(solution.memory_bytes <= target)
        point = int(fitting[-1]) if len(fitting) else 0
        guide = regular(problem, part.whole(solution.choices[point][None])[0])
        layouts = layouts_of(problem, question.units, guide)
        if layouts not in known:
            known.add(layouts)
            yield guide
