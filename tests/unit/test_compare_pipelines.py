"""Pipelines of other systems in a comparison: stages of equal layers, their prices, what fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from harness.graph_builder import mlp
from harness.models.shortened import shortened
from shardwise.answers import Options
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.capture import shipped_graph
from shardwise.cli.compare import compare as compare_command
from shardwise.cost.options import quiet
from shardwise.documents import Comparison, Pipeline
from shardwise.documents.comparison import ComparedMethod
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import collective_times, load_hardware
from shardwise.hardware.host import soft_maximum
from shardwise.peers import compare
from shardwise.peers.evaluate import point_of
from shardwise.peers.pipelines import (
    GPIPE,
    INTERLEAVED,
    MEGATRON_3D,
    METHODS,
    PipedPractice,
    cut_for,
    methods_for,
    piped_point,
    piped_practices,
    stage_sums,
)
from shardwise.pipeline.actions import Kind, Schedule
from shardwise.pipeline.asked import DEFAULT_SCHEDULES
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.replay.stages import ReplayedStages, StageReplayer
from shardwise.search.pipelines.pipeline import Pipeline as Pipelined
from shardwise.search.pipelines.stages import incoming_shares
from shardwise.search.pipelines.uniform import UniformModel, UniformStages

MACHINE = load_hardware("dgx-h100").with_devices_per_node(4)
COUNTS = (4, 8)
OPTIONS = Options(micro_batches=COUNTS, framework="eager")
QUICK = replace(OPTIONS, recompute="never", zero=(0, 1))
"""Options for what does not depend on how strategies save memory."""
WHOLE = methods_for(DEFAULT_SCHEDULES)
"""The methods whose backward is whole (those of others: test_compare_split.py)."""


@pytest.fixture(scope="module")
def whole() -> Graph:
    return read_graph(shipped_graph("gpt2"))


@pytest.fixture(scope="module")
def model(whole: Graph) -> UniformModel:
    return UniformModel(whole, MACHINE, 8)


@pytest.fixture(scope="module")
def stages(model: UniformModel) -> UniformStages:
    """Four stages of two devices."""
    return model.costed(4, 8, OPTIONS, quiet)


@pytest.fixture(scope="module")
def document(gpt2: Graph) -> Comparison:
    return compare(gpt2, MACHINE, 8, OPTIONS, proposals=100, stages=None)


def practices(stages: UniformStages, name: str) -> list[PipedPractice]:
    method, known = WHOLE[name], vars(stages).setdefault("known", {})
    if name not in known:
        known[name] = list(piped_practices(stages, method.schedules[0], method.allowed, quiet))
    return known[name]


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
    ("ends", "layers"),
    [
        ((2, 2), [2, 4, 4, 2]),
        ((1, 3), [1, 4, 4, 3]),
        ((0, 0), [0, 6, 6, 0]),
        ((0, 4), [0, 4, 4, 4]),
    ],
)
def test_the_ends_may_have_other_numbers_of_layers(
    whole: Graph, ends: tuple[int, int], layers: list[int]
) -> None:
    """The embedding is before the first layer, the head behind the last."""
    model = UniformModel(whole, MACHINE, 8, ends={4: ends})
    bounds = model.bounds(4)
    assert model.bounds(2) == (0, 7, 14), "of another number of stages all are equal"
    own = [len([n for n in model.layers if a <= n < b]) for a, b in pairwise(bounds)]
    assert own == layers
    assert bounds[0] == 0 and bounds[-1] == 14


def test_ends_that_leave_unequal_layers_are_refused(whole: Graph) -> None:
    """Two stages are both ends."""
    assert UniformModel(whole, MACHINE, 8, ends={2: (5, 7)}).bounds(2) == (0, 6, 14)
    for count, ends in ((2, (5, 6)), (4, (2, 3))):
        with pytest.raises(BadInput, match=f"{count} stages, the first with {ends[0]} and the la"):
            UniformModel(whole, MACHINE, 8, ends={count: ends}).bounds(count)


def test_ends_with_the_layers_of_the_others_change_nothing(
    whole: Graph, stages: UniformStages
) -> None:
    assert UniformModel(whole, MACHINE, 8, ends={4: (3, 3)}).bounds(4) == stages.bounds


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
    for name in WHOLE:
        method = method_of(document, name)
        assert not method.points and "0 layers" in (method.reason or "")


# The strategies


def test_megatron_shards_states_and_gpipe_nothing(stages: UniformStages) -> None:
    problem = stages.search.problem

    def zero(one: PipedPractice) -> set[int]:
        # A gradient that needs no sum may as well be cut at once: ZeRO 2 beats ZeRO 1.
        rows = zip(problem.coarsened.groups, problem.costs, one.practice.choices, strict=True)
        return {int(cost.zero[k]) for group, cost, k in rows if "wpe" not in group.name}

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
    for name in WHOLE:
        for one in practices(stages, name)[:4]:
            pipeline, practice = one.pipeline, one.practice
            replayed = replayer.replay(practice.choices, practice.edge_choices, (0, 4, 7, 10, 14))
            made = schedule(WHOLE[name].schedules[0], ranks=4, micro_batches=8)
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
            peaks = peaks_without_hops(pipeline, replayed, made)
            cuts = np.array(pipeline.incoming_bytes[1:])
            on_the_way = pipeline.rank_peak_bytes - peaks
            assert (on_the_way[1:-1] >= np.maximum(cuts[:-1], cuts[1:])).all()
            assert (on_the_way <= 3 * (np.append(0, cuts) + np.append(cuts, 0)) + 1).all()
            assert min(pipeline.incoming_bytes[1:]) > 0 and min(pipeline.hops_s) > 0


def peaks_without_hops(
    pipeline: Pipelined, replayed: ReplayedStages, made: Schedule
) -> NDArray[np.float64]:
    """Returns the peaks of ranks without tensors on the way, action by action."""
    parts, peaks = replayed.parts, replayed.of_ranks.update_bytes.copy()
    further = parts.kept_bytes + np.array(pipeline.incoming_bytes)
    for rank, actions in enumerate(made.ranks):
        kept, done = Counter[int](), Counter[int]()
        for kind, stage, _, _ in actions:
            kept[stage] += kind is Kind.FORWARD
            turn = 0 if not done[stage] else 2 if done[stage] == 7 else 1
            part = 0 if kind is Kind.FORWARD else 1
            held = parts.peak_bytes[stage, part, min(turn, 1 + part)]
            held += replayed.of_ranks.start_bytes[rank] - parts.start_bytes[stage]
            held += sum(parts.gradient_bytes[s].sum() for s in done if s != stage and done[s])
            held += sum(kept[s] * further[s] for s in kept) - parts.kept_bytes[stage]
            peaks[rank] = max(peaks[rank], held)
            if kind is Kind.BACKWARD:
                kept[stage] -= 1
                done[stage] += 1
    return np.asarray(peaks)


@pytest.fixture(scope="module", params=[(2, 2), (2, 3), (4, 3)], ids=str)
def interleaved(request: pytest.FixtureRequest, model: UniformModel) -> UniformStages:
    ranks, each = request.param
    return model.costed(ranks, 8, OPTIONS, quiet, each)


def test_interleaved_stages_are_priced_by_their_lists(interleaved: UniformStages) -> None:
    """Step and peaks put together here: action by action of each rank's list."""
    ranks, each, bounds = interleaved.ranks, interleaved.stages_per_rank, interleaved.bounds
    replayer = interleaved.replayer_of()
    methods = WHOLE[MEGATRON_3D]
    for one in list(piped_practices(interleaved, INTERLEAVED, methods.allowed, quiet))[:3]:
        pipeline = one.pipeline
        chosen = one.practice.choices, one.practice.edge_choices
        own = [[*range(rank, ranks * each, ranks)] for rank in range(ranks)]
        alone = replayer.replay(*chosen, bounds)
        together = replayer.replay(*chosen, bounds, own)
        made = schedule(INTERLEAVED, ranks=ranks, stages_per_rank=each, micro_batches=8)
        times = [
            StageTimes(float(f), float(b), 0.0)
            for f, b in zip(alone.forward_s, alone.backward_s, strict=True)
        ]
        passes = simulate(made, times, pipeline.hops_s)
        ends = []
        for rank, stages in enumerate(own):
            update_s = together.update_s[stages].sum() + sum(pipeline.tied_s[s] for s in stages)
            ends.append(passes.spans_s[rank][-1][1] + float(update_s))
        assert pipeline.step_s == pytest.approx(max(ends))
        on_the_way = pipeline.rank_peak_bytes - peaks_without_hops(pipeline, together, made)
        most = max(pipeline.incoming_bytes)
        assert (0.9 * most <= on_the_way).all() and (on_the_way <= 4 * each * most).all()
        assert pipeline.peak_bytes.tolist() == pipeline.rank_peak_bytes.tolist() * each
        point = piped_point(pipeline)
        assert point.piped and point.piped.peak_bytes == tuple(pipeline.rank_peak_bytes)
        assert point.piped.stages_per_rank == each
        assert pipeline.idle == pytest.approx(1 - np.mean(busy_s(one)) / pipeline.step_s)


def busy_s(one: PipedPractice) -> list[float]:
    """Returns how long each rank is busy."""
    pipeline = one.pipeline
    passes = 8 * (pipeline.replayed.forward_s + pipeline.replayed.backward_s) + pipeline.update_s
    return [float(passes[rank :: pipeline.ranks].sum()) for rank in range(pipeline.ranks)]


@pytest.mark.parametrize("recompute", ["never", "auto"])
def test_a_further_micro_batch_keeps_what_sums_say(whole: Graph, recompute: str) -> None:
    """But for what came in, and tensors that never exist at once, which sums count."""
    options = Options(micro_batches=(8,), recompute=recompute, framework="eager")
    stages = UniformModel(whole, MACHINE, 4).costed(4, 8, options, quiet)
    for one in piped_practices(stages, "1f1b", lambda one: one.recompute == "none", quiet):
        chosen = one.practice.choices, one.practice.edge_choices
        sums = stage_sums(
            stages.search.problem, stages.units.of_group, stages.bounds, *chosen, kept_by=[1] * 4
        )
        summed = np.array([stage.activation_bytes + stage.edge_bytes for stage in sums])
        kept = one.pipeline.replayed.kept_bytes + np.array(one.pipeline.incoming_bytes)
        assert (kept <= summed * 1.01).all() and kept == pytest.approx(summed, rel=0.08)


def test_what_devices_have_alike_may_be_sent_in_parts(stages: UniformStages) -> None:
    """Two tensor-parallel devices send half a tensor each, which is then gathered."""
    whole = [one.pipeline for one in practices(stages, MEGATRON_3D)]
    parts = [one.pipeline for one in practices(replace(stages, scattered=True), MEGATRON_3D)]
    mesh, seen = stages.search.problem.context.mesh, set()
    for one, other in zip(whole, parts, strict=True):
        assert one.incoming_bytes == other.incoming_bytes
        shares = incoming_shares(stages.search.problem, stages.units, one.choices, stages.bounds[1])
        ((size, same),) = shares
        seen.add(bool(same))
        gather_s = float(
            collective_times(MACHINE, "all_gather", np.array([size]), mesh.group_shape(1))[0]
        )
        parted_s = one.axes.hop_s(0, size / 2) + gather_s
        assert other.hops_s[0] == pytest.approx(parted_s if same else one.hops_s[0])
    assert seen == {True, False}


def test_a_rank_of_all_stages_is_the_whole_model(stages: UniformStages) -> None:
    """What a rank has at the end and holds, of the replay without a pipeline."""
    (one, *_) = practices(stages, MEGATRON_3D)
    chosen = one.practice.choices, one.practice.edge_choices
    own = stages.search.own_replayer
    whole = own.replay(chosen[0][None], chosen[1][None])
    of_ranks = stages.replayer_of().replay(*chosen, stages.bounds, [range(4)])
    assert of_ranks.of_ranks.most_bytes == pytest.approx(whole.peak_bytes)
    # Parameters, states and gradients of all stages, and what none of them has alone.
    assert of_ranks.of_ranks.lasting_bytes[0] <= of_ranks.lasting_bytes.sum()
    assert of_ranks.of_ranks.lasting_bytes[0] < whole.peak_bytes[0]
    total, period = own.periods(own.run(own.values(chosen[0][None], chosen[1][None])))
    # The host's time is that of the passes.
    passes = soft_maximum(8 * period * whole.device_s / total, whole.host_s)
    rest = whole.time_s - passes
    assert of_ranks.update_s.sum() == pytest.approx(rest[0])


def test_stages_that_are_alike_are_replayed_once(
    stages: UniformStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayer = stages.replayer_of()
    rows: list[int] = []
    once = StageReplayer._different

    def counted(own: StageReplayer, *arguments: Any) -> Any:
        different, which = once(own, *arguments)
        rows.append(len(different))
        return different, which

    def every(own: StageReplayer, choices: Any, edges: Any, groups: Any, crossings: Any) -> Any:
        return [*range(len(groups))], np.arange(len(groups))

    own = [[0, 2], [1, 3]]
    for one in practices(stages, MEGATRON_3D):
        chosen = one.practice.choices, one.practice.edge_choices
        monkeypatch.setattr(StageReplayer, "_different", counted)
        some = replayer.replay(*chosen, stages.bounds, own)
        monkeypatch.setattr(StageReplayer, "_different", every)
        alone = replayer.replay(*chosen, stages.bounds, own)
        for name in ("forward_s", "backward_s", "update_s"):
            assert getattr(some, name) == pytest.approx(getattr(alone, name)), name
        for mine, theirs in ((some.parts, alone.parts), (some.of_ranks, alone.of_ranks)):
            for name, values in mine._asdict().items():
                assert values == pytest.approx(getattr(theirs, name)), name
    # Two of four stages have no embedding and no head; without a choice of theirs they are alike.
    assert min(rows) == 5


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


@pytest.mark.parametrize("name", list(WHOLE))
def test_sums_leave_out_none_that_is_faster(stages: UniformStages, name: str) -> None:
    """With the time of the second as what is to be beaten, the fastest is still found."""
    method, steps = WHOLE[name], {one.pipeline.step_s for one in practices(stages, name)}
    first, second, *_ = sorted(steps)
    again = piped_practices(stages, method.schedules[0], method.allowed, quiet, second)
    assert min(one.pipeline.step_s for one in again) == first


# The comparison


@pytest.fixture(scope="module")
def costed_once(gpt2: Graph) -> Any:
    model = UniformModel(gpt2, MACHINE, 8)
    return cache(lambda *sizes: (model, model.costed(*sizes, OPTIONS, quiet)))


def every(costed_once: Any, method: Any, count: int) -> Iterator[PipedPractice]:
    for batches in COUNTS:
        model, costed = costed_once(count, batches)
        costed.scattered = method.scattered
        for order, cut in cut_for(model, costed, method.schedules):
            yield from piped_practices(cut, order, method.allowed, quiet)


@pytest.mark.parametrize("name", list(WHOLE))
def test_points_are_the_best_of_each_number_of_stages(
    costed_once: Any, document: Comparison, name: str
) -> None:
    method = method_of(document, name)
    assert [point.pipeline.stages for point in method.points if point.pipeline] == [2, 4]
    for point, count in zip(method.points, (2, 4), strict=True):
        known = list(every(costed_once, WHOLE[name], count))
        best = min(known, key=lambda one: one.pipeline.rank).pipeline
        assert point.replayed_time_s == best.step_s
        assert point.micro_batches == best.micro_batches
        assert point.replayed_peak_bytes == round(best.peak_bytes.max())
        assert point.pipeline and point.pipeline.peak_bytes == [
            round(b) for b in best.rank_peak_bytes
        ]
        assert point.pipeline.idle == best.idle
        each = f"·vpp{best.stages_per_rank}" if best.stages_per_rank > 1 else ""
        assert (point.label or "").startswith(f"pp{count}{each}·dp")


def test_ours_is_the_plan_with_stages(gpt2: Graph, document: Comparison) -> None:
    (point,) = method_of(document, "shardwise-pipelines").points
    planned = pipeline_or_plan(gpt2, MACHINE, 8, stages=[2, 4], options=OPTIONS)
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
    assert set(names).isdisjoint({*METHODS, "alpa", "shardwise-pipelines"})
    assert [m.method for m in document.methods if m.method in names] == names
    assert plain.certificate and document.certificate
    assert plain.certificate.time_lower_bound_s == document.certificate.time_lower_bound_s
    for method in plain.methods:
        steps = [point.replayed_time_s for point in method.points]
        assert steps == [p.replayed_time_s for p in method_of(document, method.method).points]


def test_what_does_not_fit_says_so() -> None:
    gpt2, limit = shortened("gpt2", 2), 10**8
    options = replace(QUICK, micro_batches=(4,), memory_limit_bytes=limit)
    document = compare(gpt2, MACHINE, 8, options, proposals=10, stages=(2,))
    for name in WHOLE:
        (point,) = method_of(document, name).points
        assert point.pipeline and max(point.pipeline.peak_bytes) > limit and not point.feasible
        assert method_of(document, name).best is None
    assert "pipeline of 2 stages fits" in (method_of(document, "shardwise-pipelines").reason or "")


def test_a_stage_of_many_says_why_it_is_not_there() -> None:
    options = replace(QUICK, micro_batches=(8,))
    document = compare(shortened("gpt2", 3), MACHINE, 4, options, proposals=10, stages=(4,))
    assert "3 layers do not divide into 4" in (method_of(document, GPIPE).reason or "")


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


def test_the_command_prints_peaks_of_stages(gpt2_file: str) -> None:
    arguments = [gpt2_file, "--hardware", "dgx-h100", "--gpus", "8"]
    arguments += ["--stages", "4"]
    arguments += ["--micro-batches", "8", "--proposals", "10", "--quiet"]
    arguments += ["--recompute", "never", "--zero", "0,1"]
    result = CliRunner().invoke(compare_command, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "Megatron-style 3D" in result.output and "GPipe-style" in result.output
    assert "peak GiB of each stage" in result.output
    assert "no strategy without a pipeline" in result.output
