"""What TensorOpt found, on its cluster and models (Fig. 6 and Fig. 8), from shipped graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paper import fig7, fig8, table4, tofu_fig10
from paper.setting import compute_s, frontier, network, pcie

from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Search, Subject, search
from shardwise.search.turning_point import turning_point

PAPER = Options(overlap=False, zero=(0,))


@pytest.fixture(scope="module")
def transformer() -> Subject:
    return Subject.of(read_graph(shipped_graph("transformer")))


def _data_parallel_bytes(result: Search) -> float:
    """Memory of splitting the batch over all axes, everywhere that has a batch."""
    total = result.problem.fixed_memory_bytes
    for pattern, cost in zip(result.problem.patterns, result.problem.costs, strict=True):
        names = pattern.group.variables
        batch = names.index("batch") if "batch" in names else None
        rows = [
            k for k, a in enumerate(cost.assignment) if batch is not None and (a == batch).all()
        ]
        total += float(cost.memory_bytes[rows[0] if rows else 0])
    return total


@pytest.mark.full
def test_fig_6_the_transformer_on_16_gpus(transformer: Subject) -> None:
    result = search(transformer, load_hardware("dgx-v100-16gb"), 16, PAPER)
    memory, time = result.memory_bytes, result.time_s
    compute = np.array([result.compute_s(i) for i in range(len(memory))])
    communication = time - compute
    # Computation is nearly flat, communication falls as memory grows.
    assert compute.max() / compute.min() < 1.05
    assert communication[0] > 3 * communication[-1]
    # A sharp turning point: below it time rises fast, above it memory buys little.
    knee = turning_point(memory, time)
    assert knee is not None
    assert 0 < knee < len(memory) - 1
    below = (time[0] - time[knee]) / (memory[knee] - memory[0])
    above = (time[knee] - time[-1]) / (memory[-1] - memory[knee])
    assert below > 10 * above
    assert result.solution.epsilon <= 0.01


@pytest.mark.full
def test_fig_8_eight_gpus_where_data_parallelism_does_not_fit(transformer: Subject) -> None:
    result = search(transformer, load_hardware("dgx-v100-16gb"), 8, PAPER, near_limit=True)
    chosen = result.fastest_within(result.limit_bytes)
    assert chosen is not None
    assert _data_parallel_bytes(result) > result.limit_bytes


@pytest.mark.full
def test_the_data_parallel_strategy_is_counted_right() -> None:
    """VGG16 on two GPUs: all state on each, half of the activations."""
    subject = Subject.of(read_graph(shipped_graph("vgg16")))
    one = search(subject, load_hardware("dgx-v100-16gb"), 1, PAPER)
    two = search(subject, load_hardware("dgx-v100-16gb"), 2, PAPER)
    state = 16 * subject.graph.parameter_count
    assert _data_parallel_bytes(two) >= state
    kept_in_groups = _data_parallel_bytes(two) - state
    assert kept_in_groups < (float(one.memory_bytes[0]) - state) * 0.55


@pytest.mark.full
def test_fig_7_bandwidth_and_size_move_the_frontier() -> None:
    """Faster networks and links shift it down, at the same turning point."""
    base, fast = frontier("transformer"), frontier("transformer", 16, network(4.0))
    low, high = fig7.slower(base, fast)
    assert low > 1.2
    assert fig7.knee(base)[0] == pytest.approx(fig7.knee(fast)[0], rel=0.1)
    nvlink, pci = frontier("transformer", 8), frontier("transformer", 8, pcie())
    assert fig7.slower(pci, nvlink)[0] > 1.5
    # 4 × RDMA is still slower than NVLink: between nodes counts (§5.1).
    assert fast.time_s[-1] > compute_s(fast)[-1] * 1.1
    assert high < 4


@pytest.mark.full
def test_fig_8_the_transformers_curve() -> None:
    curve = {gpus: fig8.count("transformer", gpus) for gpus in (4, 8, 16)}
    assert curve[4].ours is None
    claims = fig8.claims("transformer", curve)
    assert [claim.holds for claim in claims] == [False, True, True, True], claims
    # What differs: OptCNN's point fits on 8 GPUs; data parallelism does not, as in the paper.
    assert curve[8].parallel is None
    assert curve[8].optcnn is not None


def test_table_4_vgg16() -> None:
    row = table4.row("vgg16")
    mini, data, _ = table4.THEIRS["vgg16"]
    assert row.ratio == pytest.approx(data / mini, rel=table4.TARGET)
    # What was corrected is needed: without it the ratio is far off.
    assert table4.row("vgg16", table4.before()).ratio < 0.75 * data / mini


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.parametrize("model", ["wide-resnet", "transformer-s"])
def test_table_4(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("paper.models.FOLDER", tmp_path)
    mini, data, _ = table4.THEIRS[model]
    assert table4.row(model).ratio == pytest.approx(data / mini, rel=table4.TARGET)


@pytest.mark.full
@pytest.mark.torch
def test_tofu_fig_10_on_the_wide_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tofu moves least; AllRow-Greedy and ICML18, which run out of memory there, most."""
    pytest.importorskip("torch")
    monkeypatch.setattr("paper.models.FOLDER", tmp_path)
    moved = tofu_fig10.measured("wresnet-152-10")["bytes"]
    order = sorted(moved, key=lambda name: moved[name])
    assert order[0] == "Tofu"
    assert set(order[-2:]) == {"AllRow-Greedy", "ICML18"}
