"""Answers on devices of several kinds: against every strategy, and against each other."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from harness.graph_builder import layers, mlp
from harness.kinds import FAST, SLOW, every_strategy, everything, mixed_search, profile
from harness.tiers import some
from shardwise.answers import Options, explain, frontier, plan
from shardwise.documents.plan import Plan
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, load_hardware
from shardwise.search.chosen import fastest
from shardwise.search.replayed import search_replayed
from shardwise.search.search import Infeasible, Subject

ROUNDING = 1e-9
KINDS = {"fast": FAST, "slow": SLOW}
ONE_EACH = [("a", "fast", 1, 1), ("b", "slow", 1, 1)]
ONE_BATCH = Options(micro_batches=(1,))


@pytest.mark.parametrize(
    ("batch", "width"),
    some([(6, 512), (8, 4096), (64, 1024), (2, 8192)], lambda case: case == (6, 512)),
)
def test_no_strategy_is_faster_than_the_bound_and_few_are_faster_than_the_answer(
    batch: int, width: int
) -> None:
    """Against brute force over all configurations of two layers."""
    graph, hardware = layers(2, batch, width), profile(ONE_EACH, KINDS, network=4e9)
    options = Options(micro_batches=(1,), recompute="never", zero=(0, 1))
    search = mixed_search(graph, hardware, options)
    replayed = search.replayer.replay(*every_strategy(search))
    fits = replayed.peak_bytes <= search.limit_bytes
    best_s = float(np.where(fits, replayed.time_s, inf).min())
    found = search_replayed(Subject.of(graph), hardware, everything(hardware), options)
    answer = fastest(found)
    assert answer is not None
    bound_s = min(s.proof.bound_s(s.limit_bytes) for s in found if s.proof is not None)
    assert bound_s <= best_s * (1 + ROUNDING)
    assert best_s * (1 - ROUNDING) <= answer.replayed_time_s <= best_s * 1.01


def fastest_s(graph: Graph, hardware: Hardware) -> float:
    return plan(
        graph, hardware, str(everything(hardware)), options=ONE_BATCH
    ).predicted.replayed_time_s


def test_more_of_a_kind_is_never_worse() -> None:
    graph = layers(3, 64, 2048)
    plain = fastest_s(graph, profile(ONE_EACH, KINDS))
    twice = {name: 2 * figure for name, figure in FAST.items()}
    assert fastest_s(graph, profile(ONE_EACH, {"fast": twice, "slow": SLOW})) <= plain
    assert fastest_s(graph, profile(ONE_EACH, KINDS, network=8e9)) <= plain
    # The order in which groups are listed says nothing.
    assert fastest_s(graph, profile(ONE_EACH[::-1], KINDS)) == pytest.approx(plain, rel=1e-3)


def test_a_model_goes_where_it_is_fastest() -> None:
    """With no network to speak of all on the fast device, with a good one on both."""
    graph = layers(6, 512, 2048)
    hardware = profile(ONE_EACH, KINDS, network=1e6)
    apart = plan(graph, hardware, "a=1,b=1", options=ONE_BATCH)
    alone = plan(graph, hardware.of_group("a"), 1, options=ONE_BATCH)
    assert apart.predicted.replayed_time_s == pytest.approx(alone.predicted.replayed_time_s)
    shared = plan(graph, profile(ONE_EACH, KINDS, network=1e11), "a=1,b=1", options=ONE_BATCH)
    assert shared.predicted.replayed_time_s < 0.8 * alone.predicted.replayed_time_s
    weights = [p.weights for p in cluster_of(shared).proportions]
    used = {
        weights[g.proportion][0] > weights[g.proportion][1]
        for g in shared.groups
        if g.compute_s > 1e-4
    }  # type: ignore[index]
    assert used == {True}


def cluster_of(answer: Plan):  # type: ignore[no-untyped-def]
    assert answer.cluster
    return answer.cluster


@pytest.fixture(scope="module")
def answer() -> Plan:
    hardware = profile([("a", "fast", 1, 2), ("b", "slow", 2, 2)], KINDS, network=1e11)
    return plan(layers(6, 8192, 2048), hardware, "a=2,b=4", options=ONE_BATCH)


def test_a_plan_says_where_everything_is(answer: Plan) -> None:
    cluster = cluster_of(answer)
    assert (answer.gpus, answer.nodes, cluster.bundle, cluster.block_size) == (6, 3, "a=2,b=4", 2)
    assert [(b.group, b.node) for b in cluster.blocks] == [("a", 0), ("b", 1), ("b", 2)]
    assert [axis.name for axis in answer.mesh.axes] == ["blocks", "m0"]
    for group in answer.groups:
        weights = cluster.proportions[group.proportion].weights  # type: ignore[index]
        assert len(weights) == 3 and max(weights) > 0
        assert [place.place for place in group.places] == [p.name for p in cluster.places]  # type: ignore[union-attr]
    for place in cluster.places:
        assert 0 < place.peak_bytes <= place.memory_limit_bytes
        assert place.compute_s + place.communication_s <= 2 * answer.predicted.replayed_time_s
    busiest = max(place.compute_s for place in cluster.places)
    assert busiest <= answer.predicted.replayed_time_s * (1 + ROUNDING)
    assert sorted(b for place in cluster.places for b in place.blocks) == [0, 1, 2]


def test_its_parts_add_up_to_what_it_predicts(answer: Plan) -> None:
    totals = explain(answer).totals
    assert totals.time_s == pytest.approx(answer.predicted.time_s)
    assert totals.memory_bytes == pytest.approx(answer.predicted.memory_bytes, abs=1)
    assert totals.compute_s == pytest.approx(answer.predicted.compute_s)


def test_the_frontier_is_over_the_share_of_all_memories() -> None:
    hardware = profile(ONE_EACH, KINDS)
    document = frontier(layers(6, 64, 2048), hardware, "a=1,b=1", ONE_BATCH)
    peaks = [point.replayed_peak_bytes for point in document.points]
    assert peaks == sorted(peaks) and len(peaks) > 2
    for point in document.points:
        share = max(p.peak_bytes / p.memory_limit_bytes for p in point.places)  # type: ignore[union-attr]
        assert point.replayed_peak_bytes == pytest.approx(
            share * document.memory_limit_bytes, abs=2
        )
        assert point.feasible == (share <= 1)


def test_what_is_no_bundle_is_refused() -> None:
    graph, hardware = mlp(), profile(ONE_EACH, KINDS)
    for gpus, problem in (
        (2, "of an unspecified group"),
        ("c=1", "unknown group 'c'"),
        ("a=2", "2 devices of a"),
        ("a=1,a=1", "named twice"),
        ("a=0", "devices of a"),
    ):
        with pytest.raises(BadInput, match=problem) as caught:
            plan(graph, hardware, gpus)
        assert caught.value.field == "gpus"
    with pytest.raises(BadInput, match="has no groups"):
        plan(graph, load_hardware("dgx-h100"), "h100=8")
    with pytest.raises(BadInput, match="a search by sums on devices of several") as caught:
        frontier(graph, hardware, "a=1,b=1", Options(overlap=False))
    assert caught.value.field == "objective"


def test_what_fits_nowhere_says_so() -> None:
    small = {name: {**kind, "memory": 1e-3} for name, kind in KINDS.items()}
    with pytest.raises(Infeasible, match="no strategy fits on 2 GPUs"):
        plan(layers(2, 8, 4096), profile(ONE_EACH, small), "a=1,b=1", options=ONE_BATCH)
