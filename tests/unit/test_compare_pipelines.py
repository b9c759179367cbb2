"""Pipelines of other systems in a comparison: stages of equal layers, their prices, what fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.advise import Options
from shardwise.advise.pipelines import pipeline_or_plan
from shardwise.capture import shipped_graph
from shardwise.cli.compare import compare as compare_command
from shardwise.cost.options import quiet
from shardwise.documents import Comparison, Pipeline
from shardwise.documents.comparison import ComparedMethod
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare
from shardwise.peers.evaluate import point_of
from shardwise.peers.pipelines import (
    GPIPE,
    MEGATRON_3D,
    METHODS,
    PipedPractice,
    piped_practices,
    stage_sums,
)
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.uniform import UniformModel, UniformStages

MACHINE = load_hardware("dgx-h100").with_devices_per_node(4)
COUNTS = (2, 4, 8)
OPTIONS = Options(micro_batches=COUNTS)


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return read_graph(shipped_graph("gpt2"))


@pytest.fixture(scope="module")
def model(gpt2: Graph) -> UniformModel:
    return UniformModel(gpt2, MACHINE, 8)


@pytest.fixture(scope="module")
def stages(model: UniformModel) -> UniformStages:
    """Four stages of two devices."""
    return model.costed(4, 8, OPTIONS, quiet)


@pytest.fixture(scope="module")
def document(gpt2: Graph) -> Comparison:
    return compare(gpt2, MACHINE, 8, OPTIONS, proposals=100, stages=None)


def practices(stages: UniformStages, name: str) -> list[PipedPractice]:
    method = METHODS[name]
    return list(piped_practices(stages, method.schedule, method.allowed, quiet))


def method_of(document: Comparison, name: str) -> ComparedMethod:
    return next(method for method in document.methods if method.method == name)


# The cuts


def test_stages_have_equal_layers(model: UniformModel, stages: UniformStages) -> None:
    """Twelve layers, with the embedding before the first and the head behind the last."""
    assert model.counts() == [2, 4]
    assert model.bounds(2) == (0, 7, 14)
    assert stages.bounds == (0, 4, 7, 10, 14)
    layers = [
        {name for name in stages.units.names[first:last] if name.split(".")[-1].isdecimal()}
        for first, last in pairwise(stages.bounds)
    ]
    assert [len(names) for names in layers] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("count", "words"), [(3, "do not divide 8 GPUs"), (8, "12 layers do not divide"), (1, "GPUs")]
)
def test_what_does_not_divide_is_refused(model: UniformModel, count: int, words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        model.bounds(count)
    assert error.value.expected == "2 or 4"


def test_few_micro_batches_are_refused(model: UniformModel) -> None:
    for batches in (1, 3, 5):
        with pytest.raises(BadInput, match="divisor of the batch from 4"):
            model.costed(2, batches, OPTIONS, quiet)


def test_a_model_without_layers_says_so() -> None:
    document = compare(mlp(), MACHINE, 4, Options(micro_batches=(4,)), proposals=10, stages=None)
    for name in METHODS:
        method = method_of(document, name)
        assert not method.points and "0 layers" in (method.reason or "")


# The strategies


def test_megatron_shards_states_and_gpipe_nothing(stages: UniformStages) -> None:
    problem = stages.search.problem

    def zero(one: PipedPractice) -> set[int]:
        pairs = zip(problem.costs, one.practice.choices, strict=True)
        return {int(cost.zero[k]) for cost, k in pairs}

    degrees = {one.practice.parallelism for one in practices(stages, MEGATRON_3D)}
    assert {(p.data, p.tensor) for p in degrees} == {(2, 1), (1, 2)}
    assert {p.recompute for p in degrees} == {"none", "selective", "full"}
    for one in practices(stages, MEGATRON_3D):
        assert zero(one) <= ({0, 1} if one.practice.parallelism.data > 1 else {0})
    assert any(1 in zero(one) for one in practices(stages, MEGATRON_3D))
    for one in practices(stages, GPIPE):
        assert one.pipeline.schedule == "gpipe" and zero(one) == {0}
        assert one.practice.parallelism.tensor == 1


def test_their_price_is_that_of_replayed_stages(stages: UniformStages) -> None:
    """Step and peaks from the stages' replay and the simulated schedule, put together here."""
    replayer = StageReplayer(stages.search.own_replayer, stages.units.of_group)
    for name in METHODS:
        for one in practices(stages, name)[:4]:
            pipeline, practice = one.pipeline, one.practice
            replayed = replayer.replay(practice.choices, practice.edge_choices, (0, 4, 7, 10, 14))
            made = schedule(METHODS[name].schedule, ranks=4, micro_batches=8)
            times = [
                StageTimes(float(f), float(b), 0.0)
                for f, b in zip(replayed.forward_s, replayed.backward_s, strict=True)
            ]
            passes = simulate(made, times, pipeline.hops_s)
            ends = [spans[-1][1] for spans in passes.spans_s]
            update = replayed.update_s + np.array(pipeline.tied_s)
            assert pipeline.step_s == pytest.approx(float(np.max(np.array(ends) + update)))
            held = np.array([8] * 4 if name == GPIPE else [4, 3, 2, 1])
            assert [passes.peak_kept(s) for s in range(4)] == held.tolist()
            peaks = replayed.peak_bytes + (held - 1) * replayed.kept_bytes
            peaks += held * np.array(pipeline.incoming_bytes)
            cuts = np.array(pipeline.incoming_bytes[1:])
            on_the_way = pipeline.peak_bytes - peaks
            assert (on_the_way[1:-1] >= np.maximum(cuts[:-1], cuts[1:])).all()
            assert (on_the_way <= 3 * (np.append(0, cuts) + np.append(cuts, 0)) + 1).all()
            assert pipeline.on_the_way_bytes == pytest.approx(on_the_way)
            assert min(pipeline.incoming_bytes[1:]) > 0 and min(pipeline.hops_s) > 0


def test_tied_embeddings_are_summed_between_stages(stages: UniformStages) -> None:
    (one, *_) = practices(stages, GPIPE)
    first, *middle, last = one.pipeline.tied_s
    assert first == last > 0 and not any(middle)


def test_sums_of_stages_are_those_of_the_whole(stages: UniformStages) -> None:
    problem = stages.search.problem
    for one in practices(stages, MEGATRON_3D)[:3]:
        chosen = one.practice.choices, one.practice.edge_choices
        whole = point_of(problem, *chosen).breakdown
        of_stages = stage_sums(
            problem, stages.units.of_group, stages.bounds, *chosen, kept_by=[1] * 4
        )
        assert sum(s.parameter_bytes for s in of_stages) == pytest.approx(whole.parameter_bytes)
        assert sum(s.activation_bytes for s in of_stages) == pytest.approx(whole.activation_bytes)
        assert sum(s.edge_bytes for s in of_stages) == pytest.approx(whole.edge_bytes)
        assert sum(s.synchronisation_s for s in of_stages) == pytest.approx(whole.synchronisation_s)
        assert sum(s.compute_s - problem.fixed_time_s for s in of_stages) == pytest.approx(
            whole.compute_s - problem.fixed_time_s
        )


@pytest.mark.parametrize("name", list(METHODS))
def test_sums_leave_out_none_that_is_faster(stages: UniformStages, name: str) -> None:
    """With the time of the second as what is to be beaten, the fastest is still found."""
    method, steps = METHODS[name], {one.pipeline.step_s for one in practices(stages, name)}
    first, second, *_ = sorted(steps)
    again = piped_practices(stages, method.schedule, method.allowed, quiet, second)
    assert min(one.pipeline.step_s for one in again) == first


# The comparison


def every(model: UniformModel, name: str, count: int) -> Iterator[PipedPractice]:
    for batches in (4, 8):
        yield from practices(model.costed(count, batches, OPTIONS, quiet), name)


@pytest.mark.parametrize("name", list(METHODS))
def test_points_are_the_best_of_each_number_of_stages(
    model: UniformModel, document: Comparison, name: str
) -> None:
    method = method_of(document, name)
    assert [point.pipeline.stages for point in method.points if point.pipeline] == [2, 4]
    for point, count in zip(method.points, (2, 4), strict=True):
        known = list(every(model, name, count))
        best = min(known, key=lambda one: one.pipeline.rank).pipeline
        assert point.replayed_time_s == best.step_s
        assert point.micro_batches == best.micro_batches
        assert point.replayed_peak_bytes == round(best.peak_bytes.max())
        assert point.pipeline and point.pipeline.peak_bytes == [round(b) for b in best.peak_bytes]
        assert point.pipeline.idle == best.idle
        assert (point.label or "").startswith(f"pp{count}·dp")


def test_ours_is_the_plan_with_stages(gpt2: Graph, document: Comparison) -> None:
    (point,) = method_of(document, "shardwise-pipelines").points
    planned = pipeline_or_plan(gpt2, MACHINE, 8, stages=[2, 4, 8], options=OPTIONS)
    assert isinstance(planned, Pipeline) and point.pipeline
    assert point.replayed_time_s == planned.predicted.step_s
    assert point.pipeline.peak_bytes == [stage.peak_bytes for stage in planned.stages]
    assert point.pipeline.idle == planned.predicted.idle
    ours = min(
        point.replayed_time_s, method_of(document, "shardwise").points[0].replayed_time_s or 0.0
    )
    for method in document.methods:
        for other in method.points:
            assert other.our_time_s == ours
            assert other.slower_by == pytest.approx((other.replayed_time_s or 0.0) / ours - 1)


def test_without_stages_all_is_as_it_was(gpt2: Graph, document: Comparison) -> None:
    plain = compare(gpt2, MACHINE, 8, OPTIONS, proposals=100)
    names = [method.method for method in plain.methods]
    assert set(names).isdisjoint({*METHODS, "shardwise-pipelines"})
    assert [m.method for m in document.methods if m.method in names] == names
    assert plain.certificate and document.certificate
    assert plain.certificate.time_lower_bound_s == document.certificate.time_lower_bound_s
    for method in plain.methods:
        steps = [point.replayed_time_s for point in method.points]
        assert steps == [p.replayed_time_s for p in method_of(document, method.method).points]


def test_what_does_not_fit_says_so(gpt2: Graph) -> None:
    limit = 10**9
    options = Options(micro_batches=(4,), memory_limit_bytes=limit)
    document = compare(gpt2, MACHINE, 8, options, proposals=10, stages=(2,))
    for name in METHODS:
        (point,) = method_of(document, name).points
        assert point.pipeline and max(point.pipeline.peak_bytes) > limit and not point.feasible
        assert method_of(document, name).best is None
    assert "pipeline of 2 stages fits" in (method_of(document, "shardwise-pipelines").reason or "")


def test_a_stage_of_many_says_why_it_is_not_there(gpt2: Graph) -> None:
    document = compare(gpt2, MACHINE, 8, OPTIONS, proposals=10, stages=(8,))
    assert "12 layers do not divide into 8" in (method_of(document, GPIPE).reason or "")


@pytest.mark.parametrize(
    ("options", "gpus", "field"),
    [(Options(overlap=False, micro_batches=(4,)), 8, "objective"), (Options(), 0, "gpus")],
)
def test_what_pipelines_are_not_compared_with(
    gpt2: Graph, options: Options, gpus: int, field: str
) -> None:
    with pytest.raises(BadInput) as error:
        compare(gpt2, MACHINE, gpus, options, proposals=10, stages=(2,))
    assert error.value.field == field


def test_the_command_prints_peaks_of_stages() -> None:
    arguments = ["shipped:gpt2", "--hardware", "dgx-h100", "--gpus", "8", "--stages", "4"]
    arguments += ["--micro-batches", "8", "--proposals", "10", "--quiet"]
    result = CliRunner().invoke(compare_command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "Megatron-style 3D" in result.output and "GPipe-style" in result.output
    assert "peak GiB of each stage" in result.output
    assert "no strategy without a pipeline" in result.output
