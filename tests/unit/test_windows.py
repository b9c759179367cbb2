"""Windows with neighbours' rows: every rank makes a tensor of its own, or none does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from shardwise.execute.local.windows import bring_padded
from shardwise.execute.rank_mesh import RankMesh

pytestmark = pytest.mark.torch


def asked(rank: int, stride: int, before: int) -> Any:
    """The zeros that rank `rank` of two asks for: 3 taps over 16 rows, cut in halves."""
    mesh = RankMesh(("x",), (2,), rank)
    found: list[Any] = []

    class Rows:
        def rows(self, x: Any, dim: int, wanted: Any, extent: int, axes: Any, zeros: Any) -> None:
            found.append(zeros)

    share: Any = SimpleNamespace(
        mesh=mesh,
        exchange=Rows(),
        inputs=[SimpleNamespace(shape=(1, 1, 16, 16))],
        input_axes=lambda i, dim: (0,),
    )

    def wanted(at: Any) -> range:
        own = mesh.share(16 // stride, (0,), at)
        return range(own.start * stride - before, (own.stop - 1) * stride - before + 3)

    bring_padded(share, 2, wanted)(None)
    return found[0]


def test_where_one_rank_pads_all_do() -> None:
    """The last window of stride 2 ends with the rows: only the first rank has a row of zeros.

    When the other kept a view of what came over a crossing, it alone made that again in backward,
    by a collective that nobody else called: the ranks waited for each other for ever.
    """
    assert [asked(rank, 2, 1) for rank in (0, 1)] == [(1, 0), (0, 0)]
    assert [asked(rank, 1, 1) for rank in (0, 1)] == [(1, 0), (0, 1)]


def test_where_no_rank_pads_none_does() -> None:
    assert [asked(rank, 4, 0) for rank in (0, 1)] == [None, None]
