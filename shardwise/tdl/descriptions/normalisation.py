"""Normalisations and softmax: statistics nested in a point-wise expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.language import Max, Opaque, Sum, TensorHandle, apply
from shardwise.tdl.registry import op, pointwise


@op(
    "aten.layer_norm.default",
    "aten.rms_norm.default",
    category="light",
    saves=("input", "weight"),
    flops=pointwise(8.0),
)
def layer_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    *,
    normalized_shape: Sequence[int],
) -> Callable[..., Any]:
    """y[…, h] = (x[…, h] - mean_h x) / std_h x · w[h] + b[h]"""
    inner = len(normalized_shape)

    def output(*i: Any) -> Any:
        outer = i[: len(i) - inner]

        def element(*h: Any) -> Any:
            return input[(*outer, *h)]

        mean, square = Sum(element, normalized_shape), Sum(element, normalized_shape)
        scales = [t[i[len(i) - inner :]] for t in (weight, bias) if t is not None]
        return apply(input[i], mean, square, *scales)

    return output


@op(
    "aten.batch_norm.default",
    category="light",
    saves=("input", "weight"),
    flops=pointwise(8.0),
    note="statistics over the whole batch (synchronised), as on one device",
)
def batch_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    running_mean: TensorHandle | None = None,
    running_var: TensorHandle | None = None,
    *,
    training: bool = True,
) -> Callable[..., Any]:
    """y[b, c, x] = (data[b, c, x] - mean_{b,x}) / std_{b,x} · w[c] + bias[c]"""

    def output(*i: Any) -> Any:
        channel = i[1]
        per_channel = [
            t[channel] for t in (weight, bias, running_mean, running_var) if t is not None
        ]
        if not training:
            return apply(input[i], *per_channel)
        shape = input.shape[:1] + input.shape[2:]

        def element(*j: Any) -> Any:
            return input[(j[0], channel, *j[1:])]

        return apply(input[i], Sum(element, shape), Sum(element, shape), *per_channel)

    return output


@op(
    "aten.group_norm.default",
    category="light",
    saves=("input", "weight"),
    flops=pointwise(8.0),
)
def group_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    *,
    num_groups: int,
) -> Callable[..., Any]:
    """y[b, …] = normalise(x[b, :, …])[…]: split along the batch alone"""
    normalise = Opaque()
    whole = [slice(None)] * (input.rank - 1)
    scales = [t[:] for t in (weight, bias) if t is not None]
    return lambda *i: normalise(input[(i[0], *whole)], *scales)[i[1:]]


@op(
    "aten.softmax.int",
    "aten._softmax.default",
    "aten.log_softmax.int",
    "aten._log_softmax.default",
    category="light",
    saves=("output",),
    flops=pointwise(6.0),
)
def softmax(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, d] = exp(x[…, d] - max_j x[…, j]) / Σ_j exp(x[…, j] - max)"""
    at = dim_of(dim, self.rank)
    extent = (self.shape[at],)

    def output(*i: Any) -> Any:
        def element(j: Any) -> Any:
            return self[(*i[:at], j, *i[at + 1 :])]

        return apply(self[i], Max(element, extent), Sum(element, extent))

    return output
