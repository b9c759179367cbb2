"""How tensors lie in memory: strides followed through the views of a graph.

A **strides class** has no sizes, so that shards of a tensor have their tensor's class:
the dimensions from the outermost in memory to the innermost, each with how many times farther
apart its elements are than dense ones would be; dimensions that are repeated (stride 0) after a
bar. `0,2,1,3` is a transposed tensor, `0,1x3` columns cut out of rows three times as long, `0|1` a
row that is expanded. The class of a contiguous tensor is empty. Dimensions of one element lie
anywhere and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod

from shardwise.graph.graph import Graph, Operator

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def contiguous(shape: Shape) -> Strides:
    """Returns strides (elements) of a dense tensor in row-major order."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def stride_classes(graph: Graph, elementwise: frozenset[str]) -> Mapping[str, str]:
    """Returns the class of every tensor.

    `elementwise` names operators whose output lies as its input.
    """
    strides: dict[str, Strides] = {}
    for name, tensor in graph.tensors.items():
        if name not in graph.producer:
            strides[name] = contiguous(tensor.shape)
    for op in graph.operators:
        for position, out in enumerate(op.outputs):
            strides[out] = _output_strides(graph, op, position, strides, op.name in elementwise)
    return {name: stride_class(t.shape, strides[name]) for name, t in graph.tensors.items()}


def stride_class(shape: Shape, strides: Strides) -> str:
    """Returns the class of a tensor of this shape with these strides."""
    real = [d for d in range(len(shape)) if shape[d] > 1]
    if 0 in shape or all(strides[d] == contiguous(shape)[d] for d in real):
        return ""
    moving = sorted((d for d in real if strides[d]), key=lambda d: (-strides[d], d))
    words = []
    for place, d in enumerate(moving):
        inner = moving[place + 1] if place + 1 < len(moving) else None
        dense = 1 if inner is None else strides[inner] * shape[inner]
        apart = strides[d] / dense
        words.append(str(d) if apart == 1 else f"{d}x{apart:.3g}")
    repeated = [str(d) for d in real if not strides[d]]
    return ",".join(words) + ("|" + ",".join(repeated) if repeated else "")


def strides_of(shape: Shape, text: str) -> Strides:
    """Returns strides (elements) of a tensor of this shape that lies as its class says."""
    if not text:
        return contiguous(shape)
    order, _, repeated = text.partition("|")
    strides, step = [0] * len(shape), 1
    for word in reversed([word for word in order.split(",") if word]):
        dim, _, apart = word.partition("x")
        step *= ceil(float(apart)) if apart else 1
        strides[int(dim)] = step
        step *= max(shape[int(dim)], 1)
    named = {int(d) for d in repeated.split(",") if d}
    named |= {int(word.partition("x")[0]) for word in order.split(",") if word}
    for d in range(len(shape)):
        if d not in named:
            strides[d] = step
    return tuple(strides)


def _output_strides(
    graph: Graph, op: Operator, position: int, strides: Mapping[str, Strides], elementwise: bool
) -> Strides:
    """Returns the strides of one output."""
    shape = graph.tensors[op.outputs[position]].shape
    if not op.inputs:
        return contiguous(shape)
    source = graph.tensors[op.inputs[0]].shape
    given = strides[op.inputs[0]]
    view = _VIEWS.get(op.kind.rpartition(".")[0])
    if view is not None:
        of_view = view(source, given, shape, op)
        return contiguous(shape) if of_view is None else of_view
    if elementwise and source == shape and _is_dense(shape, given):
        return given
    return contiguous(shape)


def _is_dense(shape: Shape, strides: Strides) -> bool:
    text = stride_class(shape, strides)
    return "x" not in text and "|" not in text


View = Callable[[Shape, Strides, Shape, Operator], Strides | None]
"""Strides of a view from its source's; None where the result is a copy."""


def _reshaped(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides | None:
    """Follows torch's computeStride: dense runs of dimensions are split into the new ones."""
    if 0 in source or prod(source) != prod(shape):
        return None
    runs: list[list[int]] = []
    for extent, stride in zip(reversed(source), reversed(strides), strict=True):
        if extent == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1] and runs[-1][1]:
            runs[-1][0] *= extent
        else:
            runs.append([extent, stride])
    reshaped: list[int] = []
    left, step = 1, 1
    pending = iter(runs)
    for extent in reversed(shape):
        if extent == 1:
            reshaped.append(step)
            continue
        if left == 1:
            run = next(pending, None)
            if run is None:
                return None
            left, step = run
        if left % extent:
            return None
        reshaped.append(step)
        left //= extent
        step *= extent
    return tuple(reversed(reshaped))


def _permuted(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides:
    dims = [d % len(source) for d in op.attributes["dims"]]
    return tuple(strides[d] for d in dims)


def _swapped(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides:
    given = op.attributes
    first, second = given.get("dim0", given.get("axis0")), given.get("dim1", given.get("axis1"))
    if first is None or second is None:  # t, mT: the last two dimensions
        if len(source) < 2:
            return strides
        first, second = -2, -1
    swapped = list(strides)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _expanded(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides:
    added = len(shape) - len(source)
    old_shape, old = (1,) * added + source, (0,) * added + strides
    return tuple(
        0 if extent != before else stride
        for extent, before, stride in zip(shape, old_shape, old, strict=True)
    )


def _same(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides | None:
    return strides if source == shape else None


def _cut(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides:
    step = op.attributes.get("step", 1)
    dim = op.attributes.get("dim", 0) % len(source)
    return tuple(s * step if d == dim else s for d, s in enumerate(strides))


def _selected(source: Shape, strides: Strides, shape: Shape, op: Operator) -> Strides:
    dim = op.attributes.get("dim", 0) % len(source)
    return tuple(s for d, s in enumerate(strides) if d != dim)


_VIEWS: Mapping[str, View] = {
    f"aten.{name}": view
    for view, names in (
        (
            _reshaped,
            "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as",
        ),
        (_permuted, "permute"),
        (_swapped, "transpose swapdims swapaxes t mT"),
        (_expanded, "expand broadcast_to expand_as"),
        (_cut, "slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk"),
        (_selected, "select unbind"),
        (_same, "alias detach"),
    )
    for name in names.split()
}
"""The views that are followed, by kind without the overload; any other output is contiguous."""
