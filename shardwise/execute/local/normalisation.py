"""Normalisations whose mean and variance are of shares: summed first, then read by every share.

mean = Σ x / n,  var = Σ (x - mean)² / n,  y = (x - mean) / √(var + ε) · w + b
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from shardwise.execute.exchange import Exchange
from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share

Axes = tuple[int, ...]


def moments(
    x: Any, dims: Sequence[int], axes: Axes, count: int, exchange: Exchange
) -> tuple[Any, Any]:
    """Mean and (biased) variance over `dims` of all shares, `count` numbers each; dims are kept."""
    mean = exchange.sum(x.sum(dims, keepdim=True), axes) / count
    square = (x - mean).square().sum(dims, keepdim=True)
    return mean, exchange.sum(square, axes) / count


def _scaled(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _accumulating(x: Any) -> Any:
    """Halves are normalised in float, as torch's kernels do."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@form("layer_norm.default", "rms_norm.default", "native_layer_norm.default")
@form("_fused_rms_norm.default")
def layer_norm(share: Share) -> Run:
    """Mean and square of rows, of which every rank has a part."""
    inner = len(share.attributes["normalized_shape"])
    shape = share.inputs[0].shape
    rank = len(shape)
    dims = list(range(rank - inner, rank))
    axes = tuple(a for d in dims for a in share.input_axes(0, d))
    local = [share.output_shape()[d] for d in dims]
    if not axes:
        return plain(share, {"normalized_shape": local})
    axes, count = tuple(sorted(axes)), prod(shape[d] for d in dims)
    exchange, arguments = share.exchange, share.arguments
    centred, several = "rms" not in share.op.kind, len(share.outputs) > 1
    eps = share.attributes["eps"]
    if eps is None:
        eps = torch.finfo(getattr(torch, share.inputs[0].dtype)).eps

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = _accumulating(given["input"])
        if centred:
            mean, variance = moments(x, dims, axes, count, exchange)
            factor = torch.rsqrt(variance + eps)
            y = (x - mean) * factor
        else:
            square = exchange.sum(x.square().sum(dims, keepdim=True), axes) / count
            factor = torch.rsqrt(square + eps)
            y = x * factor
        y = _scaled(y, given.get("weight"), given.get("bias")).to(given["input"].dtype)
        if not several:
            return [y]
        kept = (mean, factor) if centred else (factor,)
        return [y, *(exchange.shared(s, axes) for s in kept)]

    return run


@form("group_norm.default", "native_group_norm.default")
def group_norm(share: Share) -> Run:
    """Channels of a group and what lies in them, of which every rank has a part.

    A rank whose share of the channels begins or ends inside a group sums to the groups of all
    channels by a matrix of which channel is in which group.
    """
    attributes, shape = share.attributes, share.inputs[0].shape
    groups = attributes["num_groups" if "num_groups" in attributes else "group"]
    channel_axes = share.input_axes(0, 1)
    spatial = list(range(2, len(shape)))
    axes = tuple(sorted({*channel_axes, *(a for d in spatial for a in share.input_axes(0, d))}))
    rows = share.input_rows(0, 1)
    if share.output_axes(0, 1) != channel_axes:
        raise NotLocal("channels of the result are split, those of the data are not")
    if not axes:
        local = share.input_shape(0)
        sizes = {"N": local[0], "C": local[1], "HxW": prod(local[2:])}
        changed = {name: n for name, n in sizes.items() if name in attributes}
        return plain(share, changed)
    several = len(share.outputs) > 1
    per_group = shape[1] // groups
    count = per_group * prod(shape[2:])
    exchange, arguments, eps = share.exchange, share.arguments, attributes["eps"]
    places = torch.tensor([c // per_group for c in rows])
    member = torch.nn.functional.one_hot(places, groups)
    cached: dict[Any, Any] = {}

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = _accumulating(given["input"])
        key = (x.device, x.dtype)
        if key not in cached:
            cached[key] = member.to(device=x.device, dtype=x.dtype)
        matrix = cached[key]

        def per_channel(statistic: Any) -> Any:
            return (statistic @ matrix.t()).view(*statistic.shape[:1], -1, *[1] * len(spatial))

        def grouped(values: Any) -> Any:
            summed = values.sum(spatial) if spatial else values
            return exchange.sum(summed @ matrix, axes) / count

        mean = grouped(x)
        deviation = x - per_channel(mean)
        factor = torch.rsqrt(grouped(deviation.square()) + eps)
        y = deviation * per_channel(factor)
        beside = (1, -1, *[1] * len(spatial))
        weight, bias = (
            None if t is None else t.view(beside) for t in (given.get("weight"), given.get("bias"))
        )
        y = _scaled(y, weight, bias).to(given["input"].dtype)
        return [y, *(exchange.shared(s, axes) for s in (mean, factor))] if several else [y]

    return run


@form(
    *("batch_norm.default", "native_batch_norm.default", "cudnn_batch_norm.default"),
    *("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats"),
)
def batch_norm(share: Share) -> Run:
    """Statistics of the whole batch; running ones are updated as on one device."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dims = [d for d in range(len(shape)) if d != 1]
    axes = tuple(sorted(a for d in dims for a in share.input_axes(0, d)))
    training = attributes.get("training", True)
    if not training or not axes:
        return _in_place(share)
    count = prod(shape[d] for d in dims)
    exchange, arguments = share.exchange, share.arguments
    eps = attributes.get("eps", attributes.get("epsilon"))
    momentum = attributes.get("momentum", attributes.get("exponential_average_factor"))
    several = len(share.outputs) > 1
    if several and len(share.outputs) != 3:
        raise NotLocal("a batch normalisation that reserves memory")
    beside = (1, -1, *[1] * (len(shape) - 2))
    replicated = share.replicated_axes(1) if several else ()

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = _accumulating(given["input"])
        mean, variance = moments(x, dims, axes, count, exchange)
        factor = torch.rsqrt(variance + eps)
        weight, bias = (
            None if t is None else t.view(beside) for t in (given.get("weight"), given.get("bias"))
        )
        y = _scaled((x - mean) * factor, weight, bias).to(given["input"].dtype)
        with torch.no_grad():
            kept = ((given.get("running_mean"), mean), (given.get("running_var"), variance))
            unbiased = (1.0, count / max(count - 1, 1))
            for (running, found), scale in zip(kept, unbiased, strict=True):
                if running is not None:
                    value = (found * scale).view(-1).to(running.dtype)
                    running.lerp_(value, momentum)
        if not several:
            return [y]
        return [y, *(exchange.shared(s.reshape(-1), replicated) for s in (mean, factor))]

    return run


def _in_place(share: Share) -> Run:
    """The overload itself: it writes to its running statistics, which is what is wanted."""
    return bind(share.target, share.arguments, share.attributes, len(share.outputs))


@form("instance_norm.default")
def instance_norm(share: Share) -> Run:
    """Statistics of every sample's channels over space."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dims = list(range(2, len(shape)))
    axes = tuple(sorted(a for d in dims for a in share.input_axes(0, d)))
    statistics = attributes["use_input_stats"]
    if not statistics or not share.variables:
        return _in_place(share)
    if share.argument("running_mean") is not None:
        raise NotLocal("running statistics of instances")
    if not axes:
        return plain(share)
    count, eps = prod(shape[2:]), attributes["eps"]
    exchange, arguments = share.exchange, share.arguments
    beside = (1, -1, *[1] * len(dims))

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = _accumulating(given["input"])
        mean, variance = moments(x, dims, axes, count, exchange)
        weight, bias = (
            None if t is None else t.view(beside) for t in (given.get("weight"), given.get("bias"))
        )
        y = _scaled((x - mean) * torch.rsqrt(variance + eps), weight, bias)
        return [y.to(given["input"].dtype)]

    return run


@form("_weight_norm.default", "renorm.default")
def weight_norm(share: Share) -> Run:
    """The norm of a row over all its shares."""
    if not share.statistics:
        return plain(share)
    attributes, shape = share.attributes, share.inputs[0].shape
    dim = attributes["dim"] % len(shape)
    axes, exchange = share.axes(*share.statistics), share.exchange
    others = [d for d in range(len(shape)) if d != dim]
    order = float(attributes.get("p", 2))

    def norm(v: Any) -> Any:
        power = v.abs().pow(order).sum(others, keepdim=True)
        return exchange.sum(power, axes).pow(1 / order)

    if share.op.kind == "aten._weight_norm.default":
        return lambda v, g: [v * (g / norm(v))]
    most = float(attributes["maxnorm"])

    def scaled(v: Any) -> list[Any]:
        length = norm(v)
        return [torch.where(length > most, v * (most / (length + 1e-7)), v)]

    return scaled
