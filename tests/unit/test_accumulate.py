"""Gradients of accumulated steps: handed out as torch would, never twice in memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwise.errors import ShardwiseError  # noqa: E402
from shardwise.execute.accumulate import accumulate  # noqa: E402
from shardwise.execute.allocation import AllocationTracker  # noqa: E402

pytestmark = pytest.mark.torch

COUNT, SIZE = 16, 5000


def test_gradients_are_added_to_what_is_there() -> None:
    parameters = [torch.nn.Parameter(torch.full((SIZE,), float(n))) for n in range(COUNT)]
    unused = torch.nn.Parameter(torch.ones(3))

    def run(part: int) -> torch.Tensor:
        return sum((p * (part + 1)).square().sum() for p in parameters)

    for step in (1, 2):
        (accumulate(2, run, [*parameters, unused]) * 4).backward()
        for number, p in enumerate(parameters):
            # The mean of 2 p and 8 p, four times, for each step without zero_grad.
            assert torch.equal(p.grad, torch.full((SIZE,), 20.0 * number * step))
        assert unused.grad is None


def test_backward_runs_once() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    loss = accumulate(2, lambda part: p.square().sum(), [p])
    loss.backward(retain_graph=True)
    with pytest.raises(ShardwiseError, match="once for each step"):
        loss.backward()


def test_what_was_accumulated_is_freed_as_it_is_handed_out() -> None:
    parameters = [torch.nn.Parameter(torch.ones(SIZE)) for _ in range(COUNT)]
    tracker = AllocationTracker()
    with tracker:
        loss = accumulate(2, lambda part: sum(p.square().sum() for p in parameters), parameters)
        before = tracker.now_bytes
        tracker.peak_bytes = 0
        loss.backward()
    assert before >= COUNT * 4 * SIZE
    assert tracker.peak_bytes < before + 3 * 4 * SIZE
