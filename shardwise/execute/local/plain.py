"""The form of most operators: the plain overload on local parts, with local sizes in attributes.

It is exact if no share needs anything from another: no statistic, no halo, no attribute that names
a position in a split dimension. Sums over a split variable leave terms of the sum if the operator
is linear in what the variable indexes; a term that it adds once (a bias) is added by the first rank
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shardwise.capture.mutation import functional_twin
from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.deferred import call_of
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share

ADDED_ONCE: Mapping[str, str] = {
    "aten.linear.default": "bias",
    "aten.addmm.default": "self",
    "aten.baddbmm.default": "self",
    "aten.addmv.default": "self",
    "aten.addbmm.default": "self",
    "aten.bilinear.default": "bias",
}
"""Sums of products, and the argument that they add to the sum."""

LINEAR = frozenset(
    {
        *ADDED_ONCE,
        *(
            f"aten.{name}.default"
            for name in (
                *("mm", "bmm", "matmul", "einsum", "dot", "vdot", "mv", "inner", "tensordot"),
                *("sum", "nansum", "count_nonzero", "_int_mm"),
            )
        ),
        "aten.sum.dim_IntList",
        "aten.count_nonzero.dim_IntList",
    }
)
"""Operators whose plain form on a share of a summed variable is a term of the sum."""


def plain(share: Share, changed: Mapping[str, Any] | None = None) -> Run:
    """Runs the overload on local parts, with `changed` attributes in place of the whole ones."""
    share.refuse(share.statistics, "a statistic over it has no exact form")
    share.refuse(share.haloed, "rows of neighbours are read in a way that has no exact form")
    if share.reductions and share.op.kind not in LINEAR:
        share.refuse(share.reductions, "a sum over it has no exact form")
    share.is_plain = True
    target = share.target
    if target._schema.is_mutable:
        target = functional_twin(target) or target
    attributes = {**share.attributes, **(changed or {})}
    instead = call_of(share) if target is share.target else None
    run = bind(target, share.arguments, attributes, len(share.outputs), instead)
    added = share.argument(ADDED_ONCE.get(share.op.kind, ""))
    if added is None or not share.reductions:
        return run
    axes, place, exchange = share.axes(*share.reductions), added, share.silent

    def once(*x: Any) -> list[Any]:
        return run(*x[:place], exchange.first(x[place], axes), *x[place + 1 :])

    return once


@form("mean.dim", "mean.default")
def mean(share: Share) -> Run:
    """Returns terms of the sum, each divided by the whole count."""
    axes, part = share.reductions, share.fraction(share.reductions)
    run = bind(share.target, share.arguments, share.attributes, 1)
    share.refuse(share.statistics, "a statistic over it has no exact form")
    return (lambda *x: [run(*x)[0] * part]) if axes else run


@form("sum_to_size.default")
def sum_to_size(share: Share) -> Run:
    """Returns terms of the sum, in the local shape."""
    shape = list(share.output_shape())
    return lambda x: [x.sum_to_size(shape)]


@form("atan2.out")
def into(share: Share) -> Run:
    """Leaves alone the tensor that would be overwritten."""
    call = torch.ops.aten.atan2.default
    return lambda a, b, _: [call(a, b)]


@form("to.device", "to.dtype", "to.dtype_layout", "_to_copy.default")
def cast(share: Share) -> Run:
    """Changes the dtype; the graph does not decide where tensors are."""
    dtype = share.attributes.get("dtype") or getattr(torch, share.outputs[0].dtype)
    copies = bool(share.attributes.get("copy")) or share.op.kind == "aten._to_copy.default"
    return lambda x: [x.to(dtype, copy=copies)]
