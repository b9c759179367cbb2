"""Bounds on the step of several kinds: paths that wander, and parts of the strategies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.graph_builder import ADD, GraphBuilder, layers
from harness.kinds import FAST, SLOW, every_strategy, everything, mixed_search, profile
from harness.models.mixed_cases import mixed_case
from shardwise.answers import Options, plan
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.replay.bound import with_host
from shardwise.replay.mixed.cells import PlaceDurations
from shardwise.search.game import Bounding, Game, Met
from shardwise.search.mixed.branch import Branches, MixedBounding
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.mixed.search import MixedDraft, MixedSearch
from shardwise.search.search import Line, Proof, Subject

ROUNDING = 1e-9
KINDS = {"fast": FAST, "slow": SLOW}
ONE_EACH = [("a", "fast", 1, 1), ("b", "slow", 1, 1)]
FEW = 12
"""Random cases that are always run; the others are run by the full suite."""


@dataclass(frozen=True)
class Drawn:
    """Strategies of a search, with what their steps take."""

    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]
    durations_s: NDArray[np.float64]
    time_s: NDArray[np.float64]


@cache
def case_search(seed: int, micro_batches: int) -> MixedSearch:
    case = mixed_case(seed)
    subject = Subject.of(case.graph)
    draft = MixedDraft.of(subject, case.hardware, case.bundle, case.options, quiet, micro_batches)
    return draft.joined(quiet)


def draw(
    search: MixedSearch,
    bounding: MixedBounding,
    seed: int,
    count: int = 80,
    masks: list[NDArray[np.bool_]] | None = None,
) -> Drawn:
    """Returns random strategies, incumbents, and mixtures of two incumbents; with `masks` of
    allowed configurations alone."""
    random = np.random.default_rng(seed)
    problem, known = search.problem, incumbents(search.problem)
    width = len(problem.costs)
    anything = [[random.integers(len(cost.time_s)) for cost in problem.costs] for _ in range(count)]
    pairs = random.integers(len(known), size=(count, 2))
    mixed = np.where(random.random((count, width)) < 0.5, known[pairs[:, 0]], known[pairs[:, 1]])
    choices = np.concatenate([np.array(anything), mixed, known[pairs[:, 0]]]).astype(np.uint32)
    for group, mask in enumerate(masks or []):
        allowed = np.flatnonzero(mask)
        other = allowed[random.integers(len(allowed), size=len(choices))]
        choices[:, group] = np.where(mask[choices[:, group]], choices[:, group], other)
    edges = np.zeros((len(choices), len(problem.edges)), dtype=np.uint32)
    for number, edge in enumerate(problem.edges):
        row, column = edge.table.rows[choices[:, edge.source]], edge.table.columns
        edges[:, number] = random.integers(
            0, edge.table.count[row, column[choices[:, edge.target]]]
        )
    replayer = search.mixed_replayer
    values, host_s = replayer.values(choices, edges), replayer.host_times(choices, edges)
    durations = with_host(bounding.bound.durations(values[0], choices, edges), host_s)
    return Drawn(choices, edges, durations, replayer.replay_values(values, host_s).time_s)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("seed", [2, 4, 7])
def test_no_path_of_any_strategy_is_longer_than_the_step_of_another(
    seed: int, micro_batches: int
) -> None:
    search = case_search(seed, micro_batches)
    bounding = MixedBounding.of(search.mixed_replayer)
    assert len(bounding.wanderers) == len(search.problem.places)
    drawn = draw(search, bounding, seed)
    paths = bounding.bound.longest(drawn.durations_s)
    lengths = drawn.durations_s @ paths.weights.T
    assert (lengths <= drawn.time_s[:, None] * (1 + ROUNDING)).all()
    # Each is the longest of its own strategy, and its charges are those of owners.
    assert np.diagonal(lengths) == pytest.approx(paths.length_s)
    costs = bounding.linear.weighted(paths.weights[0])
    charged = costs.of(search.problem, drawn.choices, drawn.edge_choices)
    assert charged == pytest.approx(lengths[:, 0], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", [2, 4, 5, 7])
def test_no_path_of_a_part_is_longer_than_the_step_of_any_strategy_in_it(seed: int) -> None:
    """Parts in which some groups have one or two of the proportions."""
    search = case_search(seed, 1)
    replayer = search.mixed_replayer
    bounding = MixedBounding.of(replayer)
    branches = Branches(replayer, bounding, search.options, quiet)
    random = np.random.default_rng(seed)
    stays = 0
    for _ in range(12):
        masks = []
        for cost in search.problem.costs:
            some = random.choice(np.unique(cost.proportion), size=random.integers(1, 3))
            whole = random.random() < 0.5
            masks.append(
                np.ones(len(cost.time_s), bool) if whole else np.isin(cost.proportion, some)
            )
        of_part = list(branches.stays(masks))
        stays += len(of_part)
        drawn = draw(search, bounding, seed, count=20, masks=masks)
        paths = bounding.bound.within(of_part).longest(drawn.durations_s)
        lengths = drawn.durations_s @ paths.weights.T
        assert (lengths <= drawn.time_s[:, None] * (1 + ROUNDING)).all()
        assert (paths.length_s >= bounding.bound.longest(drawn.durations_s).length_s - 1e-15).all()
    assert stays > 0


def test_a_wanderer_counts_what_is_on_one_kind_alone_whole() -> None:
    """Every operator on one of two kinds, now this one, now that one: one after another."""
    graph = layers(4, 4096, 2048)
    hardware = profile(ONE_EACH, {"fast": FAST, "slow": FAST}, network=1e12)
    search = mixed_search(graph, hardware, Options(micro_batches=(1,)))
    bounding, problem = MixedBounding.of(search.mixed_replayer), search.problem
    alone = [
        [n for n, p in enumerate(problem.cluster.proportions) if p.support == (block,)]
        for block in range(2)
    ]
    choices = np.array(
        [
            [
                int(np.flatnonzero(np.isin(cost.proportion, alone[group // 2 % 2]))[0])
                for group, cost in enumerate(problem.costs)
            ]
        ],
        dtype=np.uint32,
    )
    edges = np.zeros((1, len(problem.edges)), dtype=np.uint32)
    values = search.mixed_replayer.values(choices, edges)
    time_s = search.mixed_replayer.replay(choices, edges).time_s
    count = len(problem.places) * search.mixed_replayer.tasks
    at_places = bounding.bound.longest(
        with_host(np.column_stack([values[0], np.zeros((1, count))]), np.zeros(1))
    )
    durations = bounding.bound.durations(values[0], choices, edges)
    wandering = bounding.bound.longest(with_host(durations, np.zeros(1)))
    assert at_places.length_s < 0.8 * time_s
    assert 0.9 * time_s < wandering.length_s <= time_s * (1 + ROUNDING)


@pytest.mark.parametrize("seed", [1, 6])
def test_durations_that_are_looked_up_are_those_that_are_worked_out(seed: int) -> None:
    search = case_search(seed, 2)
    drawn = draw(search, MixedBounding.of(search.mixed_replayer), seed, count=20)
    replayer = search.mixed_replayer
    values = replayer.values(drawn.choices, drawn.edge_choices)
    looked_up = PlaceDurations(replayer).of(drawn.choices, drawn.edge_choices)
    assert looked_up == pytest.approx(values[0], rel=1e-9, abs=1e-15)


def small_case(seed: int) -> tuple[Graph, Hardware]:
    """Returns a chain of one or two products, and two or three devices of two kinds."""
    random = Random(seed)
    builder = GraphBuilder(f"small-{seed}")
    width = random.choice((64, 512, 2048))
    data = builder.input("x", random.choice((2, 6, 64, 256)), width)
    shape = random.choice(("one", "two", "residual"))
    for i in range(1 if shape == "one" else 2):
        entering = data
        builder.parameter(f"w{i}", width, width)
        data = builder.linear(f"fc{i}", data, f"w{i}", f"h{i}")
        if shape == "residual" and i == 1:
            data = builder.both("add", ADD, data, entering, "r")
    slow = {name: figure / random.choice((1.0, 2.0, 4.0)) for name, figure in FAST.items()}
    slow["memory"] = random.choice((0.01, 16.0))
    hardware = profile(
        [("a", "fast", 1, 1), ("b", "slow", 1, random.choice((1, 1, 2)))],
        {"fast": FAST, "slow": slow},
        network=random.choice((1e8, 2e9, 1e11)),
        latency_s=random.choice((1e-6, 2e-5)),
    )
    return builder.graph(), hardware


def divided(search: MixedSearch, calls: int) -> tuple[Proof, Branches, Met]:
    """Returns what is proven with parts before time has been asked for so often."""
    bounding = MixedBounding.of(search.mixed_replayer)
    own = Bounding(bounding.bound, bounding.linear, bounding.moments)
    game = Game(search.mixed_replayer, own, search.options, quiet)
    known = incumbents(search.problem)
    edges = np.zeros((len(known), len(search.problem.edges)), dtype=np.uint32)
    outcome = game.play(game.met(known, edges), search.limit_bytes)
    left = calls

    def left_s() -> float:
        nonlocal left
        left -= 1
        return float(left)

    branches = Branches(search.mixed_replayer, bounding, search.options, quiet)
    proof = branches.divide(
        game, outcome.met, outcome.mix, search.limit_bytes, left_s, cutoff_s=inf
    )
    lines = tuple(query.line for query in game.queries)
    return Proof(lines=lines, parts=(proof,)), branches, outcome.met


@pytest.mark.parametrize(
    "seed",
    [n if n < FEW else pytest.param(n, marks=pytest.mark.full) for n in range(60)],
)
def test_no_strategy_of_small_cases_is_faster_than_the_bound(seed: int) -> None:
    """Against brute force: over all strategies, under the limit, under smaller ones, and without
    one."""
    graph, hardware = small_case(seed)
    options = Options(micro_batches=(1,), recompute="never", zero=(0,))
    search = mixed_search(graph, hardware, options)
    replayed = search.mixed_replayer.replay(*every_strategy(search))
    proof, branches, _ = divided(search, calls=200)
    assert proof.parts[0].parts and not branches.cancelled
    peaks = np.quantile(replayed.peak_bytes, [0.0, 0.1, 0.5])
    for limit in (search.limit_bytes, *peaks.tolist(), inf):
        fits = replayed.peak_bytes <= limit
        best_s = float(np.where(fits, replayed.time_s, inf).min())
        assert proof.bound_s(limit) <= best_s * (1 + ROUNDING)
    best_s = float(np.where(replayed.peak_bytes <= search.limit_bytes, replayed.time_s, inf).min())
    if best_s < inf:
        assert proof.bound_s(search.limit_bytes) >= 0.5 * best_s


def test_parts_hold_every_strategy_once() -> None:
    """The masks of the parts are a partition, whichever groups were divided."""
    search = mixed_search(layers(2, 6, 512), profile(ONE_EACH, KINDS), Options(micro_batches=(1,)))
    _, branches, _ = divided(search, calls=60)
    assert len(branches.closed) > 1
    drawn = draw(search, MixedBounding.of(search.mixed_replayer), 0)
    inside = np.zeros(len(drawn.choices), dtype=int)
    for part in branches.closed:
        inside += np.all(
            [mask[drawn.choices[:, group]] for group, mask in enumerate(part.masks)], axis=0
        )
    assert (inside == 1).all()


def test_two_kinds_with_next_to_no_network_are_not_twice_as_fast_as_one() -> None:
    """The mean of each kind alone keeps both busy; the bound does not believe it."""
    answer = plan(
        layers(6, 512, 2048),
        profile(ONE_EACH, {"fast": FAST, "slow": FAST}, network=1e6),
        "a=1,b=1",
        options=Options(micro_batches=(1,)),
    )
    assert answer.predicted.gap is not None
    assert answer.predicted.gap < 0.05


def test_a_proof_by_parts_is_that_of_the_least_part() -> None:
    parts = (Proof(lines=(Line(3.0, 0.0),)), Proof(lines=(Line(2.0, 0.0), Line(6.0, 1.0))))
    assert Proof(parts=parts).bound_s(5.0) == 2.0
    assert Proof(parts=parts).bound_s(2.0) == 3.0
    assert Proof(least_s=4.0, parts=parts).bound_s(2.0) == 4.0


def test_hardware_of_one_kind_has_no_wanderers() -> None:
    hardware = profile([("a", "fast", 1, 2)], {"fast": FAST})
    search = mixed_search(layers(2, 6, 512), hardware, Options(micro_batches=(1,)))
    places = len(search.problem.places)
    assert len(MixedBounding.of(search.mixed_replayer).wanderers) == (places if places > 1 else 0)
    assert everything(hardware).counts
