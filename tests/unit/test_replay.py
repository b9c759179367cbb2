"""Replayed steps: by hand, against searched costs, and what frontiers and plans make of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from harness.answers import curve, frontier, plan
from harness.graph_builder import mlp
from harness.models.shortened import shortened
from shardwise.answers import Infeasible, Options
from shardwise.capture import shipped_graph
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.replay import program as step_programs
from shardwise.replay.replay import Replayer
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Search, Subject, search

WEIGHT = 32 * 128 * 4
EVERYTHING = Options(overlap=False, zero=(0, 1, 2, 3), recompute="auto")


@pytest.fixture(scope="module")
def result(gpt2: Graph) -> Search:
    return search(Subject.of(gpt2), load_hardware("dgx-h100"), 8, EVERYTHING)


def alone(graph: Graph, options: Options, gpus: int = 1) -> Search:
    machine = replace(load_hardware("l4"), host=None)
    return search(Subject.of(graph), machine, gpus, options)


@pytest.mark.parametrize(
    ("update", "optimizer", "most"),
    [
        # Backward of the first product: both weight gradients, x, the gradient of h.
        ("fused", "adam", 2 * WEIGHT + 1024 + 4096),
        ("foreach", "sgd", 2 * WEIGHT + 1024 + 4096),
        # All roots of second moments besides all gradients.
        ("foreach", "adam", 4 * WEIGHT + 1024),
        # The second weight's root and denominator, and the first one's denominator.
        ("for-loop", "adam", 5 * WEIGHT + 1024),
    ],
)
def test_a_step_by_hand(update: str, optimizer: str, most: int) -> None:
    """Weights with Adam's moments, and whatever exists besides them at the worst moment."""
    options = Options(overlap=False, optimizer=optimizer, step=StepSettings(update=update))
    state = 2 if optimizer == "adam" else 0
    replayed = alone(mlp(), options).replayed
    assert replayed.peak_bytes.tolist() == [2 * (1 + state) * WEIGHT + most]


def test_buffers_are_rounded_up_to_blocks() -> None:
    graph = mlp(batch=1)
    coarse, fine = (
        float(
            alone(
                graph, Options(overlap=False, step=StepSettings(block_bytes=block))
            ).replayed.peak_bytes[0]
        )
        for block in (4096, 1)
    )
    # x and tensors of its shape are 128 bytes.
    assert coarse > fine
    assert coarse % 4096 == 0


def test_one_device_has_nothing_to_overlap() -> None:
    one = alone(mlp(), Options(overlap=False))
    assert one.replayed.communication_s.tolist() == [0.0]
    assert one.replayed.time_s == pytest.approx(one.time_s, rel=1e-12)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        Options(overlap=False, zero=(0,)),
        EVERYTHING,
        Options(overlap=False, zero=(3,), recompute="always", precision="bf16"),
        Options(
            overlap=False,
            zero=(0,),
            pins=(parse_pin("partial=reduce_scatter"), parse_pin("reuse=before")),
        ),
    ],
)
@pytest.mark.parametrize(
    "graph", [shortened("gpt2", 2), read_graph(shipped_graph("vgg16"))], ids=["gpt2", "vgg16"]
)
def test_busy_times_add_up_to_the_searched_time(
    graph: Graph, options: Options, micro_batches: int
) -> None:
    """Every task of a replay is a term of the costs, and every term is a task."""
    subject = Subject.of(graph)
    result = search(
        subject, load_hardware("dgx-a100-80gb"), 8, options, micro_batches=micro_batches
    )
    replayed = result.replayed
    assert replayed.compute_s + replayed.communication_s == pytest.approx(result.time_s, rel=1e-9)
    compute = [result.compute_s(point) for point in range(len(result.time_s))]
    assert replayed.compute_s == pytest.approx(np.array(compute), rel=1e-9)


def test_times_keep_their_bounds(result: Search) -> None:
    replayed = result.replayed
    longest = np.maximum(replayed.compute_s, replayed.communication_s)
    assert (replayed.device_s >= longest * (1 - 1e-12)).all()
    assert (replayed.device_s <= result.time_s * (1 + 1e-12)).all()
    assert replayed.exposed_s == pytest.approx(replayed.device_s - replayed.compute_s)
    assert (replayed.device_s < result.time_s * 0.99).any()  # something overlaps
    assert (replayed.time_s > np.maximum(replayed.device_s, replayed.host_s)).all()


def test_the_peak_holds_parameters_and_state(result: Search) -> None:
    """Of each point: the parameters with their state, without gradients."""
    for point in range(0, len(result.time_s), 20):
        total = 0.0
        for cost, k in zip(result.problem.costs, result.solution.choices[point], strict=True):
            total += float(cost.parameter_bytes[k])
        # 16 bytes per element are weight, gradient and state; at least 12 of them last.
        assert result.replayed.peak_bytes[point] >= total * 12 / 16


def test_what_is_held_at_the_peak_adds_up(result: Search) -> None:
    choices, edges = result.solution.choices[3], result.solution.edge_choices[3]
    moment = result.replayer.moment(choices, edges)
    rounded = sum(-(-size // 512) * 512 for _, size in moment.held)
    assert moment.peak_bytes == rounded == result.replayed.peak_bytes[3]
    assert max(task_bytes for *_, task_bytes in moment.tasks) == moment.peak_bytes
    assert moment.task in {label for label, *_ in moment.tasks}


def test_replaying_many_is_replaying_each(result: Search) -> None:
    picked = [0, 5, len(result.time_s) - 1]
    choices, edges = result.solution.choices, result.solution.edge_choices
    together = result.replayer.replay(choices[picked], edges[picked])
    for row, point in enumerate(picked):
        one = result.replayer.replay(choices[point : point + 1], edges[point : point + 1])
        assert one.peak_bytes[0] == together.peak_bytes[row] == result.replayed.peak_bytes[point]
        assert one.time_s[0] == pytest.approx(together.time_s[row], rel=1e-12)


def test_micro_batches_left_out_are_like_the_middle_one(
    gpt2: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(overlap=False, zero=(0, 3), recompute="auto")
    result = search(Subject.of(gpt2), load_hardware("dgx-h100"), 8, options, micro_batches=8)
    choices, edges = result.solution.choices[::40], result.solution.edge_choices[::40]
    short = result.replayer.replay(choices, edges)
    monkeypatch.setattr(step_programs, "WRITTEN", 8)
    full = Replayer(result.problem, options.step).replay(choices, edges)
    # What is on its way at the worst moment may differ a little from one to the next.
    assert full.peak_bytes == pytest.approx(short.peak_bytes, rel=2e-3)
    assert full.time_s == pytest.approx(short.time_s, rel=1e-3)
    assert full.communication_s == pytest.approx(short.communication_s, rel=1e-9)


def _one(gpt2: Graph, *rules: str, zero: int = 0) -> Search:
    """GPT-2 data-parallel on 8 devices, with one strategy."""
    options = Options(
        overlap=False, zero=(zero,), pins=tuple(map(parse_pin, ("inside=batch", *rules)))
    )
    result = search(Subject.of(gpt2), load_hardware("dgx-h100"), 8, options)
    assert len(result.time_s) == 1
    return result


def test_every_zero_stage_and_recomputation_lower_the_peak(gpt2: Graph) -> None:
    plain = _one(gpt2)
    peaks = [float(_one(gpt2, zero=stage).replayed.peak_bytes[0]) for stage in (1, 2, 3)]
    assert float(plain.replayed.peak_bytes[0]) > peaks[0] >= peaks[1] > peaks[2]
    again = _one(gpt2, "transformer.h.*:recompute=yes")
    assert again.replayed.peak_bytes[0] < plain.replayed.peak_bytes[0] * 0.85
    assert again.replayed.compute_s[0] > plain.replayed.compute_s[0] * 1.1


def test_gradients_are_reduced_while_backward_goes_on(gpt2: Graph) -> None:
    """Data parallelism hides most of its all_reduces, as DDP does."""
    plain = _one(gpt2)
    assert plain.replayed.exposed_s[0] < 0.5 * plain.replayed.communication_s[0]


@pytest.mark.parametrize(
    "options",
    [Options(overlap=False), Options(zero=(0, 1), recompute="never", micro_batches=(2,))],
)
def test_frontiers_say_what_fits_when_replayed(gpt2: Graph, options: Options) -> None:
    hardware = replace(load_hardware("dgx-h100"), host=None)
    free = frontier(gpt2, hardware, 4, options)
    peaks = [point["replayed_peak_bytes"] for point in free["points"]]
    limit = float(np.median(peaks))
    document = frontier(gpt2, hardware, 4, replace(options, memory_limit_bytes=limit))
    for point, peak in zip(document["points"], peaks, strict=True):
        assert point["replayed_peak_bytes"] == peak
        assert point["feasible"] == (peak <= limit)
        assert 0 < point["replayed_time_s"] <= point["time_s"] * (1 + 1e-9)
    assert len({point["feasible"] for point in document["points"]}) == 2


def test_whatever_fits_is_found(gpt2: Graph) -> None:
    """No limit is infeasible under which a strategy that we know fits; nor is it much slower."""
    hardware = load_hardware("dgx-v100-16gb")
    whole = search(Subject.of(gpt2), hardware, 8, EVERYTHING)
    peaks, times = whole.replayed.peak_bytes, whole.time_s
    for limit in np.linspace(peaks.min(), peaks.max(), 7):
        options = replace(EVERYTHING, memory_limit_bytes=float(limit))
        chosen = plan(gpt2, hardware, 8, options=options)["predicted"]
        assert chosen["peak_bytes"] <= limit
        assert chosen["time_s"] <= times[peaks <= limit].min() * 1.02
    with pytest.raises(Infeasible, match="needs"):
        options = replace(EVERYTHING, memory_limit_bytes=float(peaks.min()) * 0.3)
        plan(gpt2, hardware, 8, options=options)


def test_the_search_moves_when_peaks_are_above_sums(gpt2: Graph) -> None:
    """The first aim at the limit finds strategies whose peaks are over it."""
    hardware, subject = load_hardware("dgx-v100-16gb"), Subject.of(gpt2)
    whole = search(subject, hardware, 8, EVERYTHING)
    limit = float(np.percentile(whole.replayed.peak_bytes, 60))
    options = replace(EVERYTHING, memory_limit_bytes=limit)
    searches = search_fitting(subject, hardware, Devices.alike(8), options)
    assert len(searches) > 1
    assert searches[0].replayer is searches[-1].replayer
    assert any(one.fits.any() for one in searches)


def test_curves_tell_peak_and_sum(gpt2: Graph) -> None:
    for overlap in (False, True):
        options = Options(overlap=overlap, micro_batches=(1,))
        document = curve(gpt2, load_hardware("dgx-h100"), 2, options)
        assert document["overlap"] is overlap
        point = document["points"][1]
        assert point["peak_bytes"] <= document["memory_limit_bytes"]
        assert point["memory_bytes"] != point["peak_bytes"]
        ranking = point["replayed_time_s" if overlap else "time_s"]
        assert point["samples_per_s"] == pytest.approx(document["batch_size"] / ranking)
        assert point["best_time_s"] == ranking


def test_overlap_ranks_by_the_replayed_time(gpt2: Graph) -> None:
    hardware, subject = load_hardware("dgx-h100"), Subject.of(gpt2)
    predicted = {}
    for overlap in (False, True):
        options = Options(overlap=overlap, micro_batches=(1, 2), framework="eager")
        predicted[overlap] = plan(gpt2, hardware, 8, options=options)["predicted"]
        best = search_fitting(subject, hardware, Devices.alike(8), options)
        key = "replayed_time_s" if overlap else "time_s"
        fastest = min(float(one.ranking_s[one.fits].min(initial=inf)) for one in best)
        assert predicted[overlap][key] == pytest.approx(fastest)
    assert predicted[True]["replayed_time_s"] <= predicted[False]["replayed_time_s"]


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"update": "lazy"}, {"block_bytes": 0}])
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="expected"):
        StepSettings(**wrong)  # type: ignore[arg-type]
