"""The form that is always correct: gather the inputs, run the whole operator, cut the outputs.

No plan prices what it costs, so the executor lists it with its reason.
"""

from __future__ import annotations

from typing import Any

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.share import Share


def gathered(share: Share) -> Run:
    """Runs the operator on whole inputs; every rank keeps its part of the outputs."""
    whole = bind(share.target, share.arguments, share.attributes, len(share.outputs))
    exchange = share.exchange
    gathers = [
        [
            (dim, axes, extent)
            for dim, extent in enumerate(tensor.shape)
            if (axes := share.input_axes(i, dim))
        ]
        for i, tensor in enumerate(share.inputs)
    ]
    cuts = [
        [
            (dim, share.output_rows(o, dim))
            for dim in range(len(tensor.shape))
            if share.output_axes(o, dim)
        ]
        for o, tensor in enumerate(share.outputs)
    ]
    shared = [share.replicated_axes(o) for o in range(len(share.outputs))]
    partial = [share.partial_axes(o) for o in range(len(share.outputs))]

    def gather(x: Any, i: int) -> Any:
        for dim, axes, extent in gathers[i]:
            x = exchange.gather(x, dim, axes, extent)
        return x

    def cut(y: Any, o: int) -> Any:
        y = exchange.first(exchange.shared(y, shared[o]), partial[o])
        for dim, rows in cuts[o]:
            y = y.narrow(dim, rows.start, len(rows))
        return y.contiguous() if cuts[o] else y

    return lambda *inputs: [
        cut(y, o) for o, y in enumerate(whole(*(gather(x, i) for i, x in enumerate(inputs))))
    ]
