"""Rearrangements: sliding windows, diagonals, pixel shuffles, stacks, grids, borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.describe import Function, no_flops, op
from shardwise.tdl.descriptions.arguments import dim_of, dims_of, per_spatial_dim
from shardwise.tdl.descriptions.movement import all_of, moved
from shardwise.tdl.descriptions.views import cat, split, stack
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply


def _copy(*kinds: str) -> Callable[[Function], Function]:
    return op(*kinds, category="light", saves=(), flops=no_flops)


def _view(*kinds: str) -> Callable[[Function], Function]:
    return op(*kinds, category="view", saves=(), flops=no_flops)


@_view("aten.unfold.default", "aten.unfold_copy.default")
def unfold(self: TensorHandle, *, dimension: int, step: int) -> Callable[..., Any]:
    """y[…, w, …, k] = x[…, w·step + k, …]"""
    at = dim_of(dimension, self.rank)
    return lambda *i: self[tuple(x * step + i[-1] if d == at else x for d, x in enumerate(i[:-1]))]


@_view("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(self: TensorHandle, *, dim1: int = 0, dim2: int = 1) -> Callable[..., Any]:
    """y[…, i] = x[…, i, …, i + offset, …]: both dimensions are needed whole"""
    pair = {dim_of(dim1, self.rank), dim_of(dim2, self.rank)}
    copy = Opaque()

    def output(*i: Any) -> Any:
        outer = iter(i[:-1])
        return copy(
            self[tuple(slice(None) if d in pair else next(outer) for d in range(self.rank))]
        )

    return output


@_view("aten.linalg_diagonal.default")
def diagonal_of_matrices(A: TensorHandle, *, dim1: int = -2, dim2: int = -1) -> Callable[..., Any]:
    """y[…, i] = x[…, i, i + offset]: both dimensions are needed whole"""
    return diagonal(A, dim1=dim1, dim2=dim2)


@_copy("aten.diag_embed.default")
def diag_embed(self: TensorHandle, *, dim1: int = -2, dim2: int = -1) -> Callable[..., Any]:
    """y[…, i, …, i + offset, …] = x[…, i]"""
    pair = {dim_of(dim1, self.rank + 1), dim_of(dim2, self.rank + 1)}
    copy = Opaque()
    return lambda *i: copy(self[(*(x for d, x in enumerate(i) if d not in pair), slice(None))])


@_copy("aten.diag.default", "aten.diagflat.default")
def diag(self: TensorHandle) -> Callable[..., Any]:
    """y = the diagonal of x, or a matrix that has it: x is needed whole"""
    copy = Opaque()
    return lambda *i: copy(all_of(self))


@_copy("aten.block_diag.default", "aten.cartesian_prod.default")
def joined(tensors: list[TensorHandle]) -> Callable[..., Any]:
    """y = blocks of every tensor, which are needed whole"""
    copy = Opaque()
    return lambda *i: copy(*map(all_of, tensors))


@_copy("aten.hstack.default")
def hstack(tensors: list[TensorHandle]) -> Callable[..., Any]:
    """y[…, :, …] = join(a, b, …) along the second dimension"""
    return cat(tensors, dim=0 if tensors[0].rank == 1 else 1)


@_copy("aten.vstack.default", "aten.row_stack.default")
def vstack(tensors: list[TensorHandle]) -> Callable[..., Any]:
    """y[:, …] = join(a, b, …) along the first dimension"""
    return stack(tensors, dim=0) if tensors[0].rank == 1 else cat(tensors, dim=0)


@_copy("aten.dstack.default", "aten.column_stack.default")
def dstack(tensors: list[TensorHandle], *, out: tuple[int, ...]) -> Callable[..., Any]:
    """y[…, :] = join(a, b, …) along the last dimension"""
    rank = tensors[0].rank
    if rank == len(out):
        return cat(tensors, dim=rank - 1)
    if rank == len(out) - 1 and out[:rank] == tensors[0].shape:
        return stack(tensors, dim=rank)
    raise NotCovered(f"a stack of {rank} dimensions into {len(out)}")


@_view(
    *(f"aten.{name}.{form}" for name in ("hsplit", "vsplit", "dsplit") for form in ("int", "array"))
)
def hsplit(self: TensorHandle, *, out: Any) -> list[Callable[..., Any]]:
    """y_k[…, i, …] = x[…, i + start_k, …]"""
    first = out[0] if isinstance(out[0], tuple) else out
    (at,) = [d for d, (a, b) in enumerate(zip(self.shape, first, strict=True)) if a != b] or [0]
    return split(self, dim=at, out=out)


@_view("aten.meshgrid.default", "aten.meshgrid.indexing")
def meshgrid(tensors: list[TensorHandle], *, indexing: str = "ij") -> list[Callable[..., Any]]:
    """y_k[i…] = x_k[i_k]"""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]

    def grid(tensor: TensorHandle, at: int) -> Callable[..., Any]:
        return lambda *i: tensor[i[at]] if tensor.rank else tensor[()]

    return [grid(tensor, at) for tensor, at in zip(tensors, order, strict=True)]


@_view("aten.broadcast_tensors.default")
def broadcast_tensors(tensors: list[TensorHandle]) -> list[Callable[..., Any]]:
    """y_k[i] = x_k[i] with numpy's broadcasting"""
    return [tensor.at for tensor in map(_Broadcast, tensors)]


class _Broadcast:
    """A tensor under indices one by one."""

    def __init__(self, tensor: TensorHandle) -> None:
        self._tensor = tensor

    def at(self, *i: Any) -> Any:
        return self._tensor.at(i)


@_copy("aten.fliplr.default")
def fliplr(self: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = x[i, n - 1 - j]: no share of a flipped dimension is its own"""
    return moved(self, [1])


@_copy("aten.flipud.default")
def flipud(self: TensorHandle) -> Callable[..., Any]:
    """y[i, …] = x[n - 1 - i, …]: no share of a flipped dimension is its own"""
    return moved(self, [0])


@_copy("aten.rot90.default")
def rot90(self: TensorHandle, *, dims: Sequence[int] = (0, 1)) -> Callable[..., Any]:
    """y[i, j] = x[j, n - 1 - i]: both dimensions are needed whole"""
    return moved(self, dims_of(list(dims), self.rank))


@_copy("aten.pixel_shuffle.default")
def pixel_shuffle(self: TensorHandle, *, upscale_factor: int) -> Callable[..., Any]:
    """y[c, h, w] = x[c·r² + (h mod r)·r + w mod r, h // r, w // r]"""
    r = upscale_factor
    return lambda *i: self[
        (*i[:-3], i[-3] * (r * r) + i[-2] % r * r + i[-1] % r, i[-2] // r, i[-1] // r)
    ]


@_copy("aten.pixel_unshuffle.default")
def pixel_unshuffle(self: TensorHandle, *, downscale_factor: int) -> Callable[..., Any]:
    """y[c, h, w] = x[c // r², h·r + c mod r² // r, w·r + c mod r]"""
    r = downscale_factor
    return lambda *i: self[
        (*i[:-3], i[-3] // (r * r), i[-2] * r + i[-3] % (r * r) // r, i[-1] * r + i[-3] % r)
    ]


@_copy("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(self: TensorHandle) -> Callable[..., Any]:
    """y[b, c, …] = x[b, (c mod g)·n/g + c // g, …]: the channels are needed whole"""
    return moved(self, [self.rank - 3 if self.rank > 2 else 1])


@_copy("aten.im2col.default")
def im2col(
    self: TensorHandle,
    *,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Callable[..., Any]:
    """y[…, c·k² + d, at] = x[…, c, at·stride + d·dilation - padding]"""
    kernel, gaps, pads, steps = (
        per_spatial_dim(v, 2, 1) for v in (kernel_size, dilation, padding, stride)
    )
    window = prod(kernel)
    width = (self.shape[-1] + 2 * pads[1] - gaps[1] * (kernel[1] - 1) - 1) // steps[1] + 1

    def output(*i: Any) -> Any:
        channel, at = i[-2], i[-1]
        down = at // width * steps[0] + channel % window // kernel[1] * gaps[0] - pads[0]
        across = at % width * steps[1] + channel % kernel[1] * gaps[1] - pads[1]
        return apply(self[(*i[:-2], channel // window, down, across)])

    return output


@_copy("aten.col2im.default")
def col2im(self: TensorHandle, *, kernel_size: Any) -> Callable[..., Any]:
    """y[…, c, h, w] = Σ_{d, at} x[…, c·k² + d, at] where it falls"""
    window = prod(per_spatial_dim(kernel_size, 2, 1))
    extents = (window, self.shape[-1])

    def output(*i: Any) -> Any:
        return Sum(lambda d, at: self[(*i[:-3], i[-3] * window + d, at)], extents)

    return output


@op(
    *(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)),
    category="light",
    saves=("self",),
    flops=no_flops,
)
def reflection_pad(self: TensorHandle, *, padding: Sequence[int]) -> Callable[..., Any]:
    """y[…, i] = x[…, |i - before|]: padded dimensions are needed whole"""
    padded = {self.rank - 1 - k // 2 for k, width in enumerate(padding) if width}
    return moved(self, padded)


@op(
    *(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)),
    category="light",
    saves=("self",),
    flops=no_flops,
)
def replication_pad(self: TensorHandle, *, padding: Sequence[int]) -> Callable[..., Any]:
    """y[…, i] = x[…, i - before], or its nearest"""
    before = [0] * self.rank
    for k in range(len(padding) // 2):
        before[self.rank - 1 - k] = padding[2 * k]
    return lambda *i: self[tuple(x - b if b else x for x, b in zip(i, before, strict=True))]


@_copy("aten._pad_circular.default")
def circular_pad(self: TensorHandle, *, pad: Sequence[int]) -> Callable[..., Any]:
    """y[…, i] = x[…, (i - before) mod n]: padded dimensions are needed whole"""
    return reflection_pad(self, padding=pad)


@_copy("aten.select_scatter.default")
def select_scatter(self: TensorHandle, src: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, k, …] = s[…] where k is the index, else x[…, k, …]"""
    at = dim_of(dim, self.rank)
    return lambda *i: apply(self[i], src[(*i[:at], *i[at + 1 :])])


@_copy("aten.slice_scatter.default")
def slice_scatter(self: TensorHandle, src: TensorHandle, *, dim: int = 0) -> Callable[..., Any]:
    """y[…, k, …] = s[…, k', …] inside the slice, else x[…, k, …]"""
    at = dim_of(dim, self.rank)
    place = Opaque()
    return lambda *i: place(
        self[i], src[tuple(slice(None) if d == at else x for d, x in enumerate(i))]
    )


@_copy("aten.diagonal_scatter.default")
def diagonal_scatter(
    self: TensorHandle, src: TensorHandle, *, dim1: int = 0, dim2: int = 1
) -> Callable[..., Any]:
    """y[…, i, …, i + offset, …] = s[…, i], else x"""
    pair = {dim_of(dim1, self.rank), dim_of(dim2, self.rank)}
    place = Opaque()
    return lambda *i: place(
        self[i], src[(*(x for d, x in enumerate(i) if d not in pair), slice(None))]
    )
