"""Pooling: windows, hence halo exchange where they overlap and a spatial dimension is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.tdl.describe import Call, op, pointwise
from shardwise.tdl.descriptions.arguments import per_spatial_dim
from shardwise.tdl.descriptions.movement import first_dims
from shardwise.tdl.descriptions.windows import Windows
from shardwise.tdl.language import Max, Opaque, Sum, TensorHandle, apply


@op(
    "aten.max_pool1d.default",
    "aten.max_pool2d.default",
    "aten.max_pool3d.default",
    category="light",
    saves=("self", "output"),
    flops=pointwise(4.0),
    note="keeps its input, and the output in place of the indices",
)
def max_pool(
    self: TensorHandle,
    *,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> Callable[..., Any]:
    """y[…, x] = max_dx data[…, x·stride + dx·dilation - padding]"""
    return _pool(self, kernel_size, stride, padding, dilation, Max)


@op(
    "aten.avg_pool1d.default",
    "aten.avg_pool2d.default",
    "aten.avg_pool3d.default",
    category="light",
    saves=("self",),
    flops=pointwise(4.0),
)
def avg_pool(
    self: TensorHandle, *, kernel_size: Any, stride: Any = None, padding: Any = 0
) -> Callable[..., Any]:
    """y[…, x] = Σ_dx data[…, x·stride + dx - padding] / window"""
    return _pool(self, kernel_size, stride, padding, 1, Sum)


def _windows(rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    """The windows of an operator over data of `rank`; without a stride they lie side by side."""
    spatial = rank - 2
    size = per_spatial_dim(kernel_size, spatial, 1)
    return Windows(
        size,
        steps=per_spatial_dim(stride, spatial, 1) if stride not in (None, []) else size,
        gaps=per_spatial_dim(dilation, spatial, 1),
        pads=per_spatial_dim(padding, spatial, 0),
    )


def _pool(
    data: TensorHandle,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    reducer: Callable[..., Any],
) -> Callable[..., Any]:
    windows = _windows(data.rank, kernel_size, stride, padding, dilation)

    def output(*i: Any) -> Any:
        def term(*dx: Any) -> Any:
            return data[(*i[:2], *windows.read(i[2:], dx))]

        # Wrapped in a point-wise function, so that windows are not split across devices.
        return apply(reducer(term, windows.size))

    return output


def _adaptive_saves(call: Call) -> tuple[str, ...]:
    return () if all(size == 1 for size in call.outputs[0][2:]) else ("self",)


@op(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
    category="light",
    saves=_adaptive_saves,
    flops=pointwise(1.0),
    note="keeps its input, but nothing where one cell is left: that is a mean",
)
def adaptive_avg_pool(self: TensorHandle, *, output_size: Any) -> Callable[..., Any]:
    """Mean over windows that tile the input; onto one cell it is a sum over all of it."""
    sizes = per_spatial_dim(output_size, self.rank - 2, 1)
    inner = self.shape[2:]
    if all(size == 1 for size in sizes):
        return lambda *i: Sum(lambda *dx: self[(*i[:2], *dx)], inner)
    return _adaptive(self, sizes, Sum)


def _adaptive(
    data: TensorHandle, sizes: Sequence[int], reducer: Callable[..., Any]
) -> Callable[..., Any]:
    """Cell i covers ⌊i·n/cells⌋ to ⌈(i+1)·n/cells⌉; windows are as large as the largest cell."""
    inner = data.shape[data.rank - len(sizes) :]
    windows = [
        n // size
        if n % size == 0
        else max(-(-(i + 1) * n // size) - i * n // size for i in range(size))
        for n, size in zip(inner, sizes, strict=True)
    ]

    def output(*i: Any) -> Any:
        outer = i[: len(i) - len(sizes)]

        def term(*dx: Any) -> Any:
            places = (
                at * w + d if n == w * cells else at * n // cells + d
                for at, d, w, n, cells in zip(
                    i[len(outer) :], dx, windows, inner, sizes, strict=True
                )
            )
            return data[(*outer, *places)]

        return apply(reducer(term, windows))

    return output


@op(
    *(f"aten.adaptive_max_pool{n}d.default" for n in (1, 2, 3)),
    category="light",
    saves=("self", "output.1"),
    flops=pointwise(1.0),
)
def adaptive_max_pool(
    self: TensorHandle, *, output_size: Any, out: tuple[tuple[int, ...], ...]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """value, place = maximum over windows that tile the input"""
    count = len(output_size) if isinstance(output_size, list | tuple) else self.rank - 2
    sizes = out[0][len(out[0]) - count :]
    return _adaptive(self, sizes, Max), _adaptive(self, sizes, Max)


@op(
    "aten.max_pool1d_with_indices.default",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
    category="light",
    saves=("self", "output.1"),
    flops=pointwise(4.0),
    note="places are those in the whole plane",
)
def max_pool_with_indices(
    self: TensorHandle,
    *,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """value, place = max_dx data[…, x·stride + dx·dilation - padding]"""
    one = _pool(self, kernel_size, stride, padding, dilation, Max)
    return one, one


def _spread(
    grad: TensorHandle, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any
) -> Callable[..., Any]:
    """What an element of the data gets back from all windows that it is in."""
    windows = _windows(rank, kernel_size, stride, padding, dilation)

    def output(*i: Any) -> Any:
        def term(*t: Any) -> Any:
            return grad[(*i[:2], *windows.reaching(i[2:], t))]

        return apply(Sum(term, windows.overlapping))

    return output


@op(
    "aten.avg_pool2d_backward.default",
    "aten.avg_pool3d_backward.default",
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def avg_pool_backward(
    grad_output: TensorHandle,
    self: TensorHandle,
    *,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
) -> Callable[..., Any]:
    """g[…, x] = Σ_t dy[…, (x + padding) // stride - t] / window"""
    return _spread(grad_output, self.rank, kernel_size, stride, padding, 1)


@op(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def max_pool_backward(
    grad_output: TensorHandle,
    self: TensorHandle,
    indices: TensorHandle,
    *,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> Callable[..., Any]:
    """g[…, x] = Σ_t dy[…, (x + padding) // stride - t] where x won"""
    settings = (self.rank, kernel_size, stride, padding, dilation)
    of_grad, of_places = _spread(grad_output, *settings), _spread(indices, *settings)
    return lambda *i: apply(of_grad(*i), of_places(*i))


@op(
    "aten._adaptive_avg_pool2d_backward.default",
    "aten._adaptive_avg_pool3d_backward.default",
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def adaptive_avg_pool_backward(grad_output: TensorHandle, self: TensorHandle) -> Callable[..., Any]:
    """g[…, x] = dy[…, x // window] / window, and of the next cell where windows overlap"""
    cells, inner = grad_output.shape, self.shape

    def output(*i: Any) -> Any:
        def term(*next: Any) -> Any:
            places = (
                x // (n // c) if n % c == 0 else x * c // n + more
                for x, more, n, c in zip(i[2:], next, inner[2:], cells[2:], strict=True)
            )
            return grad_output[(*i[:2], *places)]

        return apply(Sum(term, [2] * (self.rank - 2)))

    return output


@op(
    "aten.max_unpool2d.default",
    "aten.max_unpool3d.default",
    category="light",
    saves=("indices",),
    flops=pointwise(1.0),
)
def max_unpool(self: TensorHandle, indices: TensorHandle) -> Callable[..., Any]:
    """y[b, c, places[b, c, x]] = x[b, c, x]: the plane is needed whole"""
    place = Opaque()
    return lambda *i: place(first_dims(self, i[:2]), first_dims(indices, i[:2]))
