"""Cells of recurrent layers on shares of the units; layers split along the batch alone."""

from __future__ import annotations

from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share


@form("lstm_cell.default")
def lstm_cell(share: Share) -> Run:
    """Computes a share of the units: its rows of the four gates, from the whole hidden state."""
    if not share.output_axes(0, 1):
        return plain(share)
    rows, units = share.output_rows(0, 1), share.outputs[0].shape[1]
    names = share.arguments

    def gates(x: Any, w: Any, b: Any) -> Any:
        own = w.unflatten(0, (4, units)).narrow(1, rows.start, len(rows)).flatten(0, 1)
        offset = None
        if b is not None:
            offset = b.unflatten(0, (4, units)).narrow(1, rows.start, len(rows)).flatten()
        return torch.nn.functional.linear(x, own, offset)

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(names, inputs, strict=True))
        total = gates(given["input"], given["w_ih"], given.get("b_ih"))
        total = total + gates(given["hx.0"], given["w_hh"], given.get("b_hh"))
        enter, forget, change, leave = total.chunk(4, 1)
        cell = forget.sigmoid() * given["hx.1"] + enter.sigmoid() * change.tanh()
        return [leave.sigmoid() * cell.tanh(), cell]

    return run


@form("rnn_tanh_cell.default", "rnn_relu_cell.default")
def rnn_cell(share: Share) -> Run:
    """Sums each of the two products over its split variable before the non-linear function.

    Ranks that split one product have equal copies of the other, whose gradient counts once.
    """
    by_batch = share.output_axes(0, 0)
    if all(a in by_batch for a in share.axes(*share.variables)):
        return plain(share)
    names, exchange = share.arguments, share.exchange
    inner, state = (share.input_axes(names.index(name), 1) for name in ("input", "hx"))
    function = torch.tanh if "tanh" in share.op.kind else torch.relu
    both = tuple(sorted((*inner, *state)))

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(names, inputs, strict=True))
        total = exchange.total(given["input"] @ given["w_ih"].t(), inner)
        other = exchange.total(given["hx"] @ given["w_hh"].t(), state)
        total = exchange.shared(total, state) + exchange.shared(other, inner)
        for name in ("b_ih", "b_hh"):
            if name in given:
                total = total + exchange.shared(given[name], both)
        return [function(total)]

    return run
