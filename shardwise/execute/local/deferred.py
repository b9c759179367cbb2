"""Operators whose backward is in two parts: gradients of inputs at once, those of weights later.

Schedules that split backward (Qi et al. 2024, zero bubble) run I, the gradients of what came in,
before another stage waits for them, and W, those of weights, where a rank would wait itself. For a
product y = x w, with g the gradient of y:

    I    g wᵀ    in autograd's backward pass, of which the weight is no part
    W    xᵀ g    from x and g, which are kept until then

and alike for convolutions; a look-up in a table has no I. What lies between such an operator and
the parameter (casts, moves, ZeRO's gathering) is backward of the weight alone and belongs to W. All
else is I. Torch's own split (`stage_backward_weight`) does not go through functions with a backward
of their own, which moves are (pytorch#166577).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwise.execute.local.share import Share
from shardwise.execute.local.waiting import Deferral, Waiting
from shardwise.graph.split_backward import split_ports

aten = torch.ops.aten


@dataclass(frozen=True)
class Form:
    """How an operator of data, weight and bias is run and its backward split.

    `of_data` maps y's gradient, data and weight to the gradient of data; None if it has none.
    `of_weight` maps y's gradient, data and the weight's shape to the gradient of the weight,
    `of_bias` y's gradient and the bias's shape to that of the bias.
    """

    call: Callable[[Any, Any, Any], Any]
    of_data: Callable[[Any, Any, Any], Any] | None
    of_weight: Callable[[Any, Any, Any], Any]
    of_bias: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class _Later:
    """One run of an operator; `weight` and `bias` are where their gradients go, if any."""

    form: Form
    weight: GradientEdge | None
    bias: GradientEdge | None
    waiting: list[Waiting]


class _Split(torch.autograd.Function):  # type: ignore[misc]
    """An operator that autograd differentiates in its data alone.

    The anchor has a gradient, so that backward comes here even if data has none.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Any, later: _Later, data: Any, weight: Any, bias: Any) -> Any:
        ctx.later = later
        ctx.weight_shape, ctx.bias_shape = weight.shape, None if bias is None else bias.shape
        needs_data = later.form.of_data is not None and ctx.needs_input_grad[2]
        ctx.save_for_backward(data, weight if needs_data else None)
        return later.form.call(data, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        later: _Later = ctx.later
        (gradient,), form = gradients, later.form
        data, weight = ctx.saved_tensors
        weight_shape, bias_shape = ctx.weight_shape, ctx.bias_shape

        def of_weights() -> list[torch.Tensor]:
            made = []
            if later.weight is not None:
                made.append(form.of_weight(gradient, data, weight_shape))
            if later.bias is not None:
                made.append(form.of_bias(gradient, bias_shape))
            return made

        edges = [edge for edge in (later.weight, later.bias) if edge is not None]
        later.waiting.append(Waiting(edges, of_weights))
        of_data = None
        if form.of_data is not None and ctx.needs_input_grad[2]:
            of_data = form.of_data(gradient, data, weight)
        return None, None, of_data, None, None


def _edge(tensor: Any) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor is not None and tensor.requires_grad else None


def _run(form: Form, deferral: Deferral, data: Any, weight: Any, bias: Any) -> Any:
    if not torch.is_grad_enabled():
        return form.call(data, weight, bias)
    later = _Later(form, _edge(weight), _edge(bias), deferral.waiting)
    if later.weight is None and later.bias is None:
        return form.call(data, weight, bias)
    anchor = torch.empty(0, device=weight.device, requires_grad=True)
    bare = None if bias is None else bias.detach()
    return _Split.apply(anchor, later, data, weight.detach(), bare)


# Forms


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


_LINEAR = Form(
    lambda x, w, b: aten.linear.default(x, w, b),
    lambda g, x, w: torch.matmul(g, w),
    lambda g, x, shape: _rows(g).t().mm(_rows(x)),
    lambda g, shape: _rows(g).sum(0),
)
_MATMUL = Form(
    lambda x, w, b: aten.matmul.default(x, w) if b is None else aten.addmm.default(b, x, w),
    lambda g, x, w: torch.matmul(g, w.t()),
    lambda g, x, shape: _rows(x).t().mm(_rows(g)),
    lambda g, shape: g.sum_to_size(shape),
)


def _defers(share: Share) -> bool:
    """Returns whether an operator's backward is split, and notes the ports whose gradient waits."""
    if share.deferral is None:
        return False
    tensors = dict(zip(share.op.inputs, share.inputs, strict=True))
    ports = split_ports(share.op, share.arguments, tensors)
    if ports is None:
        return False
    share.deferred = ports.weights
    return True


def call_of(share: Share) -> Callable[..., Any]:
    """Returns what an operator calls: the overload, or one like it whose backward is split."""
    deferral = share.deferral
    if not _defers(share) or deferral is None:
        target: Callable[..., Any] = share.target
        return target
    kind = share.op.kind
    if kind == "aten.embedding.default":
        return lambda w, i, *rest: _run(_embedding(*rest), deferral, i, w, None)
    if kind == "aten.linear.default":
        return lambda x, w, b=None: _run(_LINEAR, deferral, x, w, b)
    if kind == "aten.addmm.default":
        return lambda b, x, w: _run(_MATMUL, deferral, x, w, b)
    return lambda x, w: _run(_MATMUL, deferral, x, w, None)


def _embedding(padding: int = -1, scaled: bool = False, sparse: bool = False) -> Form:
    def of_weight(g: Any, indices: Any, shape: Any) -> Any:
        return aten.embedding_dense_backward.default(g, indices, shape[0], padding, scaled)

    def call(indices: Any, w: Any, _: Any) -> Any:
        return aten.embedding.default(w, indices, padding, scaled, sparse)

    return Form(call, None, of_weight, lambda g, shape: g)


def convolution_of(share: Share) -> Callable[..., Any] | None:
    """Returns a convolution whose backward is split, with the arguments of `aten.convolution`; None
    where it is not."""
    deferral = share.deferral
    if not _defers(share) or deferral is None:
        return None
    return lambda x, w, b, *rest: _run(_convolution(rest), deferral, x, w, b)


def _convolution(rest: Sequence[Any]) -> Form:
    def backward(g: Any, x: Any, w: Any, mask: list[bool]) -> Any:
        return aten.convolution_backward.default(g, x, w, None, *rest, mask)

    def of_weight(g: Any, x: Any, shape: Any) -> Any:
        # Of the weight only its shape is read.
        return backward(g, x, x.new_empty(shape), [False, True, False])[1]

    return Form(
        lambda x, w, b: aten.convolution.default(x, w, b, *rest),
        lambda g, x, w: backward(g, x, w, [True, False, False])[0],
        of_weight,
        lambda g, shape: g.sum([0, *range(2, g.dim())]),
    )
