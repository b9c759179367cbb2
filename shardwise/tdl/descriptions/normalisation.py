"""Normalisations and softmax: statistics nested in a point-wise expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.tdl.describe import op, pointwise
from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.descriptions.movement import first_dims
from shardwise.tdl.language import Constant, Max, Opaque, Sum, TensorHandle, apply, named


@op(
    "aten.layer_norm.default",
    "aten.rms_norm.default",
    category="light",
    saves=("input", "weight", "bias"),
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


def _channel_sum(input: TensorHandle, channel: Any) -> Any:
    """A sum over everything in one channel: over the batch and the spatial dimensions."""
    shape = input.shape[:1] + input.shape[2:]
    return Sum(lambda *j: input[(j[0], channel, *j[1:])], shape)


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
        sums = [_channel_sum(input, channel) for _ in range(2)]
        return apply(input[i], *sums, *per_channel)

    return output


@op(
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_functional.default",
    "aten.native_batch_norm.default",
    "aten._batch_norm_with_update_functional.default",
    "aten.cudnn_batch_norm.default",
    category="light",
    saves=("input", "weight", "output.1", "output.2"),
    flops=pointwise(8.0),
    note="statistics over the whole batch (synchronised), as on one device",
)
def native_batch_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    running_mean: TensorHandle | None = None,
    running_var: TensorHandle | None = None,
    *,
    training: bool = True,
    out: tuple[tuple[int, ...], ...],
) -> list[Callable[..., Any]]:
    """As batch_norm, with mean and 1/std per channel"""
    whole = batch_norm(input, weight, bias, running_mean, running_var, training=training)
    data = named(lambda *i: whole(*i), "b", "channel", *(f"x{n}" for n in range(input.rank - 2)))

    def kept(channel: Any) -> Any:
        running = [t[channel] for t in (running_mean, running_var) if t is not None]
        if not training:
            return apply(*running)
        return apply(_channel_sum(input, channel), *running)

    def more(result: tuple[int, ...]) -> Callable[..., Any]:
        if result == input.shape[1:2]:
            return named(lambda *i: kept(*i), "channel")
        return lambda *i: Constant(0.0)

    return [data, *(more(result) for result in out[1:])]


@op(
    "aten._native_batch_norm_legit_no_training.default",
    "aten._batch_norm_no_update.default",
    category="light",
    saves=("input", "weight", "running_mean", "running_var"),
    flops=pointwise(4.0),
)
def fixed_batch_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    running_mean: TensorHandle | None = None,
    running_var: TensorHandle | None = None,
    *,
    out: tuple[tuple[int, ...], ...],
) -> list[Callable[..., Any]]:
    """y[b, c, x] = (data[b, c, x] - mean[c]) / std[c] · w[c] + bias[c]"""
    return native_batch_norm(
        input, weight, bias, running_mean, running_var, training=False, out=out
    )


@op(
    "aten.instance_norm.default",
    category="light",
    saves=("input", "weight"),
    flops=pointwise(8.0),
)
def instance_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    running_mean: TensorHandle | None = None,
    running_var: TensorHandle | None = None,
    *,
    use_input_stats: bool = True,
) -> Callable[..., Any]:
    """y[b, c, x] = (data[b, c, x] - mean_x) / std_x · w[c] + bias[c]"""
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, training=False)

    def output(*i: Any) -> Any:
        def element(*x: Any) -> Any:
            return input[(*i[:2], *x)]

        shape = input.shape[2:]
        scales = [t[i[1]] for t in (weight, bias) if t is not None]
        return apply(input[i], Sum(element, shape), Sum(element, shape), *scales)

    return output


def _group_sums(input: TensorHandle, groups: int, b: Any, channel: Any, group: bool) -> list[Any]:
    """Two sums over one group of channels; `channel` is the group itself if `group`."""
    size = input.shape[1] // groups
    inner = input.shape[2:]

    def element(c: Any, *x: Any) -> Any:
        if groups == 1:
            place = c
        elif group:
            place = channel * size + c
        else:
            place = channel // size * size + c
        return input[(b, place, *x)]

    return [Sum(element, (size, *inner)) for _ in range(2)]


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
    """y[b, c, x] = (data[b, c, x] - mean) / std · w[c] + bias[c], over the group of c"""

    def output(*i: Any) -> Any:
        scales = [t[i[1]] for t in (weight, bias) if t is not None]
        return apply(input[i], *_group_sums(input, num_groups, i[0], i[1], False), *scales)

    return output


@op(
    "aten.native_group_norm.default",
    category="light",
    saves=("input", "weight", "output.1", "output.2"),
    flops=pointwise(8.0),
)
def native_group_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    *,
    group: int,
) -> list[Callable[..., Any]]:
    """As group_norm, with mean and 1/std per sample and group"""
    whole = group_norm(input, weight, bias, num_groups=group)
    data = named(lambda *i: whole(*i), "b", "channel", *(f"x{n}" for n in range(input.rank - 2)))

    def kept(b: Any, g: Any) -> Any:
        return apply(*_group_sums(input, group, b, g, True))

    return [data, *[named(lambda *i: kept(*i), "b", "group")] * 2]


@op(
    "aten.native_layer_norm.default",
    category="light",
    saves=("input", "weight", "bias", "output.1", "output.2"),
    flops=pointwise(8.0),
)
@op(
    "aten._fused_rms_norm.default",
    category="light",
    saves=("input", "weight", "output.1"),
    flops=pointwise(6.0),
)
def native_layer_norm(
    input: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    *,
    normalized_shape: Sequence[int],
    out: tuple[tuple[int, ...], ...],
) -> list[Callable[..., Any]]:
    """As layer_norm or rms_norm, with mean and 1/std per row"""
    data = layer_norm(input, weight, bias, normalized_shape=normalized_shape)
    outer = input.rank - len(normalized_shape)

    def kept(*i: Any) -> Any:
        return apply(Sum(lambda *h: input[(*i[:outer], *h)], normalized_shape))

    return [data, *[kept] * (len(out) - 1)]


@op(
    "aten.native_layer_norm_backward.default",
    category="light",
    saves=(),
    flops=pointwise(12.0),
)
def native_layer_norm_backward(
    grad_out: TensorHandle,
    input: TensorHandle,
    mean: TensorHandle,
    rstd: TensorHandle,
    weight: TensorHandle | None = None,
    bias: TensorHandle | None = None,
    *,
    normalized_shape: Sequence[int],
    output_mask: Sequence[bool] = (True, True, True),
) -> list[Callable[..., Any]]:
    """Gradients of the data (two sums per row), the weight and the bias (sums over rows)"""
    inner = len(normalized_shape)
    outer = input.rank - inner
    rows = input.shape[:outer]

    def of_input(*i: Any) -> Any:
        def element(*h: Any) -> Any:
            scale = [weight[h]] if weight is not None else []
            return apply(grad_out[(*i[:outer], *h)], input[(*i[:outer], *h)], *scale)

        kept = [t.at(i) for t in (mean, rstd)]
        scale = [weight[i[outer:]]] if weight is not None else []
        sums = [Sum(element, normalized_shape) for _ in range(2)]
        return apply(grad_out[i], input[i], *kept, *scale, *sums)

    def of_scale(*h: Any) -> Any:
        def element(*r: Any) -> Any:
            places = (*r, *h)
            return apply(grad_out[places], input[places], mean.at(places), rstd.at(places))

        return apply(Sum(element, rows))

    names = [f"h{n}" for n in range(inner)]
    gradients = (
        named(lambda *i: of_input(*i), *(f"row{n}" for n in range(outer)), *names),
        named(lambda *h: of_scale(*h), *names),
        named(lambda *h: of_scale(*h), *names),
    )
    return [g for g, wanted in zip(gradients, output_mask, strict=True) if wanted]


@op("aten.native_group_norm_backward.default", category="light", saves=(), flops=pointwise(12.0))
def native_group_norm_backward(
    grad_out: TensorHandle,
    input: TensorHandle,
    mean: TensorHandle,
    rstd: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    output_mask: Sequence[bool] = (True, True, True),
) -> list[Callable[..., Any]]:
    """Gradients per sample, and sums over samples of those of weight and bias"""
    step = Opaque()
    scale = [weight[:]] if weight is not None else []

    def sample(b: Any) -> Any:
        return step(*(first_dims(t, (b,)) for t in (grad_out, input, mean, rstd)), *scale)

    def of_scale(channel: Any) -> Any:
        return apply(Sum(named(lambda *b: sample(*b), "sample"), input.shape[:1]))

    gradients = (
        named(lambda *i: sample(i[0]), "b"),
        named(lambda *i: of_scale(*i), "channel"),
        named(lambda *i: of_scale(*i), "channel"),
    )
    return [g for g, wanted in zip(gradients, output_mask, strict=True) if wanted]


def _weight_norm_sum(v: TensorHandle, dim: int, place: Any) -> Any:
    others = [n for d, n in enumerate(v.shape) if d != dim]
    return Sum(lambda *j: v[(*j[:dim], place, *j[dim:])], others)


@op("aten._weight_norm.default", category="light", saves=("*",), flops=pointwise(4.0))
def weight_norm(v: TensorHandle, g: TensorHandle, *, dim: int = 0) -> Callable[..., Any]:
    """w[…, i, …] = v[…, i, …] · g[i] / |v[:, i, :]|"""
    at = dim_of(dim, v.rank)
    return lambda *i: apply(v[i], g.at(i), _weight_norm_sum(v, at, i[at]))


@op(
    "aten._weight_norm_interface.default",
    category="light",
    saves=("*", "output.1"),
    flops=pointwise(4.0),
)
def weight_norm_interface(
    v: TensorHandle, g: TensorHandle, *, dim: int = 0, out: tuple[tuple[int, ...], ...]
) -> list[Callable[..., Any]]:
    """As _weight_norm, with the norms"""
    at = dim_of(dim, v.rank)
    places = [d for d, n in enumerate(out[1]) if n == v.shape[at]]
    where = at if len(out[1]) == v.rank else (places or [0])[0]
    return [
        weight_norm(v, g, dim=dim),
        lambda *i: apply(_weight_norm_sum(v, at, i[where])),
    ]


@op("aten.renorm.default", category="light", saves=("self",), flops=pointwise(4.0))
def renorm(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, i, …] = x[…, i, …] scaled down to a largest norm: a statistic"""
    at = dim_of(dim, self.rank)
    return lambda *i: apply(self[i], _weight_norm_sum(self, at, i[at]))


@op("aten._softmax_backward_data.default", category="light", saves=(), flops=pointwise(4.0))
@op("aten._log_softmax_backward_data.default", category="light", saves=(), flops=pointwise(4.0))
def softmax_backward(
    grad_output: TensorHandle, output: TensorHandle, *, dim: int
) -> Callable[..., Any]:
    """g[…, d] = f(dy[…, d], y[…, d], Σ_j dy[…, j] y[…, j])"""
    at = dim_of(dim, output.rank)

    def gradient(*i: Any) -> Any:
        def element(j: Any) -> Any:
            places = (*i[:at], j, *i[at + 1 :])
            return apply(grad_output[places], output[places])

        return apply(grad_output[i], output[i], Sum(element, output.shape[at : at + 1]))

    return gradient


@op("aten.glu.default", category="elementwise", saves=("self",), flops=pointwise(8.0))
def glu(self: TensorHandle, *, dim: int = -1) -> Callable[..., Any]:
    """y[…, i] = x[…, i] · sigmoid(x[…, i + n])"""
    at = dim_of(dim, self.rank)
    half = self.shape[at] // 2
    return lambda *i: apply(
        self[i], self[tuple(x + half if d == at else x for d, x in enumerate(i))]
    )


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
