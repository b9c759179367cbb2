"""Rows that a share of a window operator reads: its own, those of neighbours, none beyond borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.execute.local.share import Share

Wanted = Callable[[range], range]
"""The rows of the input that so many rows of the output read."""


def bring_rows(share: Share, i: int, dim: int, wanted: Wanted, o: int = 0, out: int | None = None
) -> Callable[[Any], Any]:  # fmt: skip
    """A function from the local part of input i to the rows of `dim` that the local output reads.

    `out` is the dimension of output o that is split along (the same one by default). An input
    that the rank has whole is cut.
    """
    to = dim if out is None else out
    axes = share.output_axes(o, to)
    extent = share.inputs[i].shape[dim]
    mine = wanted(share.output_rows(o, to))
    have = share.input_axes(i, dim)
    if not have:
        return lambda x: x.narrow(dim, mine.start, len(mine))
    every = []
    start = 0
    for length in share.mesh.shares(share.outputs[o].shape[to], axes):
        every.append(wanted(range(start, start + length)))
        start += length
    exchange = share.exchange
    return lambda x: exchange.rows(x, dim, every, extent, have)


def bring_window(share: Share, dim: int, wanted: Wanted) -> tuple[Callable[[Any], Any], int, int]:
    """As `bring_rows` of the first input, and how many rows before and after there are not."""
    extent = share.inputs[0].shape[dim]

    def there(rows: range) -> range:
        found = wanted(rows)
        start = min(max(found.start, 0), extent)
        return range(start, max(min(found.stop, extent), start))

    mine = share.output_rows(0, dim)
    asked, given = wanted(mine), there(mine)
    return bring_rows(share, 0, dim, there), given.start - asked.start, asked.stop - given.stop
