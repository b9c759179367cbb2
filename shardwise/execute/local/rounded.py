"""Linear layers whose three products multiply numbers of 8 or 4 bits (`sharding/recipes.py`).

Each product gets its operands as the recipe rounds them along the dimension that it sums over, and
multiplies in float32 what the numbers stand for: the kernels' sums are in float32 as well.
Gradients of other inputs, biases, come from the unrounded gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.execute.exchange import Exchange
from shardwise.execute.local.calling import Run
from shardwise.execute.local.rounding import Rounder, Scaled, parts_of
from shardwise.execute.local.share import Share
from shardwise.sharding.recipes import WEIGHTED, Block, Recipe

_OUTPUTS_FIRST = ("aten.linear.default", "shardwise.expert_linear.default")
"""Layers whose weight has its outputs before its inputs: those of others come last."""


@dataclass(frozen=True)
class _Layer:
    """The layer on this rank's share: `run` computes it from local inputs, of which `data` and
    `weight` are the ports that are rounded, each for the products that read it."""

    run: Run
    recipe: Recipe
    data: int
    weight: int
    exchange: Exchange
    data_y: Rounder
    data_w: Rounder
    weight_y: Rounder
    weight_x: Rounder
    gradient_x: Rounder
    gradient_w: Rounder


def rounded(share: Share, run: Run, recipe: Recipe) -> Run:
    """Returns `run` of a linear layer with its products rounded; ranks exchange maxima in it."""
    weight = WEIGHTED[share.op.kind]
    data, exchange = weight - 1, share.exchange
    dims = len(share.inputs[weight].shape)
    inner = dims - 1 if share.op.kind in _OUTPUTS_FIRST else dims - 2
    outer = dims - 1 if inner == dims - 2 else dims - 2
    parts = {
        port: parts_of(share.inputs[port].shape, share.input_layouts[port], share.mesh)
        for port in (data, weight)
    }
    of_result = parts_of(share.outputs[0].shape, share.output_layouts[0], share.mesh)

    def rounder(
        dtype: str, block: Block, of: Any, summed: Sequence[int], apart: int = 0
    ) -> Rounder:
        """`apart` leading dimensions have a tensor for each element: experts."""
        sizes = _sizes(block, len(of[0]), summed, apart)
        return Rounder(recipe, dtype, sizes, of, exchange)

    last, tokens = len(parts[data][0]) - 1, range(len(parts[data][0]) - 1)
    block_x = recipe.weight_block_x or recipe.weight_block
    layer = _Layer(
        run, recipe, data, weight, exchange,
        rounder(recipe.forward, recipe.data_block, parts[data], [last]),
        rounder(recipe.forward, recipe.data_block, parts[data], tokens),
        rounder(recipe.forward, recipe.weight_block, parts[weight], [inner], dims - 2),
        rounder(recipe.forward, block_x, parts[weight], [outer], dims - 2),
        rounder(recipe.gradient, recipe.data_block, of_result, [last]),
        rounder(recipe.gradient, recipe.data_block, of_result, tokens),
    )  # fmt: skip
    return lambda *inputs: [_Rounded.apply(layer, *inputs)]


def _sizes(block: Block, dims: int, summed: Sequence[int], apart: int) -> list[int | None]:
    """Returns the size of a block along each dimension. Of several that are summed over, blocks
    that do not have all lie in the last."""
    rows, along = block
    sizes: list[int | None] = []
    for dim in range(dims):
        if dim < apart:
            sizes.append(1)
        elif dim not in summed:
            sizes.append(rows)
        else:
            sizes.append(along if along is None or dim == max(summed) else 1)
    return sizes


class _Rounded(torch.autograd.Function):  # type: ignore[misc]
    """The layer; keeps data for the weight's gradient as it was rounded, where the recipe does."""

    @staticmethod
    def forward(ctx: Any, layer: _Layer, *inputs: Any) -> Any:
        ctx.layer, ctx.step = layer, layer.exchange.step
        x, w = inputs[layer.data], inputs[layer.weight]
        y = _run(layer, inputs, layer.data_y(x, ctx.step), layer.weight_y(w, ctx.step))
        kept: Any = None
        if layer.recipe.rounds_dw and ctx.needs_input_grad[1 + layer.weight]:
            kept = layer.data_w(x, ctx.step)
        keeps_rounded = kept is not None and layer.recipe.keeps_rounded
        ctx.blocks, ctx.dtype = (kept.blocks if keeps_rounded else None), x.dtype
        ctx.scales = None
        others = [i for i in range(len(inputs)) if i != layer.data]
        ctx.others, ctx.count = others, len(inputs)
        data = (kept.numbers, kept.scales) if keeps_rounded else (x,)
        ctx.save_for_backward(*(inputs[i] for i in others), *data)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,), layer, step = gradients, ctx.layer, ctx.step
        saved = ctx.saved_tensors
        inputs: list[Any] = [None] * ctx.count
        for i, tensor in zip(ctx.others, saved, strict=False):
            inputs[i] = tensor
        data = saved[len(ctx.others) :]
        needs = ctx.needs_input_grad[1:]
        made: list[Any] = [None] * ctx.count
        wide = torch.promote_types(dy.dtype, torch.float32)
        if ctx.blocks is None:
            x = data[0]
            rounded_x = layer.data_w(x, step) if layer.recipe.rounds_dw else None
            x = x.to(wide) if rounded_x is None else rounded_x.wide()
        else:
            x = Scaled(data[0], data[1], ctx.blocks).wide()
        inputs[layer.data] = x
        if needs[layer.data]:
            w = layer.weight_x(inputs[layer.weight], step).wide()
            gradient = layer.gradient_x(dy, step).wide()
            made[layer.data] = _gradient(layer, inputs, {layer.weight: w}, layer.data, gradient)
        if needs[layer.weight]:
            gradient = dy.to(wide)
            if layer.recipe.rounds_dw:
                gradient = layer.gradient_w(dy, step).wide()
            made[layer.weight] = _gradient(layer, inputs, {}, layer.weight, gradient)
        for i, needed in enumerate(needs):
            if needed and i not in (layer.data, layer.weight):
                made[i] = _gradient(layer, inputs, {}, i, dy.to(wide))
        for i, dtype in ((layer.data, ctx.dtype), (layer.weight, inputs[layer.weight].dtype)):
            made[i] = None if made[i] is None else made[i].to(dtype)
        return None, *made


def _run(layer: _Layer, inputs: Sequence[Any], data: Scaled, weight: Scaled) -> Any:
    given = [_wide(one) for one in inputs]
    given[layer.data], given[layer.weight] = data.wide(), weight.wide()
    return layer.run(*given)[0]


def _gradient(
    layer: _Layer, inputs: Sequence[Any], instead: dict[int, Any], port: int, dy: Any
) -> Any:
    """Returns the gradient of one input of the layer, which is linear in each of them."""
    given = [instead.get(i, _wide(one)) for i, one in enumerate(inputs)]
    given[port] = given[port].detach().requires_grad_()
    with torch.enable_grad():
        y = layer.run(*given)[0]
    (gradient,) = torch.autograd.grad(y, given[port], dy)
    return gradient


def _wide(x: Any) -> Any:
    is_real = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.to(torch.promote_types(x.dtype, torch.float32)) if is_real else x
