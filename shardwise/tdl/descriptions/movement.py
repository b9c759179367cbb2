"""Forms that many descriptions share: dimensions needed whole, and reductions over dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any

from shardwise.tdl.describe import Call
from shardwise.tdl.descriptions.arguments import dim_of, dims_of
from shardwise.tdl.language import Opaque, TensorHandle


def per_input(call: Call) -> tuple[float, float]:
    """Returns one flop per element of the first input, forward and backward."""
    elements = float(prod(next(iter(call.shapes.values()))))
    return elements, elements


def gather_back(call: Call) -> tuple[float, float]:
    """Comparisons forward; backward copies the winners' gradients only."""
    return per_input(call)[0], 0.0


def moved(tensor: TensorHandle, dims: Collection[int]) -> Callable[..., Any]:
    """Elements change places, or change together, within `dims`, which are needed whole."""
    copy = Opaque()
    return lambda *i: copy(tensor[tuple(slice(None) if d in dims else x for d, x in enumerate(i))])


def along(tensor: TensorHandle, dim: int) -> Callable[..., Any]:
    """An opaque function of a whole dimension that stays."""
    return moved(tensor, [dim_of(dim, tensor.rank)] if tensor.rank else [])


def places(tensor: TensorHandle, dims: list[int], keepdim: bool, i: Any, reduced: Any) -> Any:
    """Returns the indices of `tensor`: of `dims` those in `reduced`, of others the output's."""
    inner, outer = iter(reduced), iter(i)
    indices = []
    for d in range(tensor.rank):
        if d in dims:
            indices.append(next(inner))
            if keepdim:
                next(outer)
        else:
            indices.append(next(outer))
    return tuple(indices)


def over(
    reducer: Callable[..., Any], tensor: TensorHandle, dim: Any, keepdim: bool
) -> Callable[..., Any]:
    """A reduction over some dimensions, or all."""
    dims = dims_of(dim, tensor.rank)
    extents = [tensor.shape[d] for d in dims]
    return lambda *i: reducer(lambda *j: tensor[places(tensor, dims, keepdim, i, j)], extents)


def whole(tensor: TensorHandle, dim: Any, keepdim: bool) -> Callable[..., Any]:
    """An opaque function of whole dimensions that go away."""
    dims = dims_of(dim, tensor.rank)
    best = Opaque()
    all_of = [slice(None)] * len(dims)
    return lambda *i: best(tensor[places(tensor, dims, keepdim, i, all_of)])


def all_of(tensor: TensorHandle) -> Any:
    """Every element: for arguments of opaque functions."""
    return tensor[(slice(None),) * tensor.rank]


def first_dims(tensor: TensorHandle, outer: Sequence[Any]) -> Any:
    """The leading dimensions indexed, the others whole."""
    return tensor[(*outer, *[slice(None)] * (tensor.rank - len(outer)))]


def common_shape(*tensors: TensorHandle) -> tuple[int, ...]:
    """The shape that broadcasting gives."""
    rank = max(t.rank for t in tensors)
    return tuple(
        max(t.shape[d - rank + t.rank] for t in tensors if d - rank + t.rank >= 0)
        for d in range(rank)
    )
