"""Bounds against brute force: every cut and strategy of small random models, within every peak."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from math import inf
from random import Random

import numpy as np
import pytest

from harness.graph_builder import GraphBuilder
from shardwise.answers import Options
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import NEAR_LIMIT, PipelineSearch
from shardwise.search.pipelines.staged import Staged
from shardwise.sharding.layout import Floats

STRATEGIES = 24
"""The most strategies of a model that are run; more are drawn."""

LIMITS = 4


def chain(random: Random) -> Graph:
    """Layers of random widths."""
    builder = GraphBuilder("chain")
    width = 2 ** random.randint(6, 12)
    data = builder.input("x", 2 ** random.randint(6, 13), width)
    for i in range(random.randint(2, 5)):
        wider = 2 ** random.randint(6, 12)
        weight = builder.parameter(f"w{i}", wider, width)
        data = builder.relu(f"act{i}", builder.linear(f"fc{i}", data, weight, f"h{i}"), f"a{i}")
        width = wider
    return builder.graph()


def every_strategy(found: Pipeline, random: Random) -> list[np.ndarray]:
    """The strategies of a problem, or some of them."""
    counts = [len(cost.time_s) for cost in found.search.problem.costs]
    if np.prod(counts) <= STRATEGIES:
        every = [np.array(rows) for rows in product(*map(range, counts))]
    else:
        every = [np.array([random.randrange(n) for n in counts]) for _ in range(STRATEGIES - 1)]
        every.append(found.choices)
    return [rows.astype(np.uint32) for rows in every]


def run(found: Pipeline, random: Random) -> tuple[Floats, Floats]:
    """Peaks and steps of every strategy with every cut."""
    units = len(found.units)
    own = StageReplayer(found.search.own_replayer, found.units.of_group)
    placed = [found.placement.stages_of(rank) for rank in range(found.ranks)]
    peaks, steps = [], []
    for choices in every_strategy(found, random):
        edges = np.zeros_like(found.edge_choices)
        for inner in combinations(range(1, units), found.stages - 1):
            bounds = (0, *inner, units)
            replayed = own.replay(choices, edges, bounds, placed)
            one = replace(
                found, bounds=bounds, choices=choices, edge_choices=edges, replayed=replayed
            )
            peaks.append(float(one.peak_bytes.max()))
            steps.append(one.step_s)
    return np.array(peaks), np.array(steps)


def nearest(seed: int) -> list[float]:
    """How near bounds of a random question come to the least step, at several limits; asserts that
    none is above it."""
    random = Random(seed)
    graph, stages = chain(random), random.choice([2, 2, 3, 4])
    gpus = stages * random.choice([1, 2])
    hardware = load_hardware(random.choice(["l4", "dgx-h100"]))
    schedule = random.choice(["1f1b", "1f1b-eager", "gpipe", "interleaved:2"])
    options = Options(micro_batches=(random.choice([4, 8]),), recompute="auto")
    search = PipelineSearch(graph, hardware, Devices.alike(gpus), options, quiet, [schedule])
    if stages not in search.counts():
        return []
    (question,) = search.questions([stages])
    staged = Staged(question, quiet, NEAR_LIMIT)
    (run_of,) = question.runs
    found = staged.fastest(staged.guided[0], run_of, staged.limit_bytes)
    assert found is not None
    peaks, steps = run(found, random)
    near = []
    for limit in np.quantile(peaks, np.linspace(0.0, 1.0, LIMITS), method="nearest").tolist():
        least_s = steps[peaks <= limit].min()
        bound_s = staged.least_within_s(limit)
        assert 0.0 < bound_s <= least_s * (1 + 1e-9)
        near.append(bound_s / least_s)
    # What one limit has found bounds all others.
    for limit in random.sample(peaks.tolist(), LIMITS):
        assert staged.least_within_s(limit, known=True) <= steps[peaks <= limit].min() * (1 + 1e-9)
    assert staged.least_within_s(inf) <= steps.min() * (1 + 1e-9)
    return near


@pytest.mark.parametrize("seed", range(4))
def test_no_small_pipeline_is_below_its_bound(seed: int) -> None:
    nearest(seed)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_no_pipeline_of_hundreds_of_models_is_below_its_bound(part: int) -> None:
    near = [one for seed in range(100 + 30 * part, 130 + 30 * part) for one in nearest(seed)]
    assert len(near) > 40
    assert np.median(near) > 0.7
