"""Views and copies that only move data: dimension maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.language import Opaque, TensorHandle
from shardwise.tdl.registry import no_flops, op


def _view(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return op(*kinds, category="view", saves=(), flops=no_flops)


@_view(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.unsqueeze.default",
    "aten.view_as.default",
)
def reshape(self: TensorHandle, *, out: tuple[int, ...]) -> Callable[..., Any]:
    """Dimensions are merged and split in runs of equal products."""
    runs = _runs(self.shape, out)

    def output(*i: Any) -> Any:
        places: list[Any] = [0] * self.rank
        for dims_in, dims_out in runs:
            flat: Any = 0
            for d in dims_out:
                if out[d] > 1:
                    flat = i[d] if isinstance(flat, int) else flat * out[d] + i[d]
            remaining = prod(self.shape[d] for d in dims_in)
            outermost = True
            for d in dims_in:
                size = self.shape[d]
                if size == 1:
                    continue
                remaining //= size
                place = flat if remaining == 1 else flat // remaining
                places[d] = place if outermost else place % size
                outermost = False
        return self[tuple(places)]

    return output


def _runs(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of equal size into the shortest runs of equal products."""
    runs = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [], []
        x = y = 1
        if i < len(a):
            left.append(i)
            x *= a[i]
            i += 1
        if j < len(b):
            right.append(j)
            y *= b[j]
            j += 1
        while x != y:
            if x < y and i < len(a):
                left.append(i)
                x *= a[i]
                i += 1
            elif j < len(b):
                right.append(j)
                y *= b[j]
                j += 1
            else:
                break
        runs.append((left, right))
    return runs


@_view("aten.transpose.int", "aten.swapaxes.default", "aten.t.default", "aten.mT.default")
def transpose(self: TensorHandle, *, dim0: int = -2, dim1: int = -1) -> Callable[..., Any]:
    """Two dimensions change places."""
    order = list(range(self.rank))
    if self.rank > 1:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return lambda *i: self[tuple(i[d] for d in order)]


@_view("aten.permute.default")
def permute(self: TensorHandle, *, dims: Sequence[int]) -> Callable[..., Any]:
    """y[i] = x[…] with dimension k of y being dims[k] of x"""
    places = {d % self.rank: k for k, d in enumerate(dims)}
    return lambda *i: self[tuple(i[places[d]] for d in range(self.rank))]


@_view("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def expand(self: TensorHandle, other: TensorHandle | None = None) -> Callable[..., Any]:
    """Dimensions of one element are repeated."""
    return lambda *i: self.at(i)


@_view("aten.slice.Tensor", "aten.narrow.default")
def slice_(
    self: TensorHandle, *, dim: int = 0, start: int | None = 0, step: int = 1
) -> Callable[..., Any]:
    """y[…, i] = x[…, i·step + start]"""
    at = dim % self.rank
    first = start or 0
    first = first + self.shape[at] if first < 0 else first
    return lambda *i: self[tuple(x * step + first if d == at else x for d, x in enumerate(i))]


@_view("aten.select.int")
def select(self: TensorHandle, *, dim: int, index: int) -> Callable[..., Any]:
    """One slice of a dimension, which goes away."""
    at = dim % self.rank
    where = index % self.shape[at]
    return lambda *i: self[(*i[:at], where, *i[at:])]


@_view(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
)
def split(self: TensorHandle, *, dim: int = 0, out: Any) -> list[Callable[..., Any]]:
    """Consecutive pieces of one dimension."""
    at = dim % self.rank
    shapes = out if isinstance(out[0], tuple) else (out,)
    starts = [sum(shape[at] for shape in shapes[:k]) for k in range(len(shapes))]

    def piece(start: int) -> Callable[..., Any]:
        return lambda *i: self[tuple(x + start if d == at else x for d, x in enumerate(i))]

    return [piece(start) for start in starts]


@_view("aten.unbind.int")
def unbind(self: TensorHandle, *, dim: int = 0) -> list[Callable[..., Any]]:
    """Every slice of one dimension."""
    at = dim % self.rank

    def piece(where: int) -> Callable[..., Any]:
        return lambda *i: self[(*i[:at], where, *i[at:])]

    return [piece(where) for where in range(self.shape[at])]


@op("aten.cat.default", category="light", saves=(), flops=no_flops)
def cat(tensors: list[TensorHandle], *, dim: int = 0) -> Callable[..., Any]:
    """Pieces one after another; the joined dimension of every piece is needed whole."""
    at = dim % tensors[0].rank
    join = Opaque()
    return lambda *i: join(
        *(t[tuple(slice(None) if d == at else x for d, x in enumerate(i))] for t in tensors)
    )


@op("aten.stack.default", category="light", saves=(), flops=no_flops)
def stack(tensors: list[TensorHandle], *, dim: int = 0) -> Callable[..., Any]:
    """Pieces along a new dimension."""
    at = dim % (tensors[0].rank + 1)
    join = Opaque()
    return lambda *i: join(*(t[(*i[:at], *i[at + 1 :])] for t in tensors))


@op("aten.repeat.default", "aten.roll.default", category="light", saves=(), flops=no_flops)
def repeat(self: TensorHandle, *, out: tuple[int, ...]) -> Callable[..., Any]:
    """Dimensions that are repeated (or rolled) are needed whole; the others pass through."""
    extra = len(out) - self.rank
    copy = Opaque()

    def output(*i: Any) -> Any:
        places = [
            slice(None) if size != out[d + extra] else i[d + extra]
            for d, size in enumerate(self.shape)
        ]
        return copy(self[tuple(places)])

    return output


@op("aten.pad.default", "aten.constant_pad_nd.default", category="light", saves=(), flops=no_flops)
def pad(self: TensorHandle, *, pad: Sequence[int]) -> Callable[..., Any]:
    """y[…, i] = x[…, i - before] where there is one"""
    before = [0] * self.rank
    for k in range(len(pad) // 2):
        before[self.rank - 1 - k] = pad[2 * k]
    return lambda *i: self[tuple(x - b if b else x for x, b in zip(i, before, strict=True))]
