"""Peak memory of random strategies, predicted by replay and measured on two ranks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.execute.keeper import SharedRanks, graph_of_source, keeper  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from harness.execute.trained_rank import TrainedRank  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.execute.timing import time_steps  # noqa: E402

pytestmark = pytest.mark.torch

GPT2 = (
    "hf:GPT2Config:n_layer=2,n_embd=128,n_head=4,vocab_size=512,resid_pdrop=0.0,"
    "embd_pdrop=0.0,attn_pdrop=0.0"
)
SOURCES = {
    "GPT-2": (GPT2, 8, 64),
    "GPT-2 with adapters": (GPT2, 8, 64, "lora:8"),
    "Wide ResNet": ("zoo:wrn:depth=10,width=2,image=16,classes=10,batch=32", None, None),
}


def _peaks(rank: int, name: str, plan: dict[str, Any]) -> tuple[int, ...]:
    trained = TrainedRank(SOURCES[name], documents.read(plan, documents.Plan), rank)
    # gloo's threads drop what they have sent a moment after the step goes on, on a busy machine
    # later than the next tensor is made. The least of three steps is the plan's own peak.
    peaks = [
        time_steps(
            trained.step, trained.live_tensors, torch.device("cpu"), warm_up=1, steps=1
        ).peak_bytes
        for _ in range(3)
    ]
    return tuple(map(min, zip(*peaks, strict=True)))


CASES = [
    ("GPT-2", "auto", 2),
    ("GPT-2 with adapters", "auto", 3),
    *((name, recompute, 8) for name in sorted(SOURCES) for recompute in ("never", "auto")),
]
"""Model, recomputation, and how many strategies."""


@pytest.mark.parametrize(("name", "recompute", "count"), some(CASES, lambda case: case[2] < 8))
def test_no_random_strategy_needs_much_more_than_predicted(
    two: SharedRanks, name: str, recompute: str, count: int
) -> None:
    strategies = Strategies(keeper().run(graph_of_source, 2, SOURCES[name]))
    off = {}
    for seed in range(count):
        plan, predicted = strategies.with_peak(2, seed, recompute)
        off[seed] = max(two(_peaks, name, plan)[0]) / predicted - 1
    assert max(off.values()) < 0.1, off
    # Too high by more than a few percent: a move that is priced and not made (docs/replay.md).
    assert min(off.values()) > -0.21, off
    assert sorted(off.values())[1] > -0.12, off
    assert abs(sum(off.values())) / count < 0.06, off
