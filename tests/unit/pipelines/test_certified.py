"""What is proven of the points of a frontier: against random strategies within their peaks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from harness.graph_builder import layers
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.hardware.host import soft_maximum
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.bounds import updates_beside
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import Fastest, PipelineSearch

L4 = load_hardware("l4")
OPTIONS = Options(micro_batches=(8, 16), recompute="auto")
CHAIN = layers(10, 64, 2048)


@pytest.fixture(
    scope="module",
    params=["1f1b", pytest.param("1f1b,interleaved:2", marks=pytest.mark.full)],
)
def certified(whole: Graph, request: pytest.FixtureRequest) -> list[Fastest]:
    return PipelineSearch(
        whole, L4, Devices.alike(4), OPTIONS, quiet, request.param.split(",")
    ).certified([2, 4])


def drawn(
    found: Pipeline, own: StageReplayer, random: np.random.Generator, unlike: int
) -> Pipeline:
    """The pipeline with other cuts, and other configurations of some groups."""
    units, problem = len(found.units), found.search.problem
    inner = random.choice(range(1, units), found.stages - 1, replace=False)
    bounds = (0, *sorted(inner.tolist()), units)
    choices, edge_choices = found.choices.copy(), np.zeros_like(found.edge_choices)
    for group in random.choice(len(choices), unlike % len(choices), replace=False):
        choices[group] = random.choice(len(problem.costs[group].time_s))
    placed = [found.placement.stages_of(rank) for rank in range(found.ranks)]
    return replace(
        found,
        bounds=bounds,
        choices=choices,
        edge_choices=edge_choices,
        replayed=own.replay(choices, edge_choices, bounds, placed),
    )


def test_every_point_has_a_bound_below_its_step(certified: list[Fastest]) -> None:
    assert len(certified) > 3
    steps = [one.pipeline.step_s for one in certified if one.pipeline is not None]
    assert len(steps) == len(certified)
    for step_s, one in zip(steps, certified, strict=True):
        assert 0.5 * step_s < one.least_s <= step_s
    # More memory allows more.
    assert all(less.least_s >= more.least_s for less, more in pairwise(certified))


def test_no_strategy_within_the_peak_of_a_point_is_below_its_bound(
    certified: list[Fastest],
) -> None:
    random, met = np.random.default_rng(5), 0
    pipelines = [one.pipeline for one in certified if one.pipeline is not None]
    replayers: dict[int, StageReplayer] = {}
    for number in range(40):
        point = pipelines[number % len(pipelines)]
        if id(point.search) not in replayers:
            replayer = StageReplayer(point.search.own_replayer, point.units.of_group)
            replayers[id(point.search)] = replayer
        other = drawn(point, replayers[id(point.search)], random, number // 8)
        peak = float(other.peak_bytes.max())
        for one, pipeline in zip(certified, pipelines, strict=True):
            if peak <= float(pipeline.peak_bytes.max()):
                met += 1
                assert other.step_s >= one.least_s * (1 - 1e-9)
    assert met > 20, met


def test_bounds_are_near_where_memory_is_least(whole: Graph) -> None:
    """Leaner strategies run forward again, which paths of strategies without a limit do not
    charge: their bound is 21 % below this step."""
    options = replace(OPTIONS, micro_batches=(16,))
    least, *_ = PipelineSearch(whole, L4, Devices.alike(4), options, quiet, ["1f1b"]).certified([2])
    assert least.pipeline is not None
    assert least.least_s <= least.pipeline.step_s < 1.1 * least.least_s


def test_points_are_those_of_the_frontier() -> None:
    search = PipelineSearch(CHAIN, L4, Devices.alike(4), OPTIONS, quiet, ["1f1b"])
    points, certified = search.frontier([2, 4]), search.certified([2, 4])
    assert [p.step_s for p in points] == [one.pipeline.step_s for one in certified if one.pipeline]


def test_answers_have_gaps() -> None:
    answer = advice.frontier(CHAIN, L4, 4, OPTIONS, stages=[2, 4], schedules=["1f1b"])
    assert isinstance(answer.pipelines, list)
    gaps = [point.gap for point in answer.pipelines]
    assert all(isinstance(gap, float) and gap >= 0 for gap in gaps)
    if gaps:
        assert answer.pipelines_gap == max(gap for gap in gaps if isinstance(gap, float))
    curve = advice.curve(CHAIN, L4, 4, OPTIONS, stages=[2, 4], schedules=["1f1b"])
    for point in curve.points:
        if point.pipeline:
            assert isinstance(point.pipeline.gap, float) and point.pipeline.gap >= 0


def test_an_update_beside_a_host_adds_less_than_it_computes() -> None:
    """The chain waits for its host: its step is below one with the whole update behind it."""
    found = PipelineSearch(CHAIN, L4, Devices.alike(2), OPTIONS, quiet, ["1f1b"]).fastest([2])
    assert found.pipeline is not None
    assert found.least_s <= found.pipeline.step_s < 1.2 * found.least_s


def test_updates_beside_a_host_are_below_the_soft_maximums_difference() -> None:
    random = np.random.default_rng(2)
    for _ in range(200):
        passes, update, host = random.random((3, 5)) * random.choice([0.2, 1.0, 3.0], (3, 1))
        constant = float(random.random()) * 0.1
        first, every = updates_beside(passes, update, host, constant)
        for begin in range(5):
            for end in range(begin + 1, 6):
                r = slice(begin, end)
                # More time in passes, and fewer launches, than the least and the most.
                device, launched = passes[r].sum() * 1.1, 0.9 * (host[r].sum() + constant)
                step = soft_maximum(np.array([device, device + update[r].sum()]), launched)
                added = float(step[1] - step[0])
                assert added >= every[r].sum() * (1 - 1e-9)
                if begin == 0:
                    assert added >= first[r].sum() * (1 - 1e-9)
