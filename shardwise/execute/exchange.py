"""What local operators send each other, differentiable: statistics, rows, whole inputs.

Gradients follow the conventions of cost/group_work.py. With shares r along some axes:

    sum      S = Σ_r x_r, read by the work of every share       dx_r = Σ_q dS_q
    total    S = Σ_r x_r, where all ranks continue with one S   dx_r = dS
    gather   whole X of shares x_r, each rank using its own X   dx_r = share r of Σ_q dX_q
    rows     the rows of X that rank r needs                    dx_r = Σ_q dX_q on x_r's rows
    first    x on the first rank, zeros on the others           dx = dy on the first, else 0
    shared   y = x; all ranks continue with one y               dx = dy on the first, else 0

`first` makes a term of a PARTIAL result; `shared` keeps an equal gradient from counting twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.collectives import all_gather, all_reduce, reduce_scatter
from shardwise.execute.communication import counted
from shardwise.execute.rank_mesh import RankMesh

Axes = Sequence[int]


class Exchange:
    """The exchanges of one rank; `step` counts forward passes and seeds random operators.

    Operators without inputs make their tensors on `device`; None means torch's default.
    """

    def __init__(self, mesh: RankMesh, device: Any = None) -> None:
        self.mesh = mesh
        self.device = device
        self.step = 0

    def sum(self, x: Any, axes: Axes) -> Any:
        """Returns the sum over the axes; its gradient is summed as well."""
        return _Sum.apply(x, self.mesh, tuple(axes)) if axes else x

    def total(self, x: Any, axes: Axes) -> Any:
        """Returns the sum over the axes; the gradient, equal on every rank, passes unchanged."""
        return _Total.apply(x, self.mesh, tuple(axes)) if axes else x

    def begin_total(self, x: Any, axes: Axes) -> Callable[[], Any]:
        """Begins to sum x, without gradient, over the axes; the returned call waits for it."""
        if not axes:
            return lambda: x
        whole = x.detach().clone()
        work = dist.all_reduce(whole, group=self.mesh.group(axes), async_op=True)

        def ended() -> Any:
            work.wait()
            return whole

        return ended

    def max(self, x: Any, axes: Axes) -> Any:
        """Returns the maximum over the axes; no gradient."""
        return _reduced(x, self.mesh, axes, dist.ReduceOp.MAX) if axes else x.detach()

    def min(self, x: Any, axes: Axes) -> Any:
        """Returns the minimum over the axes; no gradient."""
        return _reduced(x, self.mesh, axes, dist.ReduceOp.MIN) if axes else x.detach()

    def first(self, x: Any, axes: Axes) -> Any:
        """Returns a term of a PARTIAL tensor: x on the first rank along the axes, else zeros."""
        return _First.apply(x, self.mesh.index(axes) == 0) if axes else x

    def shared(self, x: Any, axes: Axes) -> Any:
        """Returns x; of the gradient, equal along the axes, only the first rank's counts."""
        return _Shared.apply(x, self.mesh.index(axes) == 0) if axes else x

    def gather(self, x: Any, dim: int, axes: Axes, extent: int) -> Any:
        """Returns the whole dimension (`extent` elements), of which every rank has its share."""
        return _Gather.apply(x, dim, self.mesh, tuple(axes), extent) if axes else x

    def each(self, x: Any, axes: Axes) -> Any:
        """Returns what every rank along the axes has, stacked in a new first dimension."""
        x = x.unsqueeze(0)
        mesh = self.mesh.even
        return _Gather.apply(x, 0, mesh, tuple(axes), mesh.parts(axes)) if axes else x

    def rows(
        self,
        x: Any,
        dim: int,
        wanted: Sequence[range],
        extent: int,
        axes: Axes,
        zeros: tuple[int, int] | None = None,
        *,
        inside: bool = False,
    ) -> Any:
        """Returns the rows `wanted[index]` of a dimension of `extent` that is cut along the axes.

        `wanted` covers all ranks along the axes, in the order of `RankMesh.index`. `zeros` gives
        the number of zero rows to add before and after; the result is then a separate tensor.
        `inside` says that every rank of the mesh already has the rows it needs, so nothing is sent.
        """
        moves = _Moves(self.mesh, tuple(axes), dim, extent, wanted, zeros, inside)
        return moves.bring(x)


class _Moves:
    """Which rows of `dim` go from which rank to which; all ranks know it before sending.

    Only rows for other ranks are sent; a rank's own rows are copied into place once.
    """

    def __init__(
        self,
        mesh: RankMesh,
        axes: Axes,
        dim: int,
        extent: int,
        wanted: Sequence[range],
        zeros: tuple[int, int] | None,
        inside: bool,
    ) -> None:
        self.mesh, self.axes, self.dim = mesh, axes, dim
        self.zeros, self.padded = zeros or (0, 0), zeros is not None
        have = _starts(mesh.shares(extent, axes))
        self.me = mesh.index(axes)
        self.own = have[self.me]
        self.sent = [_common(self.own, w) for w in wanted]
        self.got = [_common(h, wanted[self.me]) for h in have]
        self.inside = inside

    def bring(self, x: Any) -> Any:
        if not self.inside:
            return _Rows.apply(x, self)
        mine = self._own(x)
        if not self.padded:
            return mine
        return torch.nn.functional.pad(mine, (*[0, 0] * (x.dim() - self.dim - 1), *self.zeros))

    def _own(self, x: Any) -> Any:
        mine = self.sent[self.me]
        return x.narrow(self.dim, mine.start - self.own.start, len(mine))

    @counted
    def forth(self, x: Any) -> Any:
        """Returns the wanted rows with zeros around them, in a new tensor."""
        pieces = [
            x.narrow(self.dim, r.start - self.own.start, len(r)) for r in self._others(self.sent)
        ]
        parts = self._swap(x, pieces, self._others(self.got))
        parts.insert(self.me, self._own(x))
        before, after = (self._zeros(x, rows) for rows in self.zeros)
        return torch.cat([*before, *parts, *after], self.dim)

    @counted
    def back(self, grad: Any) -> Any:
        """Returns the gradient of the own rows: the sum over all ranks that used them."""
        starts = _starts([self.zeros[0], *map(len, self.got)])[1:]
        places = [grad.narrow(self.dim, r.start, len(r)) for r in starts]
        mine = places.pop(self.me)
        sent = self._others(self.sent)
        received = self._swap(grad, places, sent)
        used = self.sent[self.me]
        if len(used) == len(self.own):
            total = mine.clone(memory_format=torch.contiguous_format)
        else:
            total = grad.new_zeros(self._shape(grad, len(self.own)))
            self._own(total).copy_(mine)
        for r, piece in zip(sent, received, strict=True):
            total.narrow(self.dim, r.start - self.own.start, len(r)).add_(piece)
        return total

    def _others(self, rows: Sequence[range]) -> list[range]:
        return [r for rank, r in enumerate(rows) if rank != self.me]

    def _zeros(self, x: Any, rows: int) -> list[Any]:
        return [x.new_zeros(self._shape(x, rows))] if rows else []

    def _shape(self, x: Any, rows: int) -> tuple[int, ...]:
        return (*x.shape[: self.dim], rows, *x.shape[self.dim + 1 :])

    def _swap(self, x: Any, pieces: Sequence[Any], into: Sequence[range]) -> list[Any]:
        """Sends `pieces` to the others and returns what they sent, `into` rows of each."""
        wires = [_to_wire(piece).reshape(-1) for piece in pieces]
        counts = [wire.numel() for wire in wires]
        whole = _to_wire(x.new_empty(0))
        shapes = [self._shape(x, len(r)) for r in into]
        per_element = 2 if x.is_complex() else 1
        expected = [torch.Size(shape).numel() * per_element for shape in shapes]
        counts.insert(self.me, 0)
        sizes = [*expected[: self.me], 0, *expected[self.me :]]
        received = whole.new_empty(sum(sizes))
        group = self.mesh.group(self.axes)
        dist.all_to_all_single(received, torch.cat(wires), sizes, counts, group=group)
        parts = received.split(expected)
        if x.is_complex():
            parts = [part.view(-1, 2) for part in parts]
        return [
            _from_wire(part, x.dtype).view(shape) for part, shape in zip(parts, shapes, strict=True)
        ]


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, mesh: RankMesh, axes: Axes) -> Any:
        ctx.mesh, ctx.axes = mesh, axes
        return all_reduce(x, mesh, axes)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return all_reduce(grad, ctx.mesh, ctx.axes), None, None


class _Total(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, mesh: RankMesh, axes: Axes) -> Any:
        return all_reduce(x, mesh, axes)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None, None


class _First(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, is_first: bool) -> Any:
        ctx.is_first = is_first
        return x.view_as(x) if is_first else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (grad if ctx.is_first else torch.zeros_like(grad)), None


class _Shared(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, is_first: bool) -> Any:
        ctx.is_first = is_first
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (grad if ctx.is_first else torch.zeros_like(grad)), None


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, mesh: RankMesh, axes: Axes, extent: int) -> Any:
        ctx.dim, ctx.mesh, ctx.axes = dim, mesh, axes
        return _from_wire(all_gather(_to_wire(x), dim, mesh, axes, extent), x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        share = reduce_scatter(_to_wire(grad), ctx.dim, ctx.mesh, ctx.axes)
        return _from_wire(share, grad.dtype), None, None, None, None


class _Rows(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, moves: _Moves) -> Any:
        ctx.moves = moves
        return moves.forth(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.moves.back(grad), None


def _reduced(x: Any, mesh: RankMesh, axes: Axes, operation: Any) -> Any:
    x = x.detach()
    return _from_wire(all_reduce(_to_wire(x), mesh, axes, operation), x.dtype)


def _to_wire(x: Any) -> Any:
    """Converts booleans to bytes and complex numbers to pairs, as they are sent."""
    if x.dtype is torch.bool:
        return x.to(torch.uint8)
    return torch.view_as_real(x.resolve_conj()).contiguous() if x.is_complex() else x


def _from_wire(x: Any, dtype: torch.dtype) -> Any:
    if dtype.is_complex:
        return torch.view_as_complex(x.contiguous())
    return x.to(dtype)


def _starts(lengths: Sequence[int]) -> list[range]:
    ranges, start = [], 0
    for length in lengths:
        ranges.append(range(start, start + length))
        start += length
    return ranges


def _common(a: range, b: range) -> range:
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    return range(start, stop) if start < stop else range(a.start, a.start)
