"""Complex numbers, as rotary embeddings use them, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

from shardwise.tdl.describe import Call, no_flops, op, pointwise
from shardwise.tdl.descriptions.arguments import dims_of
from shardwise.tdl.descriptions.elementwise import broadcast
from shardwise.tdl.descriptions.movement import moved
from shardwise.tdl.language import NotCovered, TensorHandle, apply

op(
    *(
        f"aten.{name}.default"
        for name in (
            *("real", "imag", "conj", "_conj", "conj_physical", "_conj_physical"),
            *("resolve_conj", "resolve_neg", "_neg_view"),
        )
    ),
    category="view",
    saves=(),
    flops=no_flops,
)(broadcast)
op("aten.complex.default", category="elementwise", saves=("*",), flops=pointwise(1.0))(broadcast)
op("aten.polar.default", category="elementwise", saves=("output",), flops=pointwise(4.0))(broadcast)


@op(
    "aten.view_as_complex.default",
    "aten.view_as_complex_copy.default",
    category="view",
    saves=(),
    flops=no_flops,
)
def view_as_complex(self: TensorHandle) -> Callable[..., Any]:
    """y[…] = x[…, 0] + i x[…, 1]"""
    return lambda *i: apply(self[(*i, 0)], self[(*i, 1)])


@op(
    "aten.view_as_real.default",
    "aten.view_as_real_copy.default",
    category="view",
    saves=(),
    flops=no_flops,
)
def view_as_real(self: TensorHandle) -> Callable[..., Any]:
    """y[…, 0] = re x[…]; y[…, 1] = im x[…]"""
    return lambda *i: apply(self[i[:-1]])


def _fourier_flops(call: Call) -> tuple[float, float]:
    """5·N·log₂N real operations for every transform of N points (Cooley and Tukey)."""
    shape = call.shapes["self"]
    dims = dims_of(call.attributes.get("dim"), len(shape))
    length = prod(max(shape[d], call.outputs[0][d]) for d in dims)
    others = prod(size for d, size in enumerate(shape) if d not in dims)
    work = 5.0 * others * length * max(log2(length), 1.0)
    return work, work


@op(
    "aten._fft_r2c.default",
    *(f"aten.fft_{name}.default" for name in ("rfft", "ihfft")),
    category="light",
    saves=("self",),
    flops=_fourier_flops,
)
@op(
    "aten._fft_c2r.default",
    "aten._fft_c2c.default",
    *(f"aten.fft_{name}.default" for name in ("fft", "ifft", "irfft", "hfft")),
    category="light",
    saves=(),
    flops=_fourier_flops,
)
def transform(self: TensorHandle, *, dim: int | Sequence[int] = -1) -> Callable[..., Any]:
    """y[…, k] = transform(x[…, :])[k]: transformed dimensions are needed whole"""
    return moved(self, dims_of(dim, self.rank))


@op("aten.fft_rfftn.default", category="light", saves=("self",), flops=_fourier_flops)
@op(
    *(f"aten.fft_{name}.default" for name in ("fftn", "ifftn", "irfftn")),
    category="light",
    saves=(),
    flops=_fourier_flops,
)
def transform_of_several(
    self: TensorHandle, *, dim: Sequence[int] | None = None, s: Sequence[int] | None = None
) -> Callable[..., Any]:
    """y[…, k, l] = transform(x[…, :, :])[k, l]"""
    if dim is None and s is not None:
        dim = list(range(-len(s), 0))
    return transform(self, dim=dims_of(dim, self.rank))


@op("aten.fft_rfft2.default", category="light", saves=("self",), flops=_fourier_flops)
@op(
    *(f"aten.fft_{name}.default" for name in ("fft2", "ifft2", "irfft2")),
    category="light",
    saves=(),
    flops=_fourier_flops,
)
def transform_of_two(self: TensorHandle, *, dim: Sequence[int] = (-2, -1)) -> Callable[..., Any]:
    """y[…, k, l] = transform(x[…, :, :])[k, l]"""
    return transform(self, dim=list(dim))


@op(
    "aten.fft_fftshift.default",
    "aten.fft_ifftshift.default",
    category="light",
    saves=(),
    flops=no_flops,
)
def shift(self: TensorHandle, *, dim: int | Sequence[int] | None = None) -> Callable[..., Any]:
    """y[…, i] = x[…, (i - n/2) mod n]: shifted dimensions are needed whole"""
    return moved(self, dims_of(dim, self.rank))


@op(
    "aten.stft.default",
    "aten.stft.center",
    category="light",
    saves=("self", "window"),
    note="frames that are kept are not counted",
)
def short_time_transform(
    self: TensorHandle, window: TensorHandle | None = None
) -> Callable[..., Any]:
    """y[b, k, t] = transform(x[b, window at t])[k]: split along the batch alone"""
    if self.rank != 2:
        raise NotCovered("a short-time transform of one signal without a batch")
    return lambda *i: moved(self, [1])(i[0], i[1])
