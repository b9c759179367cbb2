"""Normalisations whose mean and variance span several shares (`moments.py`)."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind, in_float
from shardwise.execute.local.moments import Moments
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share


def _scaled(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@form("layer_norm.default", "rms_norm.default", "native_layer_norm.default")
@form("_fused_rms_norm.default")
def layer_norm(share: Share) -> Run:
    """Normalises by the mean and square of rows, of which every rank has a part."""
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
    measure = Moments.of if centred else Moments.square
    eps = share.attributes["eps"]
    if eps is None:
        eps = torch.finfo(getattr(torch, share.inputs[0].dtype)).eps

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = in_float(given["input"])
        moments = measure(x, exchange.mesh, axes, dims, count)
        y = moments.normalise(x, given.get("weight"), given.get("bias"), eps)
        y = y.to(given["input"].dtype)
        if not several:
            return [y]
        return [y, moments.mean, moments.factor(eps)] if centred else [y, moments.factor_of(x, eps)]

    return run


@form("group_norm.default", "native_group_norm.default")
def group_norm(share: Share) -> Run:
    """Normalises channels of a group and their elements, of which every rank has a part.

    A rank whose share of the channels begins or ends inside a group sums into the groups of all
    channels with a channel-to-group matrix.
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
        x = in_float(given["input"])
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
        broadcast = (1, -1, *[1] * len(spatial))
        weight, bias = (
            None if t is None else t.view(broadcast)
            for t in (given.get("weight"), given.get("bias"))
        )
        y = _scaled(y, weight, bias).to(given["input"].dtype)
        return [y, *(exchange.shared(s, axes) for s in (mean, factor))] if several else [y]

    return run


@form(
    *("batch_norm.default", "native_batch_norm.default", "cudnn_batch_norm.default"),
    *("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats"),
)
def batch_norm(share: Share) -> Run:
    """Uses statistics of the whole batch; running ones are updated as on one device."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dims = [d for d in range(len(shape)) if d != 1]
    axes = tuple(sorted(a for d in dims for a in share.input_axes(0, d)))
    training = attributes.get("training", True)
    if not training or not axes:
        return _in_place(share)
    count = prod(shape[d] for d in dims)
    exchange, arguments = share.exchange, share.arguments
    eps: Any = attributes.get("eps", attributes.get("epsilon"))
    momentum = attributes.get("momentum", attributes.get("exponential_average_factor"))
    several = len(share.outputs) > 1
    if several and len(share.outputs) != 3:
        raise NotLocal("a batch normalisation that reserves memory")
    broadcast = (1, -1, *[1] * (len(shape) - 2))

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = in_float(given["input"])
        measured = Moments.of(x, exchange.mesh, axes, dims, count)
        weight, bias = (
            None if t is None else t.view(broadcast)
            for t in (given.get("weight"), given.get("bias"))
        )
        y = measured.normalise(x, weight, bias, eps).to(given["input"].dtype)
        with torch.no_grad():
            moments = (measured.mean, measured.variance)
            running_moments = zip(
                (given.get("running_mean"), given.get("running_var")), moments, strict=True
            )
            unbiased = (1.0, count / max(count - 1, 1))
            for (running, moment), scale in zip(running_moments, unbiased, strict=True):
                if running is not None:
                    running.lerp_((moment * scale).view(-1).to(running.dtype), momentum)
        if not several:
            return [y]
        return [y, measured.mean.reshape(-1), measured.factor(eps).reshape(-1)]

    return run


def _in_place(share: Share) -> Run:
    """Runs the overload itself, which writes to its running statistics as intended."""
    return bind(share.target, share.arguments, share.attributes, len(share.outputs))


@form("instance_norm.default")
def instance_norm(share: Share) -> Run:
    """Uses statistics of every sample's channels over space."""
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
    broadcast = (1, -1, *[1] * len(dims))

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(arguments, inputs, strict=True))
        x = in_float(given["input"])
        moments = Moments.of(x, exchange.mesh, axes, dims, count)
        weight, bias = (
            None if t is None else t.view(broadcast)
            for t in (given.get("weight"), given.get("bias"))
        )
        return [moments.normalise(x, weight, bias, eps).to(given["input"].dtype)]

    return run


@form("_weight_norm.default", "renorm.default")
def weight_norm(share: Share) -> Run:
    """Uses the norm of a row over all its shares."""
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
