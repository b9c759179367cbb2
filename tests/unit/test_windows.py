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
    return rows_asked(RankMesh(("x",), (2,), rank), stride, before)[0]


def rows_asked(mesh: RankMesh, stride: int, before: int) -> tuple[Any, bool]:
    """Zeros, and whether nothing is sent. Axis 0 cuts the rows, axis 1 (if any) the taps."""
    calls: list[Any] = []

    class Rows:
        def rows(
            self, x: Any, dim: int, wanted: Any, extent: int, axes: Any, zeros: Any, *, inside: bool
        ) -> None:
            calls.append((zeros, inside))

    share: Any = SimpleNamespace(
        mesh=mesh,
        exchange=Rows(),
        inputs=[SimpleNamespace(shape=(1, 1, 16, 16))],
        input_axes=lambda i, dim: (0,),
    )

    def wanted(at: Any) -> range:
        own = mesh.share(16 // stride, (0,), at)
        taps = mesh.share(3, range(1, len(mesh.sizes)), at)
        first, last = own.start * stride - before, (own.stop - 1) * stride - before
        return range(first + taps.start, last + taps.stop)

    bring_padded(share, 2, wanted)(None)
    asked: tuple[Any, bool] = calls[0]
    return asked


def test_where_one_rank_pads_all_do() -> None:
    """The last window of stride 2 ends with the rows: only the first rank has a row of zeros.

    When the other kept a view of what came over a crossing, it alone made that again in backward,
    by a collective that no other rank called: the ranks waited for each other for ever.
    """
    assert [asked(rank, 2, 1) for rank in (0, 1)] == [(1, 0), (0, 0)]
    assert [asked(rank, 1, 1) for rank in (0, 1)] == [(1, 0), (0, 1)]


def test_where_no_rank_pads_none_does() -> None:
    assert [asked(rank, 4, 0) for rank in (0, 1)] == [None, None]


def test_where_one_rank_reads_its_neighbours_rows_all_exchange() -> None:
    """Of taps cut in 2 and 1 at stride 2 the last one never reads the other half's rows.

    Its ranks left the exchange out, and a step with a barrier of all ranks around each collective
    waited for ever.
    """
    inside = [rows_asked(RankMesh(("rows", "taps"), (2, 2), rank), 2, 1)[1] for rank in range(4)]
    assert inside == [False] * 4
    inside = [rows_asked(RankMesh(("rows", "taps"), (2, 2), rank), 4, 0)[1] for rank in range(4)]
    assert inside == [True] * 4
