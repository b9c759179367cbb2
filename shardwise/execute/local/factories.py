"""Operators without inputs: made in their local shape, or whole and then cut."""

from __future__ import annotations

from typing import Any

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.random_numbers import RANDOM, seeded
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share


@form("full.default", "ones.default", "zeros.default", "empty.memory_format")
def constant(share: Share) -> Run:
    """Makes a constant of the local shape."""
    return _factory(share, {"size": list(share.output_shape())})


@form("scalar_tensor.default")
def scalar(share: Share) -> Run:
    """Makes one number on the rank's device."""
    return _factory(share, {})


@form(
    *(f"arange.{form}" for form in ("default", "start", "start_step")),
    *(f"{name}.default" for name in ("range", "rand", "randn", "eye", "linspace", "logspace")),
    *(f"{name}.default" for name in ("randint", "tril_indices", "triu_indices")),
    *(f"{name}_window.default" for name in ("hann", "hamming", "blackman", "bartlett")),
    *("range.step", "randint.low", "eye.m", "hann_window.periodic", "normal.float_float"),
    *("fft_fftfreq.default", "fft_rfftfreq.default"),
)
def whole_then_cut(share: Share) -> Run:
    """Makes the whole tensor, which costs no communication, and cuts it to the local rows."""
    cuts = [
        (dim, share.output_rows(0, dim))
        for dim in range(len(share.outputs[0].shape))
        if share.output_axes(0, dim)
    ]
    make = _factory(share, {})
    if share.op.kind in RANDOM:
        make = seeded(share, make, ())

    def run() -> list[Any]:
        (x,) = make()
        for dim, rows in cuts:
            x = x.narrow(dim, rows.start, len(rows))
        return [x.contiguous() if cuts else x]

    return run


def _factory(share: Share, changed: dict[str, Any]) -> Run:
    device = share.silent.device
    where = {"device": device} if "device" in share.attributes and device is not None else {}
    attributes = {**share.attributes, **changed, **where}
    return bind(share.target, share.arguments, attributes, len(share.outputs))
