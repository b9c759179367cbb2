"""The ranks that tests share: failures are told with their traceback, and leave nothing behind."""

from __future__ import annotations

import os
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harness.execute import ranks  # noqa: E402
from harness.execute.keeper import SharedRanks, keeper, shared_ranks  # noqa: E402

pytestmark = pytest.mark.torch


def _sum(rank: int) -> float:
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    return float(total)


def _fails(rank: int, how: str) -> float:
    if rank == 1 and how == "raises":
        raise ValueError("the loss is not a number")
    if rank == 1:
        os._exit(3)
    return _sum(rank)


@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "rank 1:\n.*in _fails\n.*ValueError: the loss is"), ("dies", "died|closed")],
)
def test_others_take_the_place_of_ranks_that_failed(two: SharedRanks, how: str, said: str) -> None:
    assert two(_sum) == [3.0, 3.0]
    with pytest.raises(AssertionError, match=f"(?s){said}"):
        two(_fails, how)
    assert two(_sum) == [3.0, 3.0]


def _sleeps(rank: int) -> None:
    time.sleep(600)


def _hurried() -> None:
    kept, ranks.LONGEST_S = ranks.LONGEST_S, 0.5
    try:
        shared_ranks(2)(_sleeps)
    finally:
        ranks.LONGEST_S = kept


def test_ranks_that_hang_are_ended(two: SharedRanks) -> None:
    with pytest.raises(AssertionError, match=r"these still run: \[0, 1\]"):
        keeper().run(_hurried)
    assert two(_sum) == [3.0, 3.0]
