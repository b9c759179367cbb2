"""Operators that run several times: how many rows are computed, and that results stay the same."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwise.errors import BadInput  # noqa: E402
from shardwise.measure.slowed import Slowed  # noqa: E402

pytestmark = pytest.mark.torch


class _Counted(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """x · w, with the rows of every pass noted."""

    rows: dict[str, int]

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        _Counted.rows["forward"] += len(x)
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w = ctx.saved_tensors
        _Counted.rows["backward"] += len(x)
        return gradients[0] @ w.T, x.T @ gradients[0]


def _step(times: float, run: Any) -> tuple[dict[str, int], Any]:
    _Counted.rows = {"forward": 0, "backward": 0}
    random = torch.Generator().manual_seed(1)
    x = torch.randn(16, 5, generator=random, requires_grad=True)
    w = torch.randn(5, 3, generator=random, requires_grad=True)
    (y,) = Slowed(times).around(run, [True, False])(x, w)
    (y.square().sum() * 2).backward()
    return _Counted.rows, (y.detach(), x.grad, w.grad)


@pytest.mark.parametrize("times", [1, 1.25, 1.5, 1.75, 2, 2.5, 3.75, 4])
def test_so_many_rows_are_computed_both_ways_and_results_are_the_same(times: float) -> None:
    rows, results = _step(times, lambda x, w: [_Counted.apply(x, w)])
    assert rows == {"forward": 16 * times, "backward": 16 * times}
    for slow, quick in zip(results, _step(1, lambda x, w: [_Counted.apply(x, w)])[1], strict=True):
        assert torch.equal(slow, quick)


def test_an_operator_that_cannot_run_on_fewer_rows_is_repeated_in_so_many_steps() -> None:
    def fixed(x: Any, w: Any) -> list[Any]:
        return [_Counted.apply(x.reshape(16, 5), w)]

    slow = Slowed(1.75).around(fixed, [True, False])
    _Counted.rows = {"forward": 0, "backward": 0}
    for _ in range(8):
        x, w = torch.ones(16, 5, requires_grad=True), torch.ones(5, 3, requires_grad=True)
        slow(x, w)[0].sum().backward()
    assert _Counted.rows == {"forward": 8 * 16 * 1.75, "backward": 8 * 16 * 1.75}


def test_only_the_first_run_writes() -> None:
    def counting(seen: Any, x: Any) -> list[Any]:
        seen += 1
        return [x * 2]

    seen = torch.zeros(())
    with torch.no_grad():
        Slowed(3).around(counting, [False, True], written=(0,))(seen, torch.ones(4))
    assert float(seen) == 1


@pytest.mark.parametrize("times", [0.5, 1.1, 4.25, float("inf")])
def test_only_quarters_from_one_to_four(times: float) -> None:
    with pytest.raises(BadInput, match="times as slow"):
        Slowed(times)
