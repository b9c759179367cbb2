"""Mean and variance of which every rank has a part, and normalisation by them.

Forward sums both moments in one all_reduce, backward the two sums of its formula in another, as the
plan prices them; only the input is kept, as in torch's own kernels:

    y = x̂ · w + b,   x̂ = (x - mean) · f,   f = 1 / √(var + ε)
    dx = f · (g - (Σ g + x̂ · Σ g x̂) / n),   g = dy · w      (Ioffe and Szegedy 2015, §3)

where Σ runs over all shares of the n numbers that have one mean. For a mean square alone (root mean
square normalisation) Σ g is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.execute.collectives import all_reduce
from shardwise.execute.rank_mesh import RankMesh


@dataclass(frozen=True)
class Moments:
    """Moments over dimensions `dims` (kept), `count` numbers each, of all shares along `axes`.

    `mean` is None if only the mean square was requested; `variance` is biased, or that square.
    """

    mesh: RankMesh
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    count: int
    mean: Any
    variance: Any

    @classmethod
    def of(
        cls, x: Any, mesh: RankMesh, axes: Sequence[int], dims: Sequence[int], count: int
    ) -> Moments:
        """Returns mean and variance of a local part `x`."""
        # torch.var_mean takes ten times as long as these four on a CPU.
        mean = x.detach().mean(tuple(dims), keepdim=True)
        off = x.detach() - mean
        variance = off.square_().mean(tuple(dims), keepdim=True)
        del off
        # Sums of squares cancel: in double, single precision is left after that.
        both = torch.stack([mean, variance]).double()
        both[1].addcmul_(both[0], both[0])
        both = all_reduce(both.mul_(x.numel() / max(mean.numel(), 1)), mesh, axes).div_(count)
        both[1].addcmul_(both[0], both[0], value=-1.0).clamp_(min=0.0)
        mean, variance = both.to(x.dtype).unbind()
        return cls(mesh, tuple(axes), tuple(dims), count, mean, variance)

    @classmethod
    def square(
        cls, x: Any, mesh: RankMesh, axes: Sequence[int], dims: Sequence[int], count: int
    ) -> Moments:
        """Returns the mean square of a local part `x`."""
        norm = torch.linalg.vector_norm(x.detach(), dim=tuple(dims), keepdim=True)
        square = all_reduce(norm.square_(), mesh, axes).div_(count)
        return cls(mesh, tuple(axes), tuple(dims), count, None, square)

    def factor(self, eps: float) -> Any:
        """Returns 1 / √(variance + eps)."""
        return torch.rsqrt(self.variance + eps)

    def factor_of(self, x: Any, eps: float) -> Any:
        """Returns `factor` of a mean square, differentiable: all ranks continue with one factor."""
        return _Factor.apply(x, self, eps)

    def normalise(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Returns x̂ · weight + bias, differentiable; both broadcast to x and may be None."""
        if self.mean is not None and self.dims == (0, *range(2, x.dim())):
            return _ByChannel.apply(x, weight, bias, self, eps)
        return _Normalised.apply(x, weight, bias, self, eps)

    def unit(self, x: Any, eps: float) -> Any:
        """Returns x̂ in a new tensor."""
        unit = x.clone() if self.mean is None else x - self.mean
        return unit.mul_(self.factor(eps))


class _Normalised(torch.autograd.Function):  # type: ignore[misc]
    """Any dimensions. Backward holds two tensors like x, one of which becomes its result."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, moments: Moments, eps: float) -> Any:
        ctx.moments, ctx.eps = moments, eps
        ctx.save_for_backward(x, weight)
        ctx.bias_shape = None if bias is None else bias.shape
        y = moments.unit(x, eps)
        if weight is not None:
            y.mul_(weight)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,), moments = gradients, ctx.moments
        x, weight = ctx.saved_tensors
        unit = moments.unit(x, ctx.eps)
        work = dy * unit
        dweight = work.sum_to_size(weight.shape) if ctx.needs_input_grad[1] else None
        dbias = dy.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[2] else None
        if weight is not None:
            work.mul_(weight)
        sums = [work.sum(moments.dims, keepdim=True)]
        g = dy if weight is None else torch.mul(dy, weight, out=work)
        if moments.mean is not None:
            sums.append(g.sum(moments.dims, keepdim=True))
        means = all_reduce(torch.stack(sums), moments.mesh, moments.axes).div_(-moments.count)
        dx = unit.mul_(means[0]).add_(g)
        if moments.mean is not None:
            dx.add_(means[1])
        return dx.mul_(moments.factor(ctx.eps)), dweight, dbias, None, None


class _ByChannel(torch.autograd.Function):  # type: ignore[misc]
    """All dimensions but 1, weight and bias by channel: torch's kernels for fixed moments."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, moments: Moments, eps: float) -> Any:
        ctx.moments, ctx.eps, ctx.of_channels = moments, eps, (1, -1, *[1] * (x.dim() - 2))
        ctx.save_for_backward(x, weight)
        given = (_flat(weight), _flat(bias), _flat(moments.mean), _flat(moments.variance))
        return torch.native_batch_norm(x, *given, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        moments = ctx.moments
        x, weight = ctx.saved_tensors
        mean, variance = _flat(moments.mean), _flat(moments.variance)
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            *(gradients[0], x, _flat(weight), mean, variance, None, None, False, ctx.eps),
            [True, True, True],
        )
        sums = torch.stack([dweight, dbias])
        by_unit, alone = all_reduce(sums, moments.mesh, moments.axes).div_(-moments.count)
        factor = _flat(moments.factor(ctx.eps))
        scale = factor if weight is None else factor * _flat(weight)
        slope = scale * factor * by_unit
        shift = scale * alone - slope * mean
        dx.addcmul_(x, slope.view(ctx.of_channels)).add_(shift.view(ctx.of_channels))
        wanted = ctx.needs_input_grad
        shaped = [
            g.view(ctx.of_channels) if w else None
            for g, w in zip((dweight, dbias), wanted[1:3], strict=True)
        ]
        return dx, *shaped, None, None


class _Factor(torch.autograd.Function):  # type: ignore[misc]
    """The factor of a mean square; its gradient is equal on every rank, so nothing is summed."""

    @staticmethod
    def forward(ctx: Any, x: Any, moments: Moments, eps: float) -> Any:
        ctx.count = moments.count
        factor = moments.factor(eps)
        ctx.save_for_backward(x, factor)
        return factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, factor = ctx.saved_tensors
        return x * (gradients[0] * factor**3 / -ctx.count), None, None


def _flat(values: Any) -> Any:
    return None if values is None else values.reshape(-1)
