"""What is proven of pipelines: against all cuts, random strategies and stages that just fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from random import Random

import numpy as np
import pytest

from harness.cases import every
from harness.tiers import examples
from shardwise.answers import Options
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.replay.stages import StageReplayer
from shardwise.search.elimination import cheapest
from shardwise.search.pipelines.bounds import least_step_s, least_windowed, ranges_of
from shardwise.search.pipelines.ranges import RangeBounds
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.pipelines.searched import SCHEDULES, kept
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units

L4 = load_hardware("l4")
H100 = load_hardware("dgx-h100")
OPTIONS = Options(micro_batches=(8,))


def every_cut(units: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]


def test_no_pipeline_is_below_the_bound() -> None:
    """Of random units: every cut and schedule, run with the seconds of its stages."""

    def holds(seed: int) -> None:
        random = Random(seed)
        units, stages = random.randint(3, 6), random.randint(2, 3)
        batches = random.randint(4, 7)
        forward = [random.uniform(0.1, 2) for _ in range(units)]
        backward = [random.uniform(0.1, 4) for _ in range(units)]
        update = np.array([random.uniform(0, 1) for _ in range(units)])
        passes = ranges_of(np.add(forward, backward))
        bound = least_step_s([passes] * stages, update, batches)
        for name in SCHEDULES:
            windows_of = [1] * stages if name == "gpipe" else kept(name, stages, batches)
            windowed = least_windowed(
                [passes] * stages, np.array(backward), update, windows_of, batches
            ).step_s
            steps = []
            for bounds in every_cut(units, stages):
                ranges = [slice(*pair) for pair in pairwise(bounds)]
                times = [StageTimes(sum(forward[r]), sum(backward[r]), 0.0) for r in ranges]
                run = simulate(schedule(name, ranks=stages, micro_batches=batches), times)
                ends = [spans[-1][1] for spans in run.spans_s]
                steps.append(
                    max(end + update[r].sum() for end, r in zip(ends, ranges, strict=True))
                )
            assert max(bound, windowed) <= min(steps) * (1 + 1e-9)
            assert max(bound, windowed) >= 0.7 * min(steps)

    every(range(examples(15, 100)), holds)


def test_no_pipeline_of_unlike_stages_is_below_the_bound() -> None:
    """As above, with units that take other times in each stage, as on other kinds of devices."""

    def holds(seed: int) -> None:
        random = Random(seed)
        units, stages, batches = random.randint(3, 6), random.randint(2, 3), random.randint(4, 7)
        forward, backward = (
            np.array([[random.uniform(0.1, 2) for _ in range(units)] for _ in range(stages)])
            * np.array([[random.uniform(0.5, 2)] for _ in range(stages)])
            for _ in range(2)
        )
        update = np.array([[random.uniform(0, 1) for _ in range(units)] for _ in range(stages)])
        passes = [ranges_of(of_stage) for of_stage in forward + backward]
        for name in SCHEDULES:
            windows_of = [1] * stages if name == "gpipe" else kept(name, stages, batches)
            bound = max(
                least_step_s(passes, update[0], batches),
                least_windowed(passes, backward, update[0], windows_of, batches).step_s,
            )
            steps = []
            for bounds in every_cut(units, stages):
                ranges = [slice(*pair) for pair in pairwise(bounds)]
                times = [
                    StageTimes(float(forward[s, r].sum()), float(backward[s, r].sum()), 0.0)
                    for s, r in enumerate(ranges)
                ]
                run = simulate(schedule(name, ranks=stages, micro_batches=batches), times)
                ends = [spans[-1][1] for spans in run.spans_s]
                steps.append(
                    max(
                        e + update[s, r].sum()
                        for s, (e, r) in enumerate(zip(ends, ranges, strict=True))
                    )
                )
            assert bound <= min(steps) * (1 + 1e-9)
            assert bound >= 0.6 * min(steps)

    every(range(examples(15, 50)), holds)


def test_more_stages_than_units_take_for_ever() -> None:
    two = ranges_of(np.ones(2))
    assert least_step_s([two] * 3, np.zeros(2), 4) == inf
    assert least_windowed([two] * 3, np.ones(2), np.zeros(2), [3, 2, 1], 4).step_s == inf


def test_windowed_bounds_are_the_least_of_all_cuts() -> None:

    def holds(seed: int) -> None:
        random = Random(seed)
        units, stages, batches = random.randint(2, 6), random.randint(1, 3), random.randint(4, 9)
        stages = min(units, stages)
        backward, update = (np.array([random.random() for _ in range(units)]) for _ in range(2))
        windows_of = [random.randint(1, batches) for _ in range(stages)]
        # Each stage has bounds of its own, and may not have some ranges.
        ranges_s = [
            np.where(
                np.array([[random.random() < 0.2] * (units + 1) for _ in range(units + 1)]),
                inf,
                ranges_of(backward + np.array([random.random() for _ in range(units)])),
            )
            for _ in range(stages)
        ]
        least, best = inf, ()
        for bounds in every_cut(units, stages):
            times = [of[pair] for of, pair in zip(ranges_s, pairwise(bounds), strict=True)]
            ahead = [
                (batches - k) * t + (k - 1) * backward[slice(*pair)].sum() if t < inf else inf
                for k, t, pair in zip(windows_of, times, pairwise(bounds), strict=True)
            ]
            step_s = sum(times) + max(ahead) + update[: bounds[1]].sum()
            if step_s < least:
                least, best = step_s, bounds
        found = least_windowed(ranges_s, backward, update, windows_of, batches)
        assert found.step_s == pytest.approx(least)
        assert found.cuts == best

    every(range(examples(25, 100)), holds)


@pytest.mark.parametrize("hardware", ["l4", "dgx-h100"])
def test_no_stage_is_below_what_its_units_take_at_least(
    staged: StagedSubject, units: Units, whole: Graph, hardware: str
) -> None:
    """Of strategies and cuts drawn at random; GPT-2 waits for its host on H100s."""
    search = PipelineSearch(
        whole, load_hardware(hardware), Devices.alike(4), OPTIONS, quiet, staged=staged
    )
    (question,) = search.questions([2])
    problem = question.first.draft.joined(quiet)
    least = RangeBounds(problem, units, quiet).passes_s
    own = StageReplayer(problem.own_replayer, units.of_group)
    sums = OwnerCosts(
        0.0,
        [cost.time_s for cost in problem.problem.costs],
        [edge.table.time_s for edge in problem.problem.edges],
    )
    fast = cheapest(problem.problem, sums)
    random, tightest = np.random.default_rng(3), inf
    for number in range(40):
        choices, edge_choices = fast.choices.copy(), fast.edge_choices.copy()
        for group in random.choice(len(choices), number, replace=False):
            choices[group] = random.choice(len(problem.problem.costs[group].time_s))
            for edge, ends in enumerate(problem.problem.edges):
                if group in (ends.source, ends.target):
                    edge_choices[edge] = 0
        cut = int(random.integers(1, len(units)))
        replayed = own.replay(choices, edge_choices, (0, cut, len(units)))
        passes = replayed.forward_s + replayed.backward_s
        bounds = np.array([least[0, cut], least[cut, -1]])
        assert (passes >= bounds * (1 - 1e-9)).all()
        computed = [question.first.backward_s[:cut].sum(), question.first.backward_s[cut:].sum()]
        assert (replayed.backward_s >= np.array(computed) * (1 - 1e-9)).all()
        tightest = min(tightest, float((passes / bounds).min()))
    assert tightest < 1.03


def test_no_stage_that_fits_is_below_its_bound_within_memory(
    staged: StagedSubject, units: Units, whole: Graph
) -> None:
    """At several prices of memory, each stage within a limit that its own peak just meets."""
    options = replace(OPTIONS, recompute="auto")
    search = PipelineSearch(whole, L4, Devices.alike(4), options, quiet, staged=staged)
    (question,) = search.questions([2])
    problem = question.first.draft.joined(quiet)
    costs, edges = problem.problem.costs, problem.problem.edges
    seconds = [cost.time_s for cost in costs], [edge.table.time_s for edge in edges]
    bounds = RangeBounds(problem, units, quiet)
    own = StageReplayer(problem.own_replayer, units.of_group)
    cut, kept_by, gains = 7, kept("1f1b", 2, 8), []
    measured: list[tuple[int, tuple[int, int], float, float]] = []
    for price in np.geomspace(3e-11, 1e-8, 8).tolist():
        charged = OwnerCosts(
            0.0,
            [
                t + price * (c.parameter_bytes + 2 * c.activation_bytes)
                for t, c in zip(seconds[0], costs, strict=True)
            ],
            [
                t + price * 2 * edge.table.memory_bytes
                for t, edge in zip(seconds[1], edges, strict=True)
            ],
        )
        lean = cheapest(problem.problem, charged)
        replayed = own.replay(lean.choices, lean.edge_choices, (0, cut, len(units)))
        peaks = replayed.peak_bytes + (np.array(kept_by) - 1) * replayed.kept_bytes
        passes = replayed.forward_s + replayed.backward_s
        for stage, units_of in enumerate(((0, cut), (cut, len(units)))):
            bounds.ask(*units_of, kept_by[stage], float(peaks[stage]))
            least = bounds.within(kept_by, float(peaks[stage]))[stage][units_of]
            assert passes[stage] >= least * (1 - 1e-9)
            gains.append(least / bounds.passes_s[units_of])
            measured.append((stage, units_of, float(peaks[stage]), float(passes[stage])))
    assert max(gains) > 1.2
    # What one limit has found bounds all others, and is no bound with one more kept micro-batch.
    more, raised = RangeBounds(problem, units, quiet), 0
    for stage, units_of, peak, passes_s in measured:
        assert passes_s >= bounds.within(kept_by, peak)[stage][units_of] * (1 - 1e-9)
        more.ask(*units_of, kept_by[stage] + 1, peak)
        raised += passes_s < more.within([count + 1 for count in kept_by], peak)[stage][units_of]
    assert raised
