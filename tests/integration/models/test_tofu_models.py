"""Method `tofu` on whole models: against our frontier, and Tofu's own findings (§7.4)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Search, Subject, search
from shardwise.search.tofu import TofuSolution

pytestmark = pytest.mark.full
TOFU = Options(overlap=False, method="tofu")


def solution_of(result: Search) -> TofuSolution:
    assert isinstance(result.solution, TofuSolution)
    return result.solution


@pytest.mark.parametrize("gpus", [8, 16])
@pytest.mark.parametrize(("model", "hardware"), [("vgg16", "dgx-v100-16gb"), ("gpt2", "dgx-h100")])
def test_it_never_beats_the_certified_frontier(model: str, hardware: str, gpus: int) -> None:
    subject, machine = Subject.of(read_graph(shipped_graph(model))), load_hardware(hardware)
    peer = search(subject, machine, gpus, TOFU)
    ours = search(subject, machine, gpus, Options(overlap=False))
    factor = 1 + ours.solution.epsilon
    memory, time = float(peer.memory_bytes[0]), float(peer.time_s[0])
    covers = (ours.memory_bytes <= memory * factor) & (ours.time_s <= time * factor)
    assert covers.any()
    # It minimises communication alone, and memory follows: the strategy is not far off.
    assert time < 1.1 * float(ours.time_s[-1])
    moved = [step.total_bytes for step in solution_of(peer).steps]
    assert all(a <= b for a, b in pairwise(moved))


@pytest.mark.torch
def test_fig_11_lower_layers_fetch_weights_and_higher_ones_activations() -> None:
    """WResNet-152-10 with batch 8 on 8 K80, as in the paper."""
    pytest.importorskip("torch")
    from shardwise.capture import capture

    subject = Subject.of(capture("zoo:wide-resnet-152:width=10", batch=8))
    result = search(subject, load_hardware("p2.8xlarge"), 8, TOFU)
    shares: dict[str, list[str]] = {}
    for group, cost, choice in zip(
        subject.coarsened.groups, result.problem.costs, result.solution.choices[0], strict=True
    ):
        if group.anchor.operator.kind == "aten.conv2d.default":
            names = [group.variables[v] for v in cost.assignment[choice]]
            shares[group.name] = names
    lower = [names for name, names in shares.items() if name.startswith("stages.0.")]
    higher = [
        names for name, names in shares.items() if name.startswith(("stages.2.", "stages.3."))
    ]
    # Small weights, large feature maps: the batch is split and weights are fetched.
    assert all(set(names) == {"batch"} for names in lower)
    # The other way round: channels are split, into and out of a block in different ways.
    assert all(set(names) <= {"in", "out", "batch"} for names in higher)
    assert sum("batch" in names for names in higher) < 0.1 * len(higher)
    assert len({tuple(names) for names in higher}) > 1
    # Both batch and channels of one tensor are split somewhere between.
    assert any({"batch"} < set(names) for names in shares.values())
    # Repeated blocks of a stage are split alike but for the first.
    for stage, count in enumerate((3, 8, 36, 3)):
        blocks = {
            tuple(tuple(shares[f"stages.{stage}.{i}.conv{c}.conv2d"]) for c in (1, 2, 3))
            for i in range(1, count)
        }
        assert len(blocks) == 1, stage
    # What is stored is 1/8 of one device's.
    one = search(subject, load_hardware("p2.8xlarge"), 1, TOFU)
    stored = solution_of(result).stored_bytes
    assert stored == pytest.approx(float(one.memory_bytes[0]) / 8, rel=0.005)
