"""Softmax and similar operators, with maximum and sum of exponentials reduced over the shares.

m = max_r max_j x,  s = Σ_r Σ_j exp(x - m),  log softmax = x - m - log s
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardwise.execute.exchange import Exchange
from shardwise.execute.local.calling import Run
from shardwise.execute.local.extremes import extreme
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share
from shardwise.tdl.descriptions.arguments import dim_of, dims_of

Both = tuple[Any, Any]


def shifted(x: Any, dims: Any, axes: tuple[int, ...], exchange: Exchange) -> Both:
    """Returns x - m and m, the maximum over `dims` of all shares; m has no gradient."""
    largest = exchange.max(extreme(x.detach(), dims, "max"), axes)
    largest = torch.where(largest.isinf(), torch.zeros_like(largest), largest)
    return x - largest, largest


@form("softmax.int", "_softmax.default")
def softmax(share: Share) -> Run:
    """Divides every share of a row by the sum of all."""
    return _softmax(share, lambda e, total, _: e / total)


@form("_safe_softmax.default")
def safe_softmax(share: Share) -> Run:
    """Works like softmax; a fully masked row has the sum 0 and becomes 0."""
    return _softmax(share, lambda e, total, _: torch.where(total > 0, e / total, 0.0))


@form("log_softmax.int", "_log_softmax.default")
def log_softmax(share: Share) -> Run:
    """Subtracts from every share of a row the logarithm of the sum of all."""
    return _softmax(share, lambda _, total, x: x - total.log())


def _softmax(share: Share, finish: Callable[[Any, Any, Any], Any]) -> Run:
    dim = dim_of(share.attributes["dim"], len(share.outputs[0].shape))
    axes = share.output_axes(0, dim)
    if not axes:
        return plain(share)
    exchange = share.exchange
    dtype = share.attributes.get("dtype")
    if share.attributes.get("half_to_float"):
        dtype = torch.float32

    def run(x: Any) -> list[Any]:
        x = x if dtype is None else x.to(dtype)
        x, _ = shifted(x, dim, axes, exchange)
        e = x.exp()
        return [finish(e, exchange.sum(e.sum(dim, keepdim=True), axes), x)]

    return run


@form("logsumexp.default")
def logsumexp(share: Share) -> Run:
    """Computes log Σ exp over shares; the result is whole on every rank."""
    dims = dims_of(share.attributes["dim"], len(share.inputs[0].shape))
    if not share.statistics:
        return plain(share)
    axes, exchange = share.axes(*share.statistics), share.exchange
    keepdim = share.attributes["keepdim"]

    def run(x: Any) -> list[Any]:
        x, largest = shifted(x, dims, axes, exchange)
        total = exchange.total(x.exp().sum(dims, keepdim=True), axes).log() + largest
        return [total if keepdim else total.squeeze(dims)]

    return run
