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
