"""Normalisations over shares: two collectives, one tensor kept; packing that counts as moving."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.execute.keeper import SharedRanks  # noqa: E402
from shardwise.execute.collectives import Change, change  # noqa: E402
from shardwise.execute.communication import CommunicationClock  # noqa: E402
from shardwise.execute.local.moments import Moments  # noqa: E402
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402
from shardwise.sharding.layout import REPLICATE as R  # noqa: E402

pytestmark = pytest.mark.torch

DIMS = {"by channel": (0, 2, 3), "of a sample": (1, 2, 3), "of rows": (3,)}


def mesh_of(rank: int) -> RankMesh:
    mesh = RankMesh(("x",), (2,), rank)
    mesh.group((0,))
    return mesh


def normalised(rank: int, dims: tuple[int, ...]) -> tuple[dict[str, int], list[str]]:
    """Collectives of forward and backward; tensors as large as the input that outlive forward."""
    mesh = mesh_of(rank)
    x = torch.randn(4, 6, 8, 10, requires_grad=True)
    saved: list[weakref.ref[Any]] = []

    def pack(tensor: Any) -> Any:
        if tensor.numel() >= x.numel() and tensor.data_ptr() != x.data_ptr():
            saved.append(weakref.ref(tensor))
        return tensor

    with CommunicationClock(torch.device("cpu")) as clock:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            count = 2 * torch.Size(x.shape[d] for d in dims).numel()
            moments = Moments.of(x, mesh, (0,), dims, count)
            y = moments.normalise(x, None, None, 1e-5)
        y.square().sum().backward()
    return clock.calls, [str(ref()) for ref in saved]


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_two_sums_and_nothing_kept_but_the_input(two: SharedRanks, dims: tuple[int, ...]) -> None:
    for calls, kept in two(normalised, dims):
        assert calls == {"all_reduce": 2}
        assert kept == []


def far_from_zero(rank: int, dims: tuple[int, ...]) -> tuple[float, float]:
    """Largest errors of mean and variance, of numbers around 1,000 with a variance of 1."""
    torch.manual_seed(7)
    whole = torch.randn(8, 6, 8, 10) + 1000.0
    dim = dims[0]
    own = whole.chunk(2, dim)[rank]
    count = torch.Size(whole.shape[d] for d in dims).numel()
    moments = Moments.of(own, mesh_of(rank), (0,), dims, count)
    variance, mean = torch.var_mean(whole.double(), dims, correction=0, keepdim=True)
    return float((moments.mean - mean).abs().max()), float(
        (moments.variance - variance).abs().max()
    )


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_moments_far_from_zero(two: SharedRanks, dims: tuple[int, ...]) -> None:
    for mean, variance in two(far_from_zero, dims):
        assert mean < 1e-3
        assert variance < 1e-3


class Ticks(CommunicationClock):
    """A clock that goes on by one whenever it is read."""

    ticks = 0

    def _now(self) -> float:
        self.ticks += 1
        return self.ticks


def moved(rank: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Time counted as communication and as waiting: of a move, and of its collective alone."""
    mesh, x = mesh_of(rank), torch.randn(20, 30)
    plain = change.__wrapped__  # type: ignore[attr-defined]
    figures = []
    for function in (change, plain):
        with Ticks(torch.device("cpu")) as clock:
            function(x, Change("all_gather", (0,), (1,), (R,)), mesh, (20, 60))
        assert clock.calls == {"all_gather_into_tensor": 1}
        assert CommunicationClock.running is None
        figures.append((clock.seconds, clock.waited_s))
    return figures[0], figures[1]


def test_packing_counts_as_communication(two: SharedRanks) -> None:
    """Two ticks more: from the move's begin to its collective's, and from its end to the move's."""
    assert two(moved) == [((3.0, 2.0), (1.0, 2.0))] * 2
