"""Views and copies that only move data: dimension maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.describe import Call, Function, no_flops, op
from shardwise.tdl.descriptions.arguments import dim_of, dims_of
from shardwise.tdl.descriptions.movement import moved
from shardwise.tdl.language import NotCovered, Opaque, TensorHandle


def _view(*kinds: str) -> Callable[[Function], Function]:
    return op(*kinds, category="view", saves=(), flops=no_flops)


@_view(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.dim",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.squeeze_copy.default",
    "aten.unsqueeze_copy.default",
    "aten.view_copy.default",
    "aten._reshape_copy.default",
    "aten._reshape_alias.default",
    "aten.reshape_as.default",
    "aten.ravel.default",
    "aten.atleast_1d.default",
    "aten.atleast_2d.default",
    "aten.atleast_3d.default",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.unsqueeze.default",
    "aten.view_as.default",
)
def reshape(
    self: TensorHandle, other: TensorHandle | None = None, *, out: tuple[int, ...]
) -> Callable[..., Any]:
    """y[merged] = x[merged // n, merged mod n]; y[outer, inner] = x[outer · n + inner]"""
    if prod(self.shape) != prod(out):
        raise NotCovered(f"a view of {list(self.shape)} as {list(out)}")
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
    shapes, ends = (a, b), [0, 0]
    runs = []
    while ends != [len(a), len(b)]:
        starts = ends
        ends = [min(end + 1, len(shape)) for shape, end in zip(shapes, starts, strict=True)]
        while (x := prod(a[starts[0] : ends[0]])) != (y := prod(b[starts[1] : ends[1]])):
            side = 0 if x < y and ends[0] < len(a) else 1
            if ends[side] == len(shapes[side]):
                break
            ends[side] += 1
        left, right = (list(range(*run)) for run in zip(starts, ends, strict=True))
        runs.append((left, right))
    return runs


@_view(
    "aten.transpose.int",
    "aten.swapdims.default",
    "aten.t.default",
    "aten.mT.default",
    "aten.t_copy.default",
    "aten.transpose_copy.int",
    "aten.adjoint.default",
    "aten.mH.default",
    "aten.matrix_H.default",
)
def transpose(self: TensorHandle, *, dim0: int = -2, dim1: int = -1) -> Callable[..., Any]:
    """y[…, j, i] = x[…, i, j]"""
    order = list(range(self.rank))
    if self.rank > 1:
        a, b = dim_of(dim0, self.rank), dim_of(dim1, self.rank)
        order[a], order[b] = b, a
    return lambda *i: self[tuple(i[d] for d in order)]


@_view("aten.numpy_T.default")
def reverse(self: TensorHandle) -> Callable[..., Any]:
    """y[…, j, i] = x[i, j, …]"""
    return lambda *i: self[i[::-1]]


@_view("aten.swapaxes.default")
def swapaxes(self: TensorHandle, *, axis0: int, axis1: int) -> Callable[..., Any]:
    """y[…, j, i] = x[…, i, j]"""
    return transpose(self, dim0=axis0, dim1=axis1)


@_view("aten.permute.default", "aten.permute_copy.default")
def permute(self: TensorHandle, *, dims: Sequence[int]) -> Callable[..., Any]:
    """y[i] = x[…] with dimension k of y being dims[k] of x"""
    places = {dim_of(d, self.rank): k for k, d in enumerate(dims)}
    return lambda *i: self[tuple(i[places[d]] for d in range(self.rank))]


@_view("aten.movedim.int", "aten.moveaxis.int", "aten.movedim.intlist", "aten.moveaxis.intlist")
def movedim(
    self: TensorHandle, *, source: int | list[int], destination: int | list[int]
) -> Callable[..., Any]:
    """y[…, i] = x[i, …]"""
    sources = [source] if isinstance(source, int) else source
    places = [destination] if isinstance(destination, int) else destination
    moving = {
        dim_of(to, self.rank): dim_of(d, self.rank) for to, d in zip(places, sources, strict=True)
    }
    staying = iter(d for d in range(self.rank) if d not in moving.values())
    return permute(
        self, dims=[moving[k] if k in moving else next(staying) for k in range(self.rank)]
    )


@_view(
    "aten.expand.default",
    "aten.expand_copy.default",
    "aten.broadcast_to.default",
    "aten.expand_as.default",
)
def expand(self: TensorHandle, other: TensorHandle | None = None) -> Callable[..., Any]:
    """y[…, i] = x[…, 0]: dimensions of one element are repeated"""
    return lambda *i: self.at(i)


@_view(
    "aten.slice.Tensor", "aten.slice_copy.Tensor", "aten.narrow.default", "aten.narrow_copy.default"
)
def slice_(
    self: TensorHandle, *, dim: int = 0, start: int | None = 0, step: int = 1
) -> Callable[..., Any]:
    """y[…, i] = x[…, i·step + start]"""
    at = dim_of(dim, self.rank)
    first = start or 0
    first = max(first + self.shape[at], 0) if first < 0 else first
    return lambda *i: self[tuple(x * step + first if d == at else x for d, x in enumerate(i))]


@_view("aten.select.int", "aten.select_copy.int")
def select(self: TensorHandle, *, dim: int, index: int) -> Callable[..., Any]:
    """y[…] = x[…, index]"""
    at = dim_of(dim, self.rank)
    return lambda *i: self[(*i[:at], index, *i[at:])]


@_view(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    "aten.tensor_split.indices",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_chunk.default",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
)
def split(self: TensorHandle, *, dim: int = 0, out: Any) -> list[Callable[..., Any]]:
    """y_k[…, i] = x[…, i + start_k]"""
    at = dim_of(dim, self.rank)
    shapes = out if isinstance(out[0], tuple) else (out,)
    starts = [sum(shape[at] for shape in shapes[:k]) for k in range(len(shapes))]

    def piece(start: int) -> Callable[..., Any]:
        return lambda *i: self[tuple(x + start if d == at else x for d, x in enumerate(i))]

    return [piece(start) for start in starts]


@_view("aten.unbind.int", "aten.unbind_copy.int")
def unbind(self: TensorHandle, *, dim: int = 0) -> list[Callable[..., Any]]:
    """y_k[…] = x[…, k]"""
    at = dim_of(dim, self.rank)

    def piece(where: int) -> Callable[..., Any]:
        return lambda *i: self[(*i[:at], where, *i[at:])]

    return [piece(where) for where in range(self.shape[at])]


@op(
    "aten.cat.default",
    "aten.concat.default",
    "aten.concatenate.default",
    category="light",
    saves=(),
    flops=no_flops,
)
def cat(tensors: list[TensorHandle], *, dim: int = 0) -> Callable[..., Any]:
    """y[…, :] = join(a[…, :], b[…, :], …)[:]: the joined dimension is needed whole"""
    at = dim_of(dim, tensors[0].rank)
    join = Opaque()
    return lambda *i: join(
        *(t[tuple(slice(None) if d == at else x for d, x in enumerate(i))] for t in tensors)
    )


@op("aten.stack.default", category="light", saves=(), flops=no_flops)
def stack(tensors: list[TensorHandle], *, dim: int = 0) -> Callable[..., Any]:
    """y[…, k] = x_k[…]"""
    at = dim_of(dim, tensors[0].rank + 1)
    join = Opaque()
    return lambda *i: join(*(t[(*i[:at], *i[at + 1 :])] for t in tensors))


@op("aten.roll.default", category="light", saves=(), flops=no_flops)
def roll(self: TensorHandle, *, dims: int | Sequence[int] | None = None) -> Callable[..., Any]:
    """y[…, i] = x[…, (i - shift) mod n]: a rolled dimension is needed whole"""
    return moved(self, dims_of(dims, self.rank))


@op("aten.flip.default", category="light", saves=(), flops=no_flops)
def flip(self: TensorHandle, *, dims: Sequence[int]) -> Callable[..., Any]:
    """y[…, i] = x[…, n - 1 - i]: no share of a flipped dimension is its own"""
    return moved(self, [dim_of(d, self.rank) for d in dims])


@op("aten.repeat_interleave.self_int", category="light", saves=(), flops=no_flops)
def repeat_interleave(self: TensorHandle, *, repeats: int, dim: int) -> Callable[..., Any]:
    """y[…, i] = x[…, i // repeats]"""
    at = dim_of(dim, self.rank)
    return lambda *i: self[tuple(x // repeats if d == at else x for d, x in enumerate(i))]


@op("aten.repeat.default", "aten.tile.default", category="light", saves=(), flops=no_flops)
def repeat(self: TensorHandle, *, out: tuple[int, ...]) -> Callable[..., Any]:
    """y[…, i] = x[…, i mod n]: a repeated dimension is needed whole"""
    extra = len(out) - self.rank
    copy = Opaque()

    def output(*i: Any) -> Any:
        places = [
            slice(None) if size != out[d + extra] else i[d + extra]
            for d, size in enumerate(self.shape)
        ]
        return copy(self[tuple(places)])

    return output


def _pad_saves(call: Call) -> tuple[str, ...]:
    """Returns the input for reflected and replicated borders."""
    return () if call.attributes.get("mode", "constant") in ("constant", "circular") else ("self",)


@op(
    "aten.pad.default",
    "aten.constant_pad_nd.default",
    category="light",
    saves=_pad_saves,
    flops=no_flops,
)
def pad(self: TensorHandle, *, pad: Sequence[int], mode: str = "constant") -> Callable[..., Any]:
    """y[…, i] = x[…, i - before] where there is one"""
    if mode not in ("constant", "replicate"):
        changed = {self.rank - 1 - k // 2 for k, width in enumerate(pad) if width}
        return moved(self, sorted(changed))
    before = [0] * self.rank
    for k in range(len(pad) // 2):
        before[self.rank - 1 - k] = pad[2 * k]
    return lambda *i: self[tuple(x - b if b else x for x, b in zip(i, before, strict=True))]
