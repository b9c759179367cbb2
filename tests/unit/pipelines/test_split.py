"""Schedules that split backward in the search: what is replayed, held, bounded and found."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest
from msgspec import UNSET

from harness.cases import every
from harness.graph_builder import layers
from harness.tiers import examples
from shardwise import documents
from shardwise.answers import Options
from shardwise.answers.explain import explain
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.cost.options import quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, load_hardware
from shardwise.pictures.pipeline import pipeline_svg
from shardwise.pipeline.actions import Kind
from shardwise.pipeline.keeping import keeping
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.replay import Replayer
from shardwise.replay.stage_parts import BACKWARD, WEIGHTS
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.bounds import least_split_step_s, ranges_of
from shardwise.search.pipelines.paths import least_by_paths
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import Fastest, PipelineSearch
from shardwise.search.pipelines.searched import SPLIT, Searched

L4 = load_hardware("l4")
OPTIONS = Options(micro_batches=(8,))
EVERY = (*SPLIT, "zb-h1:2")
WIDTH, SAMPLES = 2048, 8
CHAIN = layers(10, 8 * SAMPLES, WIDTH)
TENSOR = SAMPLES * WIDTH * 4
"""Bytes of what a layer of the chain makes of a micro-batch."""


def _fastest(graph: Graph, gpus: int, name: str, options: Options = OPTIONS) -> Fastest:
    return PipelineSearch(graph, L4, Devices.alike(gpus), options, quiet, [name]).fastest([2])


@pytest.fixture(scope="module", params=SPLIT)
def chain(request: pytest.FixtureRequest) -> Fastest:
    fastest = _fastest(CHAIN, 2, request.param)
    assert fastest.pipeline is not None
    return fastest


def _found(fastest: Fastest) -> Pipeline:
    assert fastest.pipeline is not None
    return fastest.pipeline


def _replayers(pipeline: Pipeline) -> tuple[StageReplayer, StageReplayer]:
    """Returns one with whole backwards and one with backward in two parts."""
    search = pipeline.search
    split = Replayer(search.problem, search.options.step, search.subject.kits, split=True)
    both = (search.own_replayer, split)
    whole, parts = (StageReplayer(one, pipeline.units.of_group) for one in both)
    return whole, parts


# Names


@pytest.mark.parametrize(
    ("name", "each"), [("zb-h1", 1), ("zb-h1:2", 2), ("zb-h1:8", 8), ("zbv", 2), ("dualpipev", 2)]
)
def test_names_have_their_number_of_stages(name: str, each: int) -> None:
    searched = Searched.of(name)
    assert (str(searched), searched.stages_per_rank, searched.splits) == (name, each, True)
    assert not Searched.of("1f1b").splits


@pytest.mark.parametrize("name", ["zb-h1:1", "zb-h1:9", "zbv:2", "dualpipev:2", "1f1b:2", "zb-h1:"])
def test_other_numbers_of_stages_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="unknown schedule") as error:
        Searched.of(name)
    assert "zb-h1:2 to zb-h1:8" in (error.value.expected or "")


# Moments


@pytest.mark.parametrize("name", EVERY)
def test_moments_are_those_of_the_simulated_step(name: str) -> None:
    """Kept and waiting micro-batches of a rank are at most what the simulation counts."""
    of, each = Searched.of(name), Searched.of(name).stages_per_rank
    made = schedule(of.name, ranks=4, micro_batches=8, stages_per_rank=each)
    step = simulate(made, [StageTimes(1.0, 1.2, 0.7)] * made.stages)
    for rank, moments in enumerate(keeping(of.name, 4, 8, each).moments):
        held = (moments.kept + moments.waiting).sum(axis=1)
        assert held.max() == step.rank_peaks[rank]
        parts = sum(2 if a.kind is Kind.BACKWARD else 1 for a in made.ranks[rank])
        assert len(held) == parts
        for place, stage in enumerate(made.placement.stages_of(rank)):
            assert moments.kept[:, place].max() == step.peak_kept(stage)
        rows = np.arange(len(held))
        running = np.where(moments.part == WEIGHTS, moments.waiting[rows, moments.place], 1)
        assert (running > 0).all()


# Replay


def test_the_parts_of_a_stage_are_its_whole_backward(chain: Fastest) -> None:
    """A chain that does not communicate computes the same in two parts, in the same time."""
    found = _found(chain)
    whole, parts = _replayers(found)
    placed = [found.placement.stages_of(rank) for rank in range(found.ranks)]
    asked = (found.choices, found.edge_choices, found.bounds, placed)
    one, two = whole.replay(*asked), parts.replay(*asked)
    assert not one.splits and not one.weights_s.any()
    assert two.forward_s == pytest.approx(one.forward_s)
    assert two.backward_s == pytest.approx(one.backward_s)
    assert two.inputs_s + two.weights_s == pytest.approx(two.backward_s)
    assert (two.weights_s > 0.3 * two.backward_s).all()
    # The first layer has no gradient of data, so W of the first stage is more than its I.
    assert two.weights_s[0] / two.backward_s[0] > two.weights_s[1] / two.backward_s[1]


def test_what_waits_is_what_products_read(chain: Fastest) -> None:
    """Of every layer the input, but for the batch itself, and the gradient of its result."""
    found = _found(chain)
    assert found.replayed.splits
    split = found.replayed.parts
    units = [last - first for first, last in pairwise(found.bounds)]
    for stage, (first, last) in enumerate(pairwise(found.bounds)):
        products = [unit for unit in range(first, last) if unit % 2 == 0]
        inputs = sum(unit > 0 for unit in products)
        # A stage that ends with a product has its gradient from the stage behind.
        assert split.waiting_bytes[stage] == TENSOR * (inputs + len(products)), units
        crossing = (first > 0 and first % 2 == 0) + (last % 2 == 1)
        own = split.waiting_bytes[stage] - crossing * TENSOR
        assert split.own_waiting_bytes[stage] == own
    lasting = found.replayed.lasting_bytes
    assert (split.peak_bytes[:, BACKWARD, 1] >= lasting + split.own_waiting_bytes).all()
    # W has what waits and the gradient of one weight.
    weight = WIDTH * WIDTH * 4
    most = lasting + split.own_waiting_bytes + weight
    assert split.peak_bytes[:, WEIGHTS, 1] == pytest.approx(most, rel=0.01)


def test_a_rank_of_a_v_has_a_tied_parameter_once(gpt2: Graph) -> None:
    found = _found(_fastest(gpt2, 4, "zbv"))
    replayed, (tied,) = found.replayed, found.tied
    both = replayed.lasting_bytes[[0, 3]].sum() - replayed.of_ranks.lasting_bytes[0]
    inner = replayed.lasting_bytes[[1, 2]].sum() - replayed.of_ranks.lasting_bytes[1]
    # Weight, gradient and two moments, whole or a share of the two devices.
    assert both - inner >= 0.99 * 4 * tied.size_bytes / 2
    assert found.tied_s == (0.0,) * 4
    assert len(found.hops_s) == 3 and found.hops_s[1] == 0.0 and min(found.hops_s[::2]) > 0


# Bounds


def test_no_split_pipeline_is_below_the_bound_by_paths() -> None:
    """Of random units: every cut, run with the seconds of its stages."""

    def holds(seed: int) -> None:
        random = Random(seed)
        of = Searched.of(random.choice(EVERY))
        each = of.stages_per_rank
        ranks, batches = random.choice([(2, 4), (2, 6), (3, 6)])
        made = schedule(of.name, ranks=ranks, micro_batches=batches, stages_per_rank=each)
        units = made.stages + random.randint(0, 2)
        forward, inputs, weights, update = (
            np.array([random.uniform(0.1, most) for _ in range(units)]) for most in (2, 2, 2, 1)
        )
        # Passes take what they compute, or longer.
        slack = np.array([random.choice([0.0, random.random()]) for _ in range(units)])
        passes = ranges_of(forward + inputs + weights + slack)
        parts = [forward, inputs, weights]
        bound = least_by_paths(made, [passes] * made.stages, parts, update).step_s
        steps = []
        for inner in combinations(range(1, units), made.stages - 1):
            ranges = [slice(*pair) for pair in pairwise((0, *inner, units))]
            late = random.choice(range(3))
            times = [
                StageTimes(
                    *(of[r].sum() + (late == n) * slack[r].sum() for n, of in enumerate(parts))
                )
                for r in ranges
            ]
            ends = [spans[-1][1] for spans in simulate(made, times).spans_s]
            updates = np.array([update[r].sum() for r in ranges])
            own = [sum(updates[list(made.placement.stages_of(rank))]) for rank in range(ranks)]
            steps.append(max(map(sum, zip(ends, own, strict=True))))
        if each == 1:
            other = least_split_step_s([passes] * made.stages, forward, update, batches)
            assert 0.6 * min(steps) <= other <= min(steps) * (1 + 1e-9)
        assert bound <= min(steps) * (1 + 1e-9)
        assert bound >= 0.6 * min(steps) and each == made.placement.stages_per_rank

    every(range(examples(15, 60)), holds)


@pytest.mark.parametrize("name", EVERY)
def test_no_strategy_is_below_what_is_proven(name: str) -> None:
    """Of a small chain on four devices: strategies and cuts drawn at random, with all memory and
    with what a third of them need."""
    fastest = _fastest(CHAIN, 4, name)
    found = _found(fastest)
    _, own = _replayers(found)
    random, problem, others = np.random.default_rng(2), found.search.problem, [found]
    placed = [found.placement.stages_of(rank) for rank in range(2)]
    for number in range(40):
        cuts = random.choice(range(1, len(found.units)), found.stages - 1, replace=False)
        choices, edge_choices = found.choices.copy(), np.zeros_like(found.edge_choices)
        for group in random.choice(len(choices), number % len(choices), replace=False):
            choices[group] = random.choice(len(problem.costs[group].time_s))
        bounds = (0, *sorted(cuts.tolist()), len(found.units))
        replayed = own.replay(choices, edge_choices, bounds, placed)
        others.append(
            replace(
                found,
                bounds=bounds,
                choices=choices,
                edge_choices=edge_choices,
                replayed=replayed,
            )
        )
    peaks = np.array([float(other.peak_bytes.max()) for other in others])
    steps = np.array([other.step_s for other in others])
    tight = float(np.quantile(peaks, 1 / 3))
    little = _fastest(CHAIN, 4, name, replace(OPTIONS, memory_limit_bytes=tight))
    # Which of the best means of paths is found depends on rounding, also here (`test_interleaved`).
    assert little.least_s >= fastest.least_s * 0.94
    # In four stages of ten layers the bound lets stages have parts of layers.
    assert fastest.least_s <= steps.min() < 1.7 * fastest.least_s
    assert steps[peaks <= tight].min() >= little.least_s


# What is found


@pytest.mark.full
def test_zb_h1_has_several_stages_on_a_rank(gpt2: Graph) -> None:
    """In a loop: faster than with one, and than interleaved stages whose backward is whole."""
    found = _found(_fastest(gpt2, 4, "zb-h1:2"))
    assert (found.schedule, found.stages_per_rank, found.ranks) == ("zb-h1", 2, 2)
    assert found.rank_of.tolist() == [0, 1, 0, 1] and found.fits
    for name in ("zb-h1", "interleaved:2"):
        assert found.step_s < _found(_fastest(gpt2, 4, name)).step_s
    answer = pipeline_or_plan(
        gpt2, L4, 4, stages=[2], schedules=["zb-h1", "zb-h1:2"], options=OPTIONS
    )
    assert isinstance(answer, documents.Pipeline)
    assert (answer.schedule, answer.stages_per_rank) == ("zb-h1", 2)
    assert answer.predicted.step_s == found.step_s


def test_split_schedules_beat_1f1b_where_passes_take_long(chain: Fastest) -> None:
    plain = _found(_fastest(CHAIN, 2, "1f1b"))
    found = _found(chain)
    assert found.step_s < 0.97 * plain.step_s and found.fits
    assert [a == b for a, b in pairwise(found.rank_of.tolist())].count(True) == (
        found.stages_per_rank - 1
    )


def test_more_schedules_lose_no_point(gpt2: Graph) -> None:
    few = PipelineSearch(gpt2, L4, Devices.alike(4), OPTIONS, quiet, ["1f1b"]).certified([2])
    more = PipelineSearch(
        gpt2, L4, Devices.alike(4), OPTIONS, quiet, ["zb-h1", "zbv", "1f1b"]
    ).certified([2])
    assert {_found(p).schedule for p in more} >= {"1f1b", "zbv"}
    assert all(_found(point).step_s >= point.least_s > 0 for point in more)
    for one in map(_found, few):
        assert any(
            other.peak_bytes.max() <= one.peak_bytes.max() and other.step_s <= one.step_s
            for other in map(_found, more)
        )


def test_a_document_has_the_parts_of_backward(gpt2: Graph) -> None:
    answer = pipeline_or_plan(gpt2, L4, 4, stages=[2], schedules=["zbv"], options=OPTIONS)
    assert isinstance(answer, documents.Pipeline) and answer.timeline is not UNSET
    assert (answer.schedule, answer.stages_per_rank, answer.ranks) == ("zbv", 2, 2)
    assert [stage.first_device for stage in answer.stages] == [0, 2, 2, 0]
    for stage, lanes in zip(answer.stages, answer.timeline.stages, strict=True):
        assert 0 < stage.weights_s < stage.backward_s and stage.waiting_micro_batches >= 1
        assert {"forward", "inputs", "weights"} <= {lane.kind for lane in lanes.lanes}
        assert max(lanes.held_bytes) == stage.peak_bytes
    assert 'class="weights"' in pipeline_svg(answer)
    text = "\n".join(explain(answer).text)
    assert "Rank 0 (GPUs 0 to 1) holds stages 0 and 3," in text
    assert "weights of 1 wait" in explain(answer).stages[0].text
