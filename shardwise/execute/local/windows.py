"""Rows that a share of a window operator reads: its own, and those of its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn.functional import pad

from shardwise.execute.local.share import Share
from shardwise.execute.rank_mesh import RankMesh

Wanted = Callable[[range], range]
"""Returns the rows of the input that these rows of the output read."""

ZerosAt = Callable[[Sequence[int]], tuple[int, int]]
"""Returns how many rows of zeros precede and follow what the rank at these coordinates reads."""

WantedAt = Callable[[Sequence[int]], range]
"""Returns the rows of the input that the rank at these coordinates reads."""


def bring_rows(share: Share, i: int, dim: int, wanted: Wanted) -> Callable[[Any], Any]:
    """Returns a function from the local part of input i to the rows that the local output reads.

    The rows are those of `dim`; the output is split along the same dimension. An input that the
    rank has whole is cut.
    """
    extent, axes = share.outputs[0].shape[dim], share.output_axes(0, dim)
    return bring_rows_at(share, i, dim, lambda at: wanted(share.mesh.share(extent, axes, at)))


def bring_rows_at(
    share: Share, i: int, dim: int, wanted: WantedAt, zeros: ZerosAt | None = None
) -> Callable[[Any], Any]:
    """Works like `bring_rows`, but what a rank reads may depend on more than its output rows.

    `zeros` gives the rows of zeros before and after. If one rank has any, all ranks make a separate
    tensor: autograd then saves the same kind of tensor on every rank and, since rebuilding it may
    need all of them, rebuilds it on all or on none.
    """
    mesh, have = share.mesh, share.input_axes(i, dim)
    mine = wanted(mesh.coordinates)
    around = (0, 0) if zeros is None else zeros(mesh.coordinates)
    padded = zeros is not None and pads_anywhere(mesh, zeros)
    behind = [0, 0] * (len(share.inputs[i].shape) - dim - 1)
    if not have:
        if not padded:
            return lambda x: x.narrow(dim, mine.start, len(mine))
        return lambda x: pad(x.narrow(dim, mine.start, len(mine)), (*behind, *around))
    every = [wanted(mesh.coordinates_of(rank)) for rank in mesh.members(have)]
    exchange, extent = share.exchange, share.inputs[i].shape[dim]
    inside = _inside_everywhere(mesh, have, extent, wanted)
    zeros_of_mine = around if padded else None
    return lambda x: exchange.rows(x, dim, every, extent, have, zeros_of_mine, inside=inside)


def _inside_everywhere(mesh: RankMesh, have: Sequence[int], extent: int, wanted: WantedAt) -> bool:
    """Returns whether no rank of the mesh reads rows of another one.

    This covers more than the ranks along `have`: what a rank reads may depend on its part of the
    kernel too, and all ranks run one program, with collectives in the same order.
    """
    pairs = ((mesh.share(extent, have, at), wanted(at)) for at in _everywhere(mesh))
    return all(own.start <= asked.start and asked.stop <= own.stop for own, asked in pairs)


def _everywhere(mesh: RankMesh) -> list[Sequence[int]]:
    """Returns the coordinates of all ranks."""
    return [mesh.coordinates_of(rank) for rank in mesh.members(range(len(mesh.sizes)))]


def bring_padded(share: Share, dim: int, wanted: WantedAt) -> Callable[[Any], Any]:
    """Works like `bring_rows_at` for the first input, with zeros for rows beyond the data."""
    there, beyond = _window(share, dim, wanted)
    return bring_rows_at(share, 0, dim, there, beyond)


def bring_window(share: Share, dim: int, wanted: WantedAt) -> tuple[Callable[[Any], Any], ZerosAt]:
    """Brings rows of the first input; also returns how many are beyond the data at either end."""
    there, beyond = _window(share, dim, wanted)
    return bring_rows_at(share, 0, dim, there), beyond


def _window(share: Share, dim: int, wanted: WantedAt) -> tuple[WantedAt, ZerosAt]:
    """Returns the rows that exist, and how many do not before and after."""
    extent = share.inputs[0].shape[dim]

    def there(at: Sequence[int]) -> range:
        asked = wanted(at)
        start = min(max(asked.start, 0), extent)
        return range(start, max(min(asked.stop, extent), start))

    def beyond(at: Sequence[int]) -> tuple[int, int]:
        asked, given = wanted(at), there(at)
        if not given:
            return 0, len(asked)
        return given.start - asked.start, asked.stop - given.stop

    return there, beyond


def pads_anywhere(mesh: RankMesh, zeros: ZerosAt) -> bool:
    """Returns whether any rank has rows of zeros."""
    return any(any(zeros(at)) for at in _everywhere(mesh))
