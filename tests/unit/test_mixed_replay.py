"""The step on devices of several kinds: that of one kind where all are alike, and its bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.execute.mixed import data_parallel
from harness.kinds import FAST, SLOW, mixed_search, profile
from harness.strategies import random_strategies
from shardwise.answers import Options
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Mesh, Overlap, Waiting
from shardwise.replay.bound import with_host
from shardwise.replay.mixed.bounds import MixedBound, MixedLinear, MixedMoments
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.search import Draft, Subject

ROUNDING = 1e-9
KINDS = {"fast": FAST, "slow": SLOW}
TWO_KINDS = [("a", "fast", 1, 2), ("b", "slow", 2, 2)]


@pytest.fixture(scope="module")
def of_two_kinds(gpt2: Graph) -> MixedSearch:
    return mixed_search(gpt2, profile(TWO_KINDS, KINDS), Options())


def rows(cost: GroupCosts) -> dict[tuple[object, ...], int]:
    """Returns the configurations that also devices of one kind have, by what they choose."""
    every = zip(cost.assignment, cost.zero, cost.zero_axes, cost.recompute, strict=True)
    keys = [(tuple(a), int(zero), int(axes), bool(again)) for a, zero, axes, again in every]
    plain = (cost.proportion == 0) & (cost.gradient_sum == 0)
    return {key: row for row, key in enumerate(keys) if plain[row]}


def common(
    one: SearchProblem, other: SearchProblem, count: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns random strategies that two problems have in common: choices and alternatives."""
    draw = np.random.default_rng(5)
    choices: list[list[np.ndarray]] = [[], []]
    for costs in zip(one.costs, other.costs, strict=True):
        known = [rows(cost) for cost in costs]
        both = [key for key in known[0] if key in known[1]]
        picked = [both[i] for i in draw.integers(0, len(both), count)]
        for column, of in zip(choices, known, strict=True):
            column.append(np.array([of[key] for key in picked], dtype=np.uint32))
    chosen = [np.stack(columns, axis=1) for columns in choices]
    edges = np.zeros((count, len(one.edges)), dtype=np.uint32)
    for e, (a, b) in enumerate(zip(one.edges, other.edges, strict=True)):
        assert (a.source, a.target, a.tensors) == (b.source, b.target, b.tensors)
        for p in range(count):
            cells = [
                edge.table.cell(of[p, edge.source], of[p, edge.target])
                for edge, of in zip((a, b), chosen, strict=True)
            ]
            kept = [
                edge.table.kept[cell][: edge.table.count[cell]].tolist()
                for edge, cell in zip((a, b), cells, strict=True)
            ]
            assert kept[0] == kept[1]
            edges[p, e] = draw.integers(len(kept[0]))
    return chosen, [edges, edges]


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_groups_that_are_alike_are_devices_of_one_kind(gpt2: Graph, micro_batches: int) -> None:
    """Times, peaks and sums are the same to the last bit."""
    hardware = replace(
        profile([("a", "fast", 1, 2), ("b", "fast", 1, 2)], {"fast": FAST}),
        packing=True,
        overlap=Overlap(0.3, 1.2, 1.5, "all_reduce", 2.0**20),
        waiting=Waiting((1e-4, 1e-2), (1e-5, 3e-4)),
    )
    several = mixed_search(gpt2, hardware, Options(), micro_batches)
    whole = hardware.of_group("a")
    wide = replace(whole, levels=(whole.levels[0], replace(whole.levels[1], size=2)))
    subject, mesh = Subject.of(gpt2), Mesh.build(wide, 4)
    one = Draft.of(subject, wide, mesh, Options(), quiet, micro_batches).joined(quiet)
    chosen, edges = common(one.problem, several.problem, 30)
    expected = one.replayer.replay(chosen[0], edges[0])
    replayed = several.replayer.replay(chosen[1], edges[1])
    for name in ("time_s", "device_s", "peak_bytes", "compute_s", "communication_s", "exposed_s"):
        assert (getattr(replayed, name) == getattr(expected, name)).all(), name
    sums = one.problem.summed(chosen[0], edges[0])
    for own, other in zip(several.problem.summed(chosen[1], edges[1]), sums, strict=True):
        assert (own == other).all()


def test_a_step_takes_as_long_as_its_busiest_device_and_no_longer_than_all_of_it(
    of_two_kinds: MixedSearch,
) -> None:
    replayer = of_two_kinds.mixed_replayer
    values = replayer.values(*random_strategies(of_two_kinds.problem, 60, np.random.default_rng(1)))
    _, _, time_s, busy_s = replayer.outcome(values)
    assert (busy_s.max(axis=1) <= time_s * (1 + ROUNDING)).all()
    assert (time_s <= values[0].sum(axis=1) * (1 + ROUNDING)).all()
    # Kinds differ: the bound is not met by all of them at once.
    assert (busy_s.min(axis=1) < busy_s.max(axis=1)).any()


def test_what_is_not_hidden_is_added_at_the_place_where_it_is_most(gpt2: Graph) -> None:
    """One kind computes while another communicates: that is no contention. Waiting comes on top."""
    plain = profile(TWO_KINDS, KINDS)
    taking_turns = replace(plain, overlap=Overlap(0.0, 2.0, 2.0, "all_reduce", 2.0**20))
    waiting = Waiting((1e-4, 1e-2), (1e-5, 3e-4))
    search, alone, late = (
        mixed_search(gpt2, hardware, Options(zero=(0,), recompute="never"))
        for hardware in (taking_turns, plain, replace(plain, waiting=waiting))
    )
    # The server's links are the busiest, and the other kind's devices.
    names = [s and s.name for s in search.problem.context.mesh.gradient_sums]
    server = data_parallel(search.problem, 0, gradient_sum=names.index("server a"), zero=0)
    choices = np.array([server, data_parallel(search.problem, 0, gradient_sum=0, zero=0)])
    strategies = choices, np.zeros((2, len(search.problem.edges)), dtype=np.int64)
    _, _, time_s, busy_s = search.mixed_replayer.outcome(search.mixed_replayer.values(*strategies))
    in_turn = (busy_s[:, 0::2] + busy_s[:, 1::2]).max(axis=1)
    replayed = search.replayer.replay(*strategies).device_s
    assert replayed == pytest.approx(np.maximum(time_s, in_turn), rel=1e-12)
    assert (replayed > time_s).any()
    busiest = busy_s[:, 0::2].max(axis=1) + busy_s[:, 1::2].max(axis=1)
    assert replayed[0] < busiest[0] * 0.99
    waits = late.replayer.replay(*strategies).device_s - alone.replayer.replay(*strategies).device_s
    assert (waits > 0.0).all()


def test_paths_and_moments_of_any_strategy_bound_all_others(of_two_kinds: MixedSearch) -> None:
    replayer, problem = of_two_kinds.mixed_replayer, of_two_kinds.problem
    choices, edges = random_strategies(problem, 40, np.random.default_rng(2))
    replayed = replayer.replay(choices, edges)
    durations = with_host(replayer.values(choices, edges)[0], replayer.host_times(choices, edges))
    bound, linear = MixedBound(replayer), MixedLinear(replayer)
    paths = bound.longest(durations)
    assert (paths.length_s <= replayed.time_s * (1 + ROUNDING)).all()
    for weights in (bound.sums(), *paths.weights, paths.weights.mean(axis=0)):
        assert (durations @ weights <= replayed.time_s * (1 + ROUNDING)).all()
        costs = linear.weighted(weights).of(problem, choices, edges)
        assert costs == pytest.approx(durations @ weights, rel=1e-6)
    moments = MixedMoments(replayer)
    for moment in moments.all_last_backward:
        held = moments.held(moment).of(problem, choices, edges)
        assert (held <= replayed.peak_bytes * (1 + ROUNDING)).all()
        assert held.max() > 0.0


def test_peaks_are_scaled_to_the_least_memory(of_two_kinds: MixedSearch) -> None:
    replayer = of_two_kinds.mixed_replayer
    choices = incumbents(of_two_kinds.problem)
    edges = np.zeros((len(choices), len(of_two_kinds.problem.edges)), dtype=np.uint32)
    replayed = replayer.replay(choices, edges)
    peaks = replayer.outcome(replayer.values(choices, edges))[0]
    fits = (peaks <= replayer.limits_bytes).all(axis=1)
    limit = of_two_kinds.limit_bytes
    assert limit == replayer.limits_bytes.min() == pytest.approx(11.0 * 2**30 / 1.1)
    assert (fits == (replayed.peak_bytes <= limit)).all()
    assert fits.any() and not fits.all()


def test_where_a_device_has_no_share_it_does_nothing(of_two_kinds: MixedSearch) -> None:
    """Its costs are 0 in every configuration without a share for it, and only there."""
    problem = of_two_kinds.problem
    for number, place in enumerate(problem.cluster.places):
        for cost in problem.places[number].costs:
            weights = [p.weights[place.block] for p in problem.cluster.proportions]
            absent = np.array(weights)[cost.proportion] == 0
            for name in ("parameter_bytes", "activation_bytes", "compute_s", "communication_s"):
                assert not getattr(cost, name)[absent].any()
    computing = [p.costs[0].compute_s > 0 for p in problem.places]
    assert np.any(computing, axis=0).all()
