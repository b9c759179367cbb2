"""Cuts: the programme against all cuts, and moving them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import inf
from operator import mul, sub
from random import Random

import numpy as np
import pytest

from harness.cases import every
from harness.tiers import examples, some
from shardwise.search.pipelines.cuts import FINE, Cuts, best_cuts, least_slack, moved, windows


def every_cut(units: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]


@dataclass(frozen=True)
class RandomPipeline:
    """Random times of all stages, some of which do not fit."""

    units: int
    stages: int
    repeats: list[float]
    times: dict[tuple[int, int, int], float]
    hops: list[list[float]]
    weights: list[list[float]]

    @classmethod
    def of(cls, seed: int) -> RandomPipeline:
        random = Random(seed)
        units = random.randint(2, 8)
        stages = min(units, random.randint(2, 4))
        held, limit = [random.random() for _ in range(units)], 0.75 * units
        times = {
            (s, i, j): inf if sum(held[i:j]) * (stages - s) > limit else random.random() * (j - i)
            for s, i, j in product(range(stages), range(units), range(units + 1))
        }
        hops = [[random.random() * 0.2 for _ in range(units + 1)] for _ in range(stages)]
        batches = random.choice([1, 4, 30])
        repeats = [batches * random.uniform(0.7, 1.0) for _ in range(stages)]
        # Zeros leave all cuts to the programme.
        weights = [[0.0] * units for _ in range(stages)]
        return cls(units, stages, repeats, times, hops, weights)

    def step_s(self, bounds: tuple[int, ...]) -> float:
        of = [self.times[s, i, j] for s, (i, j) in enumerate(pairwise(bounds))]
        if max(of) == inf:
            return inf
        hops_s = sum(self.hops[stage][cut] for stage, cut in enumerate(bounds[1:-1], 1))
        return float(sum(of) + 2 * hops_s + max(map(mul, self.repeats, of)))

    def found(self) -> Cuts | None:
        ends = windows(self.weights, self.stages, 0.5)
        return best_cuts(
            lambda *stage: self.times[stage], self.hops, ends, self.weights, self.repeats, 0.5
        )


def test_cuts_are_the_best_of_all() -> None:

    def holds(seed: int) -> None:
        of = RandomPipeline.of(seed)
        best = min(of.step_s(bounds) for bounds in every_cut(of.units, of.stages))
        found = of.found()
        assert (found.step_s if found else inf) == pytest.approx(best)
        if found:
            assert of.step_s(found.bounds) == pytest.approx(best)

    every(range(examples(60, 300)), holds)


def test_a_stage_that_computes_little_says_nothing_of_others() -> None:
    """An embedding takes sixteen times what its arithmetic does; layers do not."""
    weights = [0.05, *[1.0] * 12]
    ends = windows(weights, 4, 0.6)
    cuts = best_cuts(
        lambda _, i, j: sum(weights[i:j]) + 0.75 * (i == 0),
        [[0.0] * 14] * 4,
        ends,
        weights,
        [9.0] * 4,
        0.6,
    )
    assert cuts is not None and cuts.bounds == (0, 4, 7, 10, 13)


@pytest.mark.parametrize("seed", some(range(12), lambda seed: seed < 3))
def test_cuts_of_many_units_are_within_a_unit_of_the_best(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    units, stages = random.randint(150, 400), random.randint(2, 5)
    weights = [random.uniform(0.9, 1.1) for _ in range(units)]
    before = np.concatenate([[0.0], np.cumsum(weights)])
    rates = [random.uniform(1.0, 1.3) for _ in range(stages)]
    most = random.choice([0.6, 1.15]) * units / stages * 1.3

    def stage_s(stage: int, first: int, last: int) -> float:
        if (last - first) * (1.0 - 0.05 * stage) > most:
            return inf
        return float(before[last] - before[first]) * rates[stage]

    hops = [[0.1] * (units + 1)] * stages
    found = {}
    for fine in (FINE, units):
        monkeypatch.setattr("shardwise.search.pipelines.cuts.FINE", fine)
        ends = windows(weights, stages, 0.6)
        found[fine] = best_cuts(stage_s, hops, ends, weights, [15.0] * stages, 0.6)
    near, best = found[FINE], found[units]
    assert (near is None) == (best is None)
    if near is not None and best is not None:
        longest = 1.1 * 1.3
        assert best.step_s <= near.step_s * (1.0 + 1e-9)
        assert near.step_s <= best.step_s + (15 + 1) * longest


def test_of_stages_that_are_alike_one_is_asked_for() -> None:
    units, stages = 200, 4
    asked: dict[bool, list[int]] = {False: [], True: []}

    def found(*, told: bool) -> Cuts | None:
        def stage_s(stage: int, first: int, last: int) -> float:
            asked[told].append(last - first)
            return inf if last - first > 52 + stage else (last - first) + 0.5

        ends = windows([1.0] * units, stages, 0.6)
        hops, repeats = [[0.1] * (units + 1)] * stages, [30.0, 29.0, 28.0, 27.0]
        alike = (lambda _, first, last: last - first) if told else None
        return best_cuts(stage_s, hops, ends, [1.0] * units, repeats, 0.6, alike)

    best, same = found(told=False), found(told=True)
    assert best is not None and same is not None
    assert same.step_s == pytest.approx(best.step_s)
    assert len(asked[True]) < len(asked[False]) / 4


def test_cuts_are_moved_until_no_neighbour_is_faster() -> None:
    goal = (0, 5, 9, 13, 16)

    def away(bounds: tuple[int, ...]) -> float:
        return float(
            1.0
            + sum(abs(a - b) for a, b in pairwise(map(sub, bounds, goal)))
            + abs(bounds[1] - goal[1])
        )

    assert moved((0, 2, 4, 6, 16), away) == goal
    assert moved((0, 16), away) == (0, 16)


def test_windows_hold_the_even_cuts_and_leave_out_lopsided_ones() -> None:
    ends = windows([1.0] * 32, 4, 0.5)
    assert [8 in ends[0], 16 in ends[1], 24 in ends[2], list(ends[3])] == [True, True, True, [32]]
    assert 20 not in ends[0] and 3 not in ends[1]


def test_windows_of_one_heavy_unit() -> None:
    ends = windows([1.0, 100.0, 1.0, 1.0], 4, 0.5)
    assert [list(window) for window in ends] == [[1], [2], [3], [4]]


def test_a_stage_on_slower_devices_may_have_fewer_units() -> None:
    """Devices that take three times as long: an even share is a quarter of the others'."""
    fast, slow = [1.0] * 32, [3.0] * 32
    ends = windows([fast, slow], 2, 0.2)
    assert 24 in ends[0] and 16 not in ends[0]
    ends = windows([slow, fast], 2, 0.2)
    assert 8 in ends[0] and 16 not in ends[0]


def test_cuts_are_even_in_seconds_where_devices_differ() -> None:
    by_stage = [[1.0] * 32, [3.0] * 32]
    cuts = best_cuts(
        lambda stage, i, j: by_stage[stage][0] * (j - i),
        [[0.0] * 33] * 2,
        windows(by_stage, 2, 0.6),
        by_stage,
        [20.0, 20.0],
        0.6,
    )
    assert cuts is not None and cuts.bounds == (0, 24, 32)


def test_a_unit_that_is_most_of_all_may_have_others_beside_it() -> None:
    weights = np.array([1.0, 1.0, 40.0, 1.0, 1.0, 1.0])
    assert least_slack(weights, 2) == pytest.approx(42.0 / 22.5 - 1.0)
    assert least_slack(np.ones(4), 2) == 0.0
    slack = 1.1 * least_slack(weights, 2)
    ends = windows(weights, 2, slack)

    def stage_s(stage: int, first: int, last: int) -> float:
        return float(weights[first:last].sum())

    hops_s = [[0.0] * 7] * 2
    assert best_cuts(stage_s, hops_s, windows(weights, 2, 0.6), weights, [3.0] * 2, 0.6) is None
    cuts = best_cuts(stage_s, hops_s, ends, weights, [3.0] * 2, slack)
    assert cuts is not None and cuts.bounds in [(0, 2, 6), (0, 3, 6)]
