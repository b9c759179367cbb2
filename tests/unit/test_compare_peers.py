"""Each peer's strategies: what they are by hand, and that they are priced as ours are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.models.comparison_models import gram, hardware, residual_block, solved, splits
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.errors import Cancelled
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.peers import data_parallel, data_parallel_over_mini_time, evaluate
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import point_of, points_of
from shardwise.peers.flexflow import flexflow, random_search
from shardwise.peers.fsdp import fsdp
from shardwise.peers.megatron import megatron
from shardwise.peers.optcnn import optcnn, output_splits
from shardwise.peers.restrict import LEAST_TIME_EPSILON, everything, least_time, restrict, solve
from shardwise.peers.spaces import problem_with
from shardwise.search.search import Search
from shardwise.sharding.names import named_dimensions

VGG16_PARAMETERS = 138_357_544
VGG16_BATCH = 256
VGG16_KEPT_ELEMENTS = (
    # per sample: image, outputs of convolutions (after ReLU), of pooling, of both hidden layers
    # (after ReLU and after dropout), logits
    3 * 224**2
    + (2 * 64 * 224**2 + 2 * 128 * 112**2 + 3 * 256 * 56**2 + 3 * 512 * 28**2 + 3 * 512 * 14**2)
    + (64 * 112**2 + 128 * 56**2 + 256 * 28**2 + 512 * 14**2 + 512 * 7**2)
    + 4 * 4096
    + 1000
)
VGG16_KEPT_BYTES = 4 * VGG16_KEPT_ELEMENTS + 8
"""float32, and a label of 8 bytes."""


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    return read_graph(shipped_graph("vgg16"))


@pytest.fixture(scope="module")
def vgg16_on_4(vgg16: Graph) -> Search:
    return solved(vgg16, load_hardware("dgx-v100-16gb"), 4, splits(0.05))


@pytest.fixture(scope="module")
def vgg16_on_16(vgg16: Graph) -> Search:
    return solved(vgg16, load_hardware("dgx-v100-16gb"), 16, splits(0.05))


@pytest.fixture(scope="module")
def gpt2_on_4() -> Search:
    gpt2 = read_graph(shipped_graph("gpt2"))
    return solved(gpt2, load_hardware("dgx-h100"), 4, splits(0.1))


@pytest.fixture(scope="module")
def block() -> Search:
    """A residual block on two nodes of two."""
    return solved(residual_block(), hardware(2), 4)


def split_of(result: Search, choices: np.ndarray, group: str) -> list[str | None]:
    """The variable that each mesh axis splits in the group of that name."""
    for cost, member, k in zip(
        result.problem.costs, result.problem.coarsened.groups, choices, strict=True
    ):
        if member.name == group:
            return [None if v < 0 else member.variables[v] for v in cost.assignment[int(k)]]
    raise AssertionError(group)


# evaluate


def test_our_own_points_are_priced_as_the_solver_did(block: Search) -> None:
    for point, memory, time in zip(points_of(block), block.memory_bytes, block.time_s, strict=True):
        assert point.memory_bytes == pytest.approx(memory, rel=1e-12)
        assert point.time_s == pytest.approx(time, rel=1e-12)


@pytest.mark.parametrize("smallest", [False, True])
def test_any_strategy_equals_the_sum_of_its_breakdown(block: Search, smallest: bool) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        choices = [int(random.integers(len(cost.time_s))) for cost in block.problem.costs]
        point = evaluate(block.problem, choices, smallest=smallest)
        assert point.breakdown.memory_bytes == pytest.approx(point.memory_bytes, rel=1e-12)
        assert point.breakdown.time_s == pytest.approx(point.time_s, rel=1e-12)
        assert point.compute_s + point.communication_s == pytest.approx(point.time_s)


def test_edges_take_the_fastest_or_the_smallest_copy(block: Search) -> None:
    random = np.random.default_rng(1)
    differ = 0
    for _ in range(50):
        choices = [int(random.integers(len(cost.time_s))) for cost in block.problem.costs]
        fast = evaluate(block.problem, choices)
        small = evaluate(block.problem, choices, smallest=True)
        assert fast.time_s <= small.time_s
        assert small.memory_bytes <= fast.memory_bytes
        differ += fast.memory_bytes > small.memory_bytes
    assert differ


# named dimensions


def test_names_are_what_the_wiring_forces(block: Search) -> None:
    """The residual stream has one width; the hidden and the head's have names of their own."""
    names = named_dimensions(block.problem.coarsened)
    called = {
        (group.name, variable): names.name_of[group.index, v]
        for group in block.problem.coarsened.groups
        for v, variable in enumerate(group.variables)
    }
    by_name: dict[int, set[tuple[str, str]]] = {}
    for slot, name in called.items():
        by_name.setdefault(name, set()).add(slot)
    groups = ("scale", "up", "relu", "down", "add", "head")
    assert sorted(map(sorted, by_name.values())) == sorted(
        map(
            sorted,
            (
                {(g, "batch") for g in groups},
                {("scale", "d1"), ("up", "in"), ("down", "out"), ("add", "d1"), ("head", "in")},
                {("up", "out"), ("relu", "d1"), ("down", "in")},
                {("head", "out")},
            ),
        )
    )
    assert not names.renamed
    assert all(variables == (0,) for variables in names.samples)


def test_one_tensor_never_bears_a_name_twice() -> None:
    """y = a aᵀ: rows keep the name of the length, columns are renamed; both are positions."""
    result = solved(gram(), hardware(4), 4)
    names = named_dimensions(result.problem.coarsened)
    product = result.problem.coarsened.groups[1]
    rows, columns = (product.variables.index(v) for v in ("i", "j"))
    assert names.name_of[1, rows] == names.name_of[0, 1]
    assert names.name_of[1, columns] != names.name_of[1, rows]
    assert [(g, v) for g, v, _, _ in names.renamed] == [(1, columns)]
    assert {names.name_of[1, rows], names.name_of[1, columns]} <= names.positions


# data parallelism


@pytest.mark.parametrize("gpus", [4, 16])
def test_data_parallel_memory_of_vgg16_by_hand(gpus: int, request: pytest.FixtureRequest) -> None:
    """Adam in float32: 16 bytes for every parameter on every device, and its share of samples."""
    result: Search = request.getfixturevalue(f"vgg16_on_{gpus}")
    point = data_parallel(result)
    expected = 16 * VGG16_PARAMETERS + VGG16_BATCH // gpus * VGG16_KEPT_BYTES
    assert point.memory_bytes == expected
    assert point.breakdown.parameter_bytes == 16 * VGG16_PARAMETERS
    assert point.breakdown.rescheduling_s == 0
    ratio = data_parallel_over_mini_time(result)
    assert ratio == pytest.approx(point.time_s / float(result.time_s[-1]))


def test_data_parallelism_is_the_same_in_wider_spaces(block: Search) -> None:
    """Where ZeRO is searched its plain strategy is beaten and dropped; it is priced all the same.

    (`configurations.py` drops what another configuration beats in both costs.)
    """
    options = Options(overlap=False, epsilon=0.0, zero=(0, 1, 2, 3), recompute="auto")
    wide = solved(residual_block(), hardware(2), 4, options)
    here, there = data_parallel(block), data_parallel(wide)
    assert (here.memory_bytes, here.time_s) == (there.memory_bytes, there.time_s)
    assert wide.memory_bytes[0] < here.memory_bytes


def test_what_has_no_batch_or_too_small_a_one_is_named(gpt2_on_4: Search) -> None:
    """Three samples on two nodes of three: one axis takes them, the other repeats the work."""
    result = solved(residual_block(batch=3), hardware(3), 6)
    rows = data_parallel_rows(result.problem)
    assert rows.partly == ("scale", "up", "relu", "down", "add", "head")
    assert not rows.whole
    assert sorted(map(str, split_of(result, rows.choices, "up"))) == ["None", "batch"]
    assert data_parallel_rows(gpt2_on_4.problem).whole == ("transformer.wpe.embedding",)


# OptCNN


def test_optcnn_never_cuts_what_is_summed(vgg16_on_4: Search) -> None:
    result = vgg16_on_4
    (point,) = optcnn(result.problem, result.options, quiet).points
    for group in result.problem.coarsened.groups:
        if group.anchor.operator.kind.startswith(("aten.conv", "aten.linear")):
            split = split_of(result, point.choices, group.name)
            assert not {"in", "ky", "kx"} & set(split)
    # One weird trick: convolutions by samples, the large layers after them by channels.
    assert split_of(result, point.choices, "features.0.conv2d") == ["batch", "batch"]
    assert "out" in split_of(result, point.choices, "classifier.0.linear")


def test_optcnn_is_the_fastest_of_its_space(block: Search) -> None:
    """Against our exact frontier of the same configurations."""
    masks = output_splits(block.problem)
    (point,) = optcnn(block.problem, block.options, quiet).points
    fastest = min(
        evaluate(block.problem, [int(rows[i]) for rows, i in zip(kept, pick, strict=True)]).time_s
        for kept in [[np.flatnonzero(mask) for mask in masks]]
        for pick in np.random.default_rng(0).integers(0, [len(rows) for rows in kept], (3000, 6))
    )
    assert point.time_s <= fastest * (1 + 1e-6)


def test_least_time_is_the_fastest_end_of_the_exact_frontier(block: Search) -> None:
    allowed = everything(block.problem)
    chosen, epsilon = least_time(block.problem, allowed, block.options, quiet)
    assert epsilon <= LEAST_TIME_EPSILON
    assert evaluate(block.problem, chosen).time_s == pytest.approx(float(block.time_s[-1]))


def test_what_is_found_in_a_part_costs_the_same_in_the_whole(block: Search) -> None:
    random = np.random.default_rng(2)
    for _ in range(10):
        masks = [random.random(len(cost.time_s)) < 0.4 for cost in block.problem.costs]
        for mask in masks:
            mask[int(random.integers(len(mask)))] = True
        part = restrict(block.problem, masks)
        solution = solve(part.problem, block.options, quiet, epsilon=0.0)
        for i in range(len(solution.time_s)):
            choices = part.whole(solution.choices)[i]
            assert all(mask[k] for mask, k in zip(masks, choices, strict=True))
            point = point_of(block.problem, choices, solution.edge_choices[i])
            fixed = block.problem
            assert point.time_s == pytest.approx(solution.time_s[i] + fixed.fixed_time_s)
            assert point.memory_bytes == pytest.approx(
                solution.memory_bytes[i] + fixed.fixed_memory_bytes
            )


def test_a_group_without_configurations_is_refused(block: Search) -> None:
    masks = everything(block.problem)
    masks[2] = np.zeros_like(masks[2])
    with pytest.raises(ValueError, match="no configuration is left of relu"):
        restrict(block.problem, masks)


# FlexFlow


def test_the_random_search_repeats_by_seed_and_never_loses_to_its_start(
    vgg16_on_4: Search,
) -> None:
    result = vgg16_on_4
    start = data_parallel(result).time_s
    times = set()
    for seed in range(3):
        first = flexflow(result.problem, quiet, proposals=300, seed=seed)
        again = flexflow(result.problem, quiet, proposals=300, seed=seed)
        assert (first.points[0].choices == again.points[0].choices).all()
        assert first.points[0].time_s <= start
        assert first.details["start_time_s"] == start
        times.add(first.points[0].time_s)
    assert len(times) > 1
    assert flexflow(result.problem, quiet, proposals=1).points[0].time_s <= start


def test_the_random_search_keeps_count_of_its_time(block: Search) -> None:
    """What deltas add up to is what the strategy costs; hot enough, it finds the least."""
    allowed = output_splits(block.problem)
    start = data_parallel_rows(block.problem).choices
    (best,) = optcnn(block.problem, block.options, quiet).points
    cold = random_search(block.problem, allowed, start, quiet, 20_000)
    hot = random_search(block.problem, allowed, start, quiet, 20_000, beta=10.0)
    for walk in (cold, hot):
        assert walk.time_s == evaluate(block.problem, walk.choices).time_s
        assert best.time_s <= walk.time_s * (1 + 1e-6)
        assert 0 < walk.accepted < walk.proposals
    assert hot.time_s == pytest.approx(best.time_s)
    assert hot.accepted > cold.accepted
    with pytest.raises(Cancelled):
        random_search(block.problem, allowed, start, lambda stage, fraction: fraction == 0)


# Megatron and FSDP


def test_megatron_finds_columns_then_rows(gpt2_on_4: Search) -> None:
    """§3 of the paper: the first matrix by columns, the second by rows, one all_reduce after it."""
    result = gpt2_on_4
    answer = megatron(result.problem, result.options, quiet)
    points = {point.label: point for point in answer.points}
    assert {"dp4·tp1", "dp2·tp2", "dp1·tp4"} <= set(points)
    both = points["dp2·tp2"].choices
    assert split_of(result, both, "transformer.h.3.mlp.c_fc.addmm") == ["batch", "out"]
    assert split_of(result, both, "transformer.h.3.mlp.c_proj.addmm") == ["batch", "in"]
    # The residual stream is whole on every device of a tensor-parallel group.
    assert split_of(result, both, "transformer.h.3.mlp.c_proj.view_1") == ["batch", None]
    batch = data_parallel(result)
    assert points["dp4·tp1"].time_s == pytest.approx(batch.time_s)


def test_sequence_parallelism_saves_time_and_memory() -> None:
    """Korthikanti et al. 2022: no more communication, and activations are divided."""
    subject = read_graph(shipped_graph("transformer"))
    result = solved(subject, load_hardware("dgx-v100-16gb"), 8, splits(1.0))
    points = {p.label: p for p in megatron(result.problem, result.options, quiet).points}
    plain, sequence = points["dp1·tp8"], points["dp1·tp8·sp"]
    assert sequence.time_s < plain.time_s
    assert sequence.breakdown.parameter_bytes == pytest.approx(
        plain.breakdown.parameter_bytes, rel=1e-3
    )
    assert sequence.memory_bytes < 0.8 * plain.memory_bytes
    # Heads are shared out among the devices of a tensor-parallel group.
    assert split_of(result, plain.choices, "encoder.2.attention.matmul") == ["d1", "d1", "d1"]
    norm = "encoder.2.dropout.dropout"
    assert set(split_of(result, plain.choices, norm)) == {None}
    assert set(split_of(result, sequence.choices, norm)) == {"d1"}


def test_zero_3_shards_what_data_parallelism_repeats(vgg16_on_16: Search) -> None:
    result = vgg16_on_16
    sharded, again = fsdp(result, "auto", quiet).points
    assert (sharded.label, again.label) == ("zero-3", "zero-3·recompute")
    kept = VGG16_BATCH // 16 * VGG16_KEPT_BYTES
    # Each tensor's shard is rounded up to whole elements.
    assert sharded.memory_bytes - kept == pytest.approx(VGG16_PARAMETERS, rel=1e-4)
    batch = data_parallel(result)
    assert sharded.time_s > batch.time_s
    assert again.compute_s > sharded.compute_s
    problem = problem_with(result, (3,), "never")
    for cost, k in zip(problem.costs, sharded.choices, strict=True):
        everywhere = (1 << cost.assignment.shape[1]) - 1
        assert cost.zero[k] in (0, 3)
        assert cost.zero_axes[k] == (everywhere if cost.zero[k] else 0)


def test_zero_3_shards_over_all_devices_not_over_a_node(block: Search) -> None:
    (sharded,) = fsdp(block, "never", quiet).points
    problem = problem_with(block, (3,), "never")
    heavy = [
        c.zero_axes[k] for c, k in zip(problem.costs, sharded.choices, strict=True) if c.zero[k]
    ]
    assert heavy == [0b11] * 4
    (again,) = fsdp(block, "always", quiet).points
    assert again.label == "zero-3·recompute"


def test_recomputation_saves_memory_in_a_deep_model(gpt2_on_4: Search) -> None:
    result = gpt2_on_4
    sharded, again = fsdp(result, "auto", quiet).points
    assert again.memory_bytes < 0.5 * sharded.memory_bytes
    assert again.communication_s == pytest.approx(sharded.communication_s, rel=0.1)


def test_pins_bind_our_search_alone(block: Search) -> None:
    pinned = replace(block, options=replace(block.options, pins=(parse_pin("*:split!=batch"),)))
    assert data_parallel(pinned).time_s == data_parallel(block).time_s
