"""Extremes of shares: an empty one decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwise.execute.local.extremes import extreme  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("which", ["max", "min"])
@pytest.mark.parametrize("dims", [1, -1, [0, 1]])
def test_of_shares_the_extreme_of_extremes_is_that_of_the_whole(
    dims: Any, which: Any, dtype: Any
) -> None:
    whole = torch.tensor([[3, -5, 2], [7, 1, -9]], dtype=dtype)
    shares = whole.split([2, 1, 0], dim=1)
    extremes = torch.stack([extreme(share, dims, which) for share in shares])
    best = extremes.amax(0) if which == "max" else extremes.amin(0)
    assert torch.equal(best, extreme(whole, dims, which))
    assert best.dtype == dtype
