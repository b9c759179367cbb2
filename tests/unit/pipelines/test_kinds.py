"""Stages on devices of several kinds: costs, cuts and orders against all of them, documents."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from msgspec import UNSET

from harness.answers import document
from harness.graph_builder import layers
from shardwise import documents
from shardwise.answers import Options
from shardwise.answers.explain import explain
from shardwise.answers.pipelines import pipeline_document, pipeline_or_plan
from shardwise.cost.options import quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, load_hardware
from shardwise.schedulers.formats import PLAN_FORMS, export_plan
from shardwise.search.pipelines.kind_axes import KindAxes
from shardwise.search.pipelines.pipeline import assembled
from shardwise.search.pipelines.search import Fastest, PipelineSearch
from shardwise.search.pipelines.staged import Staged
from shardwise.search.pipelines.stages import StageProblems

HETEROG = load_hardware("heterog-8")
H100_A100 = load_hardware("h100-8+a100-8")
OPTIONS = Options(micro_batches=(8,))
GPT2_OPTIONS = Options(micro_batches=(8,))


def of(hardware: Hardware, text: str) -> Devices:
    return Devices.parse(text, hardware)


def search(graph: Graph, hardware: Hardware, text: str, options: Options) -> PipelineSearch:
    return PipelineSearch(graph, hardware, of(hardware, text), options, quiet)


@pytest.fixture(scope="module")
def chain() -> Graph:
    return layers(7, 64, 1024)


@pytest.fixture(scope="module")
def found(gpt2: Graph) -> Fastest:
    """Half of GPT-2 on sixteen devices of two kinds in four stages."""
    return search(gpt2, H100_A100, "h100=8,a100=8", GPT2_OPTIONS).fastest([4])


# Against every cut and order


@pytest.mark.parametrize(
    ("text", "stages"), [("v100=1,p100=1", 2), ("v100=1,1080ti=1,p100=1", 3), ("v100=2,p100=2", 2)]
)
def test_the_fastest_is_that_of_all_cuts_and_orders(chain: Graph, text: str, stages: int) -> None:
    """Every cut of the chain under every order of kinds, each stage solved exactly and replayed."""
    searched = search(chain, HETEROG, text, OPTIONS)
    fastest = searched.fastest([stages])
    assert fastest.pipeline is not None
    names = [name for name, _ in of(HETEROG, text).counts]
    steps, orders = [], set()
    for question in searched.questions([stages]):
        staged = Staged(question, quiet, (1.0,))
        assert question.searches is not None
        orders.add(tuple(question.searches.groups[kind] for kind in question.kind_of))
        units = len(question.units)
        limits = staged.even(staged.limit_bytes)
        for guided in staged.guided:
            for run in question.runs:
                best = staged.best(guided, run, limits)
                assert best is not None
                made = staged.replayed(guided, run, best, quick=True)
                problems = [guided.guide.stages[kind] for kind in question.kind_of]
                for inner in combinations(range(1, units), stages - 1):
                    bounds = (0, *inner, units)
                    choices, edges = assembled(problems, bounds, run.kept, limits)
                    moved = replace(
                        made,
                        bounds=bounds,
                        choices=choices,
                        edge_choices=edges,
                        replayed=staged.replay(run, choices, edges, bounds),
                    )
                    steps.append(moved.step_s)
    assert orders == set(permutations(names))
    assert fastest.least_s <= min(steps)
    assert fastest.pipeline.step_s <= 1.01 * min(steps)
    # Hops, which no bound counts, take much of the step of so small a model.
    assert fastest.pipeline.step_s <= 1.6 * fastest.least_s


def test_the_faster_kind_has_more_of_the_model(chain: Graph) -> None:
    """A V100 is more than half as fast again as a P100."""
    pipeline = search(chain, HETEROG, "v100=1,p100=1", OPTIONS).fastest([2]).pipeline
    assert pipeline is not None and pipeline.kinds is not None
    sizes = dict(
        zip(
            (pipeline.kinds.groups[kind] for kind in pipeline.kinds.of_rank),
            np.diff(pipeline.bounds).tolist(),
            strict=True,
        )
    )
    assert sizes["v100"] > sizes["p100"]


def test_a_bundle_of_one_group_is_its_devices_alone(gpt2: Graph) -> None:
    alone = PipelineSearch(
        gpt2, H100_A100.of_group("a100"), Devices.alike(8), GPT2_OPTIONS, quiet
    ).fastest([2])
    bundled = search(gpt2, H100_A100, "a100=8", GPT2_OPTIONS).fastest([2])
    assert alone.pipeline is not None and bundled.pipeline is not None
    assert bundled.pipeline.step_s == pytest.approx(alone.pipeline.step_s, rel=0.01)
    assert bundled.least_s == pytest.approx(alone.least_s, rel=0.01)


# Costs


def test_configurations_are_the_same_on_all_kinds(gpt2: Graph) -> None:
    (question, *_) = search(gpt2, H100_A100, "h100=8,a100=8", GPT2_OPTIONS).questions([4])
    one, other = (kind.search.problem for kind in question.kinds.each)
    slower = 0
    for here, there in zip(one.costs, other.costs, strict=True):
        for name in ("assignment", "zero", "zero_axes", "recompute", "parameter_bytes"):
            assert np.array_equal(getattr(here, name), getattr(there, name))
        slower += bool((there.compute_s > here.compute_s).any())
    assert slower > len(one.costs) / 2
    for near, far in zip(one.edges, other.edges, strict=True):
        assert (near.source, near.target, near.tensors) == (far.source, far.target, far.tensors)
        assert np.array_equal(near.table.kept, far.table.kept)
        assert np.array_equal(near.table.count, far.table.count)


def test_a_kinds_own_limit_holds_for_its_stages(gpt2: Graph) -> None:
    """A V100 has 16 GB, a 1080 Ti 11 and a P100 12: none is filled beyond its own."""
    fastest = search(gpt2, HETEROG, "v100=2,1080ti=4,p100=2", Options(micro_batches=(16,)))
    pipeline = fastest.fastest([4]).pipeline
    assert pipeline is not None and pipeline.fits
    assert len(set(pipeline.limits_bytes.tolist())) == 3
    assert (pipeline.peak_bytes <= pipeline.limits_bytes).all()
    over = replace(pipeline, bounds=pipeline.bounds)
    over.__dict__["peak_bytes"] = pipeline.limits_bytes * 0.5
    over.peak_bytes[1] = pipeline.limits_bytes[1] * 1.01
    assert not over.fits and over.peak_stage == 1


# Hops


def test_hops_between_kinds_take_the_slower_card() -> None:
    order = ("h100", "h100", "a100", "a100")
    axes = KindAxes.of(H100_A100, of(H100_A100, "h100=8,a100=8"), order, 4)
    assert axes is not None
    inside, between, behind = (axes.hop_s(stage, 1e8) for stage in range(3))
    # Four devices share a card of 200 GB/s, of which links carry 85 %.
    assert between == pytest.approx(4 * 1e8 / (200e9 * 0.85) + 1.2e-5, rel=1e-6)
    assert inside < behind < between
    assert axes.hop_s(1, 0.0) == 0.0
    back = KindAxes.of(H100_A100, of(H100_A100, "h100=8,a100=8"), order[::-1], 4)
    assert back is not None and back.hop_s(1, 1e8) == pytest.approx(between)
    assert axes.sum_s(1e8) == pytest.approx(back.sum_s(1e8))


def test_a_slow_path_between_groups_slows_their_hop() -> None:
    """Paths of heterog-8 carry a tenth of what a V100's card does."""
    axes = KindAxes.of(HETEROG, of(HETEROG, "v100=2,p100=2"), ("v100", "p100"), 2)
    assert axes is not None
    assert axes.hop_s(0, 1e7) == pytest.approx(2 * 1e7 / 1.25e9, rel=0.01)
    # So do those between nodes of one group.
    order = ("1080ti", "1080ti", "p100")
    axes = KindAxes.of(HETEROG, of(HETEROG, "1080ti=4,p100=2"), order, 2)
    assert axes is not None and axes.hop_s(0, 1e7) == pytest.approx(axes.hop_s(1, 1e7))


# Frontiers


def test_a_frontier_is_over_the_share_of_every_devices_memory(chain: Graph) -> None:
    points = search(chain, HETEROG, "v100=1,p100=1", OPTIONS).certified([2])
    pipelines = [point.pipeline for point in points if point.pipeline is not None]
    assert pipelines
    peaks = [pipeline.scaled_peak_bytes for pipeline in pipelines]
    assert peaks == sorted(peaks)
    for point in points:
        assert point.pipeline is not None and point.pipeline.fits
        assert point.least_s <= point.pipeline.step_s


# Documents


@pytest.fixture(scope="module")
def planned(found: Fastest) -> documents.Pipeline:
    assert found.pipeline is not None
    return pipeline_document(found.pipeline, 1.0, found.least_s)


def test_a_document_says_what_each_stage_is_on(planned: documents.Pipeline) -> None:
    assert (planned.hardware, planned.hardware_id) == (H100_A100.name, H100_A100.id)
    assert (planned.bundle, planned.gpus, planned.nodes) == ("h100=8,a100=8", 16, 2)
    assert sorted(str(stage.group) for stage in planned.stages) == ["a100"] * 2 + ["h100"] * 2
    assert {stage.kind for stage in planned.stages} == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    assert [stage.first_device for stage in planned.stages] == [0, 4, 8, 12]
    assert len(planned.kinds) == 16 and planned.kinds[0] == planned.stages[0].kind
    read = documents.read(document(planned), documents.Pipeline)
    assert read == planned


def test_groups_are_those_of_their_stages_kind(planned: documents.Pipeline, found: Fastest) -> None:
    assert found.pipeline is not None
    for number, stage in enumerate(planned.stages):
        costs = found.pipeline.search_of(number).problem.costs
        for group in stage.groups:
            row = found.pipeline.choices[group]
            assert planned.groups[group].compute_s == pytest.approx(
                float(costs[group].compute_s[row])
            )


def test_an_explanation_names_kinds(planned: documents.Pipeline) -> None:
    text = explain(planned).text
    assert text[0].startswith("gpt2-4 on h100=8,a100=8 of h100-8+a100-8 in 4 stages")
    assert any(
        f", on {stage.group})" in explain(planned).stages[n].text
        for n, stage in enumerate(planned.stages)
    )


def test_documents_of_one_kind_have_no_kinds(gpt2: Graph) -> None:
    answer = pipeline_or_plan(gpt2, load_hardware("l4"), 2, stages=[2], options=GPT2_OPTIONS)
    assert isinstance(answer, documents.Pipeline)
    assert answer.bundle is UNSET and answer.kinds == []
    assert answer.peak_limit_bytes == answer.memory_limit_bytes


def test_a_plan_of_a_bundle_may_be_a_pipeline(chain: Graph) -> None:
    answer = pipeline_or_plan(chain, HETEROG, "v100=1,p100=1", stages=[2], options=OPTIONS)
    assert isinstance(answer, documents.Pipeline) and answer.bundle == "v100=1,p100=1"
    for form in PLAN_FORMS:
        with pytest.raises(BadInput, match=r"bundle: stages on several kinds of devices") as error:
            export_plan(answer, form)
        assert error.value.field == "bundle"


# Refused


def test_what_is_refused(chain: Graph) -> None:
    bundle = of(HETEROG, "v100=2,1080ti=4")
    found = PipelineSearch(chain, HETEROG, bundle, OPTIONS, quiet)
    assert found.counts() == [3, 6]
    with pytest.raises(BadInput, match="2 stages of v100=2,1080ti=4") as error:
        found.fastest([2])
    assert error.value.expected == "3, 6"
    for schedules in (("1f1b", "interleaved:2"), ("zb-h1",)):
        with pytest.raises(BadInput, match=f"{schedules[-1]}: no answer for split or interleaved"):
            pipeline_or_plan(
                chain, HETEROG, bundle, stages=[3], schedules=schedules, options=OPTIONS
            )


def test_equal_stages_of_a_kind_are_solved_once(found: Fastest, gpt2: Graph) -> None:
    """Orders of kinds share costs, guides and solved stages."""
    searched = search(gpt2, H100_A100, "h100=8,a100=8", GPT2_OPTIONS)
    first, second = searched.questions([4])
    assert first.kinds is second.kinds and first.kind_of == second.kind_of[::-1]
    guides = [Staged(one, quiet, (1.0,)).guided for one in (first, second)]
    assert all(a.guide is b.guide for a, b in zip(*guides, strict=True))
    assert isinstance(guides[0][0].guide.stages[0], StageProblems)
