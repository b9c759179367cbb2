"""Interpolation: each output element reads neighbouring input elements, at another stride.

The input is positional, because torch calls it `self` in one overload and `input` in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shardwise.tdl.describe import op, pointwise
from shardwise.tdl.descriptions.movement import first_dims
from shardwise.tdl.language import Opaque, TensorHandle, apply

Places = Callable[[Any, int, int], Sequence[Any]]
"""The input elements that output element i reads, for the extents of both."""


def _resampled(
    data: TensorHandle, out: tuple[int, ...], scales: Sequence[Any], places: Places
) -> Callable[..., Any]:
    count = data.rank - 2
    given = list(scales) + [None] * (count - len(scales))
    pairs = list(zip(data.shape[2:], out[2:], given, strict=True))
    # A given factor that is not the ratio of the extents moves elements differently.
    odd = any(f not in (None, 0) and float(f) * n != float(m) for n, m, f in pairs)
    copy = Opaque()

    def output(*i: Any) -> Any:
        if odd:
            return copy(first_dims(data, i[:2]))
        read = [places(x, n, m) for x, (n, m, _) in zip(i[2:], pairs, strict=True)]
        low = tuple(p[0] for p in read)
        high = tuple(p[-1] for p in read)
        return apply(data[(*i[:2], *low)], data[(*i[:2], *high)])

    return output


def _factors(
    scale_factors: Sequence[float] | None, single: Sequence[float | None]
) -> Sequence[float | None]:
    return scale_factors if scale_factors is not None else single


def _nearest(i: Any, n: int, m: int) -> Sequence[Any]:
    if n == m:
        return (i,)
    return (i // (m // n),) if m % n == 0 else (i * n // m,)


def _nearest_exact(i: Any, n: int, m: int) -> Sequence[Any]:
    if n == m or m % n == 0:
        return _nearest(i, n, m)
    return ((i * (2 * n) + n) // (2 * m),)


def _between(i: Any, n: int, m: int, aligned: bool, reach: int) -> Sequence[Any]:
    """Elements on both sides of ((2i + 1)·n - m) / 2m, or of i·(n - 1)/(m - 1)."""
    if n == m:
        return (i,)
    first = i * (n - 1) // max(m - 1, 1) if aligned else (i * (2 * n) + (n - m)) // (2 * m)
    return (first - (reach - 1), first + reach)


def _kinds(name: str) -> tuple[str, str]:
    return f"aten.{name}.default", f"aten.{name}.vec"


@op(
    *(kind for n in (1, 2, 3) for kind in _kinds(f"upsample_nearest{n}d")),
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def upsample_nearest(
    *data: TensorHandle,
    out: tuple[int, ...],
    scale_factors: Sequence[float] | None = None,
    scales: float | None = None,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Callable[..., Any]:
    """y[…, x] = data[…, ⌊x · n / m⌋]"""
    single = [s for s in (scales, scales_d, scales_h, scales_w) if s is not None]
    return _resampled(data[0], out, _factors(scale_factors, single), _nearest)


@op(
    *(kind for n in (1, 2, 3) for kind in _kinds(f"_upsample_nearest_exact{n}d")),
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def upsample_nearest_exact(
    *data: TensorHandle, out: tuple[int, ...], scale_factors: Sequence[float] | None = None
) -> Callable[..., Any]:
    """y[…, x] = data[…, ⌊(x + 1/2) · n / m⌋]"""
    return _resampled(data[0], out, scale_factors or (), _nearest_exact)


@op(
    *_kinds("upsample_linear1d"),
    *_kinds("upsample_bilinear2d"),
    *_kinds("upsample_trilinear3d"),
    category="light",
    saves=(),
    flops=pointwise(8.0),
)
def upsample_linear(
    *data: TensorHandle,
    out: tuple[int, ...],
    align_corners: bool = False,
    scale_factors: Sequence[float] | None = None,
) -> Callable[..., Any]:
    """y[…, x] = mix of data[…, p] and data[…, p + 1], p = ⌊(x + 1/2) · n / m - 1/2⌋"""
    places = partial(_between, aligned=align_corners, reach=1)
    return _resampled(data[0], out, scale_factors or (), places)


@op(*_kinds("upsample_bicubic2d"), category="light", saves=(), flops=pointwise(40.0))
def upsample_bicubic(
    *data: TensorHandle,
    out: tuple[int, ...],
    align_corners: bool = False,
    scale_factors: Sequence[float] | None = None,
) -> Callable[..., Any]:
    """y[…, x] = mix of data[…, p - 1] to data[…, p + 2]"""
    places = partial(_between, aligned=align_corners, reach=2)
    return _resampled(data[0], out, scale_factors or (), places)


@op(
    *_kinds("_upsample_bilinear2d_aa"),
    *_kinds("_upsample_bicubic2d_aa"),
    category="light",
    saves=(),
    flops=pointwise(16.0),
)
def upsample_antialiased(*data: TensorHandle) -> Callable[..., Any]:
    """y[b, c, …] = resample(x[b, c, :, :]): how far it reads depends on the factor"""
    copy = Opaque()
    return lambda *i: copy(first_dims(data[0], i[:2]))


@op(
    "aten.grid_sampler.default",
    "aten.grid_sampler_2d.default",
    "aten.grid_sampler_3d.default",
    category="light",
    saves=("input", "grid"),
    flops=pointwise(8.0),
)
def grid_sampler(input: TensorHandle, grid: TensorHandle) -> Callable[..., Any]:
    """y[b, c, x] = x[b, c, :] at grid[b, x]"""
    pick = Opaque()
    return lambda *i: pick(first_dims(input, i[:2]), grid[(i[0], *i[2:], slice(None))])


@op(
    "aten.affine_grid_generator.default",
    category="light",
    saves=(),
    flops=pointwise(6.0),
)
def affine_grid_generator(theta: TensorHandle) -> Callable[..., Any]:
    """y[b, …, k] = Σ_c theta[b, k, c] · place[c]"""
    return lambda *i: apply(theta[i[0], i[-1], :])
