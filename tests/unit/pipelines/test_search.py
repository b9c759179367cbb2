"""Pipelines: units, stages against the whole, what is found, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise, product
from math import inf
from operator import add
from random import Random

import numpy as np
import pytest
from msgspec import UNSET

from harness.graph_builder import layers, mlp
from shardwise.answers import Options, pipeline_or_plan
from shardwise.capture import shipped_graph
from shardwise.cost.options import quiet
from shardwise.cost.program import assumed
from shardwise.documents import WholePlan
from shardwise.errors import BadInput
from shardwise.graph import Graph, graph_id, read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.pipeline import Pipeline, assembled
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.pipelines.searched import SCHEDULES, kept
from shardwise.search.pipelines.staged import Staged
from shardwise.search.pipelines.stages import StageProblems, incoming_bytes
from shardwise.search.pipelines.staircases import Staircase, Staircases
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search, mesh_of

L4 = load_hardware("l4")
H100 = load_hardware("dgx-h100")
OPTIONS = Options(micro_batches=(8,))


# Units


def test_a_tied_embedding_is_a_parameter_of_both_ends(
    staged: StagedSubject, units: Units, whole: Graph
) -> None:
    assert [tied.copies for tied in staged.tied] == [
        ("transformer.wte.weight", "transformer.wte.weight (copy 2)")
    ]
    assert staged.subject.id == graph_id(whole)
    assert units.names[1:-1] == tuple(f"transformer.h.{layer}" for layer in range(12))
    first, last = units.groups[0], units.groups[-1]
    patterns = staged.subject.patterns
    read_at = [
        {
            name
            for g in groups
            for name in patterns.pattern(staged.subject.coarsened.groups[g]).parameters
        }
        for groups in (first, last)
    ]
    assert "transformer.wte.weight" in read_at[0]
    assert "transformer.wte.weight (copy 2)" in read_at[1]


def test_one_tensor_crosses_between_layers(units: Units) -> None:
    assert [len(units.crossing(cut)) for cut in range(1, len(units))] == [1] * (len(units) - 1)


def test_every_group_is_in_one_unit_and_tensors_go_forward(units: Units) -> None:
    assert sorted(g for groups in units.groups for g in groups) == list(range(len(units.of_group)))
    for crossing in units.crossings:
        assert units.of_group[crossing.source] <= units.of_group[crossing.target]


def test_what_the_encoder_made_passes_through_the_decoders_stages() -> None:
    graph = read_graph(shipped_graph("transformer"))
    units = Units.of(StagedSubject.of(graph).subject.patterns)
    decoders = [n for n, name in enumerate(units.names) if name.startswith("decoder")]
    assert len(decoders) == 6
    for cut in decoders[1:]:
        assert any("encoder" in tensor for tensor in units.crossing(cut))
    embedded = units.names.index("decoder.0") - 1
    assert not units.crossing(decoders[-1] + 1).keys() & units.crossing(embedded).keys()


def test_a_model_without_blocks_is_cut_where_little_crosses() -> None:
    graph = read_graph(shipped_graph("vgg16"))
    units = Units.of(StagedSubject.of(graph).subject.patterns)
    assert len(units) > 16
    assert all(len(units.crossing(cut)) <= 2 for cut in range(1, len(units)))


# Stages


def test_the_stages_of_a_strategy_add_up_to_the_whole(stages: StageProblems) -> None:
    """Sums of groups and of crossings, each in one stage."""
    bounds, kept_by = (0, 5, 9, 14), [1, 1, 1]
    limit = 20 * 2**30
    solved = [stages.fastest(*pair, 1, limit) for pair in pairwise(bounds)]
    choices, edge_choices = assembled([stages] * 3, bounds, kept_by, [limit] * 3)
    _, whole_s = stages.problem.summed(choices[None], edge_choices[None])
    assert sum(stage.time_s for stage in solved if stage) == pytest.approx(float(whole_s[0]))


def test_equal_stages_are_solved_once(search: Search, units: Units) -> None:
    guide = np.array([int(cost.time_s.argmin()) for cost in search.problem.costs])
    fresh = StageProblems(search.problem, units, guide)
    for first in (2, 4, 7):
        assert fresh.fastest(first, first + 3, 2, 20 * 2**30) is not None
    assert fresh.solved == 1


def test_a_stage_is_the_best_of_all_its_strategies(search: Search, units: Units) -> None:
    """Against every combination of the head's configurations, within several memories."""
    problem = search.problem
    guide = np.array([int(cost.time_s.argmin()) for cost in problem.costs])
    of = StageProblems(problem, units, guide)
    last = len(units) - 1
    groups = of.units.groups_of(last, last + 1)
    edges = of.edges_of(groups)
    rows = [np.flatnonzero(problem.costs[g].summed) for g in groups]
    assert np.prod([len(r) for r in rows]) < 5e4
    incoming = of.incoming_bytes(last)
    priced = []
    for chosen in product(*rows):
        at = dict(zip(groups, chosen, strict=True))
        memory = 2 * incoming + problem.fixed_memory_bytes
        seconds = 0.0
        for g, c in at.items():
            cost = problem.costs[g]
            memory += cost.parameter_bytes[c] + 2 * cost.activation_bytes[c]
            seconds += cost.time_s[c]
        options = []
        for e in edges:
            edge = problem.edges[e]
            row = at.get(edge.source, guide[edge.source])
            cell = edge.table.cell(int(row), int(at[edge.target]))
            count = int(edge.table.count[cell])
            options.append(
                [
                    (2 * edge.table.memory_bytes[(*cell, a)], edge.table.time_s[(*cell, a)])
                    for a in range(count)
                ]
            )
        for alternatives in product(*options):
            priced.append(
                (
                    memory + sum(m for m, _ in alternatives),
                    seconds + sum(s for _, s in alternatives),
                )
            )
    memories = sorted(m for m, _ in priced)
    for limit in (memories[0] * 1.001, memories[len(memories) // 3], memories[-1] * 1.1):
        best = min(s for m, s in priced if m <= limit)
        found = of.fastest(last, last + 1, 2, limit)
        assert found is not None
        assert best * (1 - 1e-9) <= found.time_s <= best * 1.011
    assert of.fastest(last, last + 1, 2, memories[0] * 0.9) is None


@pytest.mark.parametrize("share", [1.0, 0.3, 0.15, 0.1])
def test_staircases_are_near_the_exact_stages(
    search: Search, stages: StageProblems, share: float
) -> None:
    """No better, as every unit's layouts are the guide's, and little worse."""
    every = {id(cost): np.ones(len(cost.time_s), dtype=bool) for cost in search.problem.costs}
    staircases = Staircases(replace(stages, narrow=every), 4)
    limit = share * 4 * 2**30
    for first, last, count in ((0, 5, 4), (2, 9, 2), (3, 12, 3), (7, 14, 1)):
        exact = stages.fastest(first, last, count, limit)
        seconds = staircases.fastest_s(first, last, count, limit)
        if exact is None:
            assert seconds == inf
        else:
            assert seconds >= exact.time_s / 1.011
            assert seconds <= 1.05 * exact.time_s


def test_staircases_add_up_to_every_way_to_share_the_memory() -> None:
    random = Random(5)
    for _ in range(50):
        units = [
            [(random.randint(1, 9), random.randint(1, 9)) for _ in range(random.randint(1, 4))]
            for _ in range(3)
        ]
        total = reduce(add, (Staircase.of(*np.array(unit, dtype=float).T) for unit in units))
        ways = [tuple(map(sum, zip(*way, strict=True))) for way in product(*units)]
        for limit in range(2, 30):
            best = min((time for memory, time in ways if memory <= limit), default=inf)
            assert total.within(limit) == best


def test_a_staircase_of_many_points_has_few_and_stays_within_them() -> None:
    memory = np.linspace(1.0, 1e3, 5_000)
    stairs = Staircase.of(memory, 1e6 / memory)
    assert len(stairs.memory_bytes) <= 128
    for limit in (1.0, 3.0, 40.0, 999.0):
        assert 1e6 / limit * 0.999 <= stairs.within(limit) <= 1e6 / limit * 1.06
    assert stairs.within(0.5) == inf


def test_more_kept_micro_batches_never_need_less(stages: StageProblems) -> None:
    limit = 3 * 2**30
    times = [stages.fastest(0, 5, count, limit) for count in (1, 4, 16)]
    seconds = [inf if stage is None else stage.time_s for stage in times]
    assert seconds == sorted(seconds)
    assert seconds[0] < inf


def test_one_stage_replays_as_the_whole(search: Search, units: Units) -> None:
    """The program of everything, and that of the only stage."""
    points = np.array([[int(cost.time_s.argmin()) for cost in search.problem.costs]])
    choices = points.astype(np.uint32)
    edge_choices = np.zeros((1, len(search.problem.edges)), dtype=np.uint32)
    whole = search.replayer.replay(choices, edge_choices)
    own = StageReplayer(search.own_replayer, units.of_group)
    only = own.replay(choices[0], edge_choices[0], (0, len(units)))
    step_s = 8 * (only.forward_s + only.backward_s) + only.update_s
    assert step_s[0] == pytest.approx(whole.time_s[0], rel=1e-6)
    assert only.peak_bytes[0] == whole.peak_bytes[0]


def test_stages_replay_to_less_than_the_whole_and_together_to_as_much(
    search: Search, units: Units
) -> None:
    choices = np.array(
        [int(cost.time_s.argmin()) for cost in search.problem.costs], dtype=np.uint32
    )
    edge_choices = np.zeros(len(search.problem.edges), dtype=np.uint32)
    own = StageReplayer(search.own_replayer, units.of_group)
    whole = own.replay(choices, edge_choices, (0, len(units)))
    parts = own.replay(choices, edge_choices, (0, 4, 9, len(units)))
    for of_parts, of_whole in (
        (parts.forward_s, whole.forward_s),
        (parts.backward_s, whole.backward_s),
    ):
        assert (of_parts < of_whole[0]).all()
        # Communication that was hidden behind other stages' computation is not hidden any more.
        assert of_whole[0] * 0.97 <= of_parts.sum() <= of_whole[0] * 1.15
    # Of what crosses a cut the stage that reads it keeps what comes in, which both of these do.
    came = sum(incoming_bytes(search.problem, units, choices, cut) for cut in (4, 9))
    assert parts.kept_bytes.sum() + came == pytest.approx(whole.kept_bytes[0])
    assert (parts.peak_bytes < whole.peak_bytes[0]).all()


# Pipelines


@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_keep_what_the_schedule_keeps_when_it_runs(name: str) -> None:
    for ranks, batches in ((2, 4), (4, 4), (4, 12), (6, 9)):
        step = simulate(
            schedule(name, ranks=ranks, micro_batches=batches), [StageTimes(1.0, 2.0, 0.0)] * ranks
        )
        expected = kept(name, ranks, batches)
        assert [step.peak_kept(stage) for stage in range(ranks)] == expected


@pytest.fixture(scope="module")
def found(whole: Graph) -> Pipeline:
    fastest = PipelineSearch(whole, L4, Devices.alike(4), OPTIONS, quiet).fastest([2])
    assert fastest.pipeline is not None
    assert fastest.least_s < fastest.pipeline.step_s < 1.03 * fastest.least_s
    return fastest.pipeline


def test_a_pipeline_fits_and_is_no_faster_than_its_slowest_stage(found: Pipeline) -> None:
    assert found.fits
    replayed = found.replayed
    busy = 8 * (replayed.forward_s + replayed.backward_s) + replayed.update_s
    assert found.step_s > busy.max()
    fill = replayed.forward_s[0] + replayed.backward_s[0]
    assert found.step_s <= busy.max() + 2 * fill + 10 * sum(found.hops_s) + sum(found.tied_s)
    assert 0 < found.idle < 0.5
    assert min(found.tied_s) > 0


def test_cuts_are_no_worse_than_even_ones(found: Pipeline, whole: Graph) -> None:
    """Of the same strategy, cut in the middle of its layers."""
    own = StageReplayer(found.search.own_replayer, found.units.of_group)
    even = (0, 7, 14)
    other = replace(
        found, bounds=even, replayed=own.replay(found.choices, found.edge_choices, even)
    )
    assert found.step_s <= other.step_s * 1.01


def test_cuts_know_of_the_host(whole: Graph) -> None:
    """GPT-2 is small on H100s: launching its operators takes longer than running them."""
    options = Options(micro_batches=(4,), precision="bf16")
    best = (
        PipelineSearch(whole, H100, Devices.alike(8), options, quiet, ("1f1b",))
        .fastest([2])
        .pipeline
    )
    assert best is not None
    own = StageReplayer(best.search.own_replayer, best.units.of_group)
    for cut in (6, 7, 8, 9):
        bounds = (0, cut, len(best.units))
        replayed = own.replay(best.choices, best.edge_choices, bounds)
        assert best.step_s <= replace(best, bounds=bounds, replayed=replayed).step_s * 1.03


def test_a_frontier_of_pipelines_trades_memory_for_time(found: Pipeline, whole: Graph) -> None:
    points = PipelineSearch(whole, L4, Devices.alike(4), OPTIONS, quiet).frontier([2])
    peaks = [float(point.peak_bytes.max()) for point in points]
    steps = [point.step_s for point in points]
    assert len(points) > 2
    assert peaks == sorted(set(peaks)) and steps == sorted(set(steps), reverse=True)
    assert all(point.fits for point in points)
    assert steps[-1] <= 1.01 * found.step_s
    assert peaks[0] < 0.8 * peaks[-1]
    least = replace(OPTIONS, memory_limit_bytes=1.1 * peaks[0])
    again = PipelineSearch(whole, L4, Devices.alike(4), least, quiet).fastest([2]).pipeline
    assert again is not None and again.step_s <= 1.1 * steps[0]


def test_less_memory_never_makes_it_faster(found: Pipeline, whole: Graph) -> None:
    tight = replace(OPTIONS, memory_limit_bytes=0.6 * float(found.peak_bytes.max()))
    other = PipelineSearch(whole, L4, Devices.alike(4), tight, quiet).fastest([2]).pipeline
    assert other is None or (other.fits and other.step_s >= 0.995 * found.step_s)
    tiny = replace(OPTIONS, memory_limit_bytes=5e7)
    assert PipelineSearch(whole, L4, Devices.alike(4), tiny, quiet).fastest([2]).pipeline is None


def test_hops_between_nodes_take_longer_than_inside_one() -> None:
    axes = StageAxes.of(H100, mesh_of(H100, 16), 4)
    assert axes is not None
    inside, between = (axes.hop_s(stage, 1e8) for stage in (0, 1))
    assert between > 3 * inside > 0
    assert axes.hop_s(0, 0.0) == 0.0
    assert axes.hop_s(0, 2e8) > inside


def test_what_is_refused(whole: Graph) -> None:
    with pytest.raises(BadInput, match="3 stages of 4 devices") as refused:
        PipelineSearch(whole, L4, Devices.alike(4), OPTIONS, quiet).fastest([3])
    assert refused.value.expected == "2, 4"
    with pytest.raises(BadInput, match="unknown schedule 'dualpipe'"):
        PipelineSearch(whole, L4, Devices.alike(4), OPTIONS, quiet, ["dualpipe"])
    one_unit = PipelineSearch(mlp(), L4, Devices.alike(2), OPTIONS, quiet)
    assert one_unit.counts() in ([], [2])


def test_a_plan_without_a_pipeline_is_proven_against_pipelines_too() -> None:
    graph, options = layers(6, 64, 1024), Options(micro_batches=(4,))
    alone = pipeline_or_plan(graph, L4, 4, stages=[1], options=options)
    both = pipeline_or_plan(graph, L4, 4, stages=[1, 2], options=options)
    asked = assumed(options, L4)
    pipelines = PipelineSearch(graph, L4, Devices.alike(4), asked, quiet).fastest([2])
    assert isinstance(alone, WholePlan) and isinstance(both, WholePlan)
    assert pipelines.pipeline is not None and both.replayed_s < pipelines.pipeline.step_s
    of_plans, proven = alone.certificate.time_lower_bound_s, both.certificate.time_lower_bound_s
    assert of_plans is not UNSET and proven is not UNSET
    assert proven == pytest.approx(min(of_plans, pipelines.least_s)) and proven < of_plans
    assert both.certificate.epsilon == both.predicted.gap == both.replayed_s / proven - 1.0
    assert both.certificate.status == "budget"


def test_what_is_surely_slower_is_not_costed(whole: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what takes a millionth of a step less than a bound, nothing is solved."""
    search = PipelineSearch(whole, L4, Devices.alike(4), OPTIONS, quiet)
    least_s = min(question.least_s for question in search.questions([2]))
    monkeypatch.setattr(Staged, "guided", property(lambda _: pytest.fail("was costed")))
    fastest = search.fastest([2], least_s * (1 - 1e-6))
    assert fastest.pipeline is None and fastest.least_s == pytest.approx(least_s)
