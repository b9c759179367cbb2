"""Guides against all strategies of classes, configurations in use, and stages that are alike."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.graph_builder import layers
from shardwise.answers import Options
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.pipelines import kinds
from shardwise.search.pipelines.guides import EPSILON, regular_strategies
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.pipelines.stages import StageProblems
from shardwise.search.pipelines.staircases import Staircases
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.search import Draft, mesh_of

L4 = load_hardware("l4")
OPTIONS = Options(micro_batches=(8,))


def priced(problem: SearchProblem, choices: NDArray[np.int64]) -> tuple[float, float]:
    """Returns memory and time of a strategy whose crossings are the fastest."""
    memory = sum(
        float(cost.memory_bytes[c]) for cost, c in zip(problem.costs, choices, strict=True)
    )
    time = sum(float(cost.time_s[c]) for cost, c in zip(problem.costs, choices, strict=True))
    for edge in problem.edges:
        cell = edge.table.cell(int(choices[edge.source]), int(choices[edge.target]))
        times = edge.table.time_s[cell][: edge.table.count[cell]]
        memory += float(edge.table.memory_bytes[cell][times.argmin()])
        time += float(times.min())
    return memory, time


@pytest.mark.parametrize("count", [4, 7])
@pytest.mark.parametrize("width", [64, 1024])
def test_guides_are_the_fastest_in_which_equal_groups_choose_alike(count: int, width: int) -> None:
    subject = StagedSubject.of(layers(count, 64, width)).subject
    options = Options(micro_batches=(8,), zero=(0, 3))
    draft = Draft.of(subject, L4, mesh_of(L4, 2), options, quiet, 8)
    problem = draft.joined(quiet).problem
    numbers: dict[int, int] = {}
    of_group = np.array([numbers.setdefault(id(cost), len(numbers)) for cost in problem.costs])
    rows = [
        np.flatnonzero(next(c for c in problem.costs if id(c) == key).summed) for key in numbers
    ]
    assert len(numbers) < len(problem.costs) and np.prod([len(own) for own in rows]) < 20_000
    every = [np.array(one)[of_group] for one in product(*rows)]
    points = [priced(problem, choices) for choices in every]
    memories = sorted(memory for memory, _ in points)
    targets = [memories[-1] * 2, memories[len(memories) // 2], memories[len(memories) // 8]]
    guides = regular_strategies(problem, [*targets, memories[0] / 2])
    for target, choices in zip(targets, guides[:-1], strict=True):
        assert all(len(set(choices[of_group == n].tolist())) == 1 for n in range(len(numbers)))
        memory, time = priced(problem, choices)
        best = min(time for memory, time in points if memory <= target)
        assert memory <= target * (1 + 1e-9)
        assert best * (1 - 1e-9) <= time <= best * (1 + EPSILON) * (1 + 1e-9)
    # Where nothing fits, it is a strategy with the least memory.
    assert priced(problem, guides[-1])[0] == pytest.approx(memories[0], rel=EPSILON)


def test_stages_over_configurations_in_use_are_about_as_fast(
    gpt2: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frontier() -> list[tuple[float, float]]:
        searched = PipelineSearch(gpt2, L4, Devices.alike(4), OPTIONS, quiet, ["1f1b"])
        return [(p.scaled_peak_bytes, p.step_s) for p in searched.frontier([2])]

    def best(points: list[tuple[float, float]], peak: float) -> float:
        return min((step for own, step in points if own <= peak), default=np.inf)

    exact = frontier()
    tried: list[float] = []
    of_units = StageProblems.of_units

    def counted(self: StageProblems, kept: int, epsilon: float) -> dict[int, set[int]]:
        used = of_units(self, kept, epsilon)
        costs = {id(cost): cost for cost in self.problem.costs}
        tried.append(sum(map(len, used.values())) / sum(len(costs[c].time_s) for c in used))
        return used

    monkeypatch.setattr(StageProblems, "of_units", counted)
    monkeypatch.setattr(kinds, "FEW", 0)
    some = frontier()
    assert tried and max(tried) < 0.5
    for peak, step in exact:
        assert best(some, peak * 1.02) <= step * 1.02


def test_ranges_of_equal_units_are_alike_and_others_are_not(stages: StageProblems) -> None:
    staircases = Staircases(stages, 4)
    units = len(stages.units)
    of_unit = [stages.kind(unit, unit + 1) for unit in range(units)]
    random = Random(3)
    some = 0
    for _ in range(20):
        middle = random.randint(2, units - 2)
        first = np.array(sorted(random.sample(range(middle), min(5, middle))))[:, None]
        last = np.array(sorted(random.sample(range(middle, units + 1), 3)))[None, :]
        last = np.maximum(last, first.max() + 1)
        numbers = staircases.alike(first, last)
        of = {
            (row, column): (
                stages.incoming_bytes(int(i)) if i else 0.0,
                tuple(of_unit[int(i) : int(j)]),
            )
            for row, i in enumerate(first.ravel())
            for column, j in enumerate(last.ravel())
        }
        for one, other in product(of, of):
            assert (numbers[one] == numbers[other]) == (of[one] == of[other])
            some += one != other and of[one] == of[other]
    assert some > 20
