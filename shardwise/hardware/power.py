"""Power limits: what GPUs still do where less power than their data sheets have is allowed.

A limit (`nvidia-smi -pl 500`) lowers the clocks of what would take more. How fast products that
keep the arithmetic units busy still are, as a share of what they are at the full power, is one law
for all GPUs: the median of what training of BERT measured on a V100 (250 W), an A40 (300 W) and an
RTX 6000 (260 W), at limits down to 100 W (Zeus, NSDI 2023, `summary_power_*.csv` of its artifact;
SQuAD and Sentiment140, the largest batch of each; linear between the limits that were tried).

    limit / full power     0.4    0.5    0.6    0.7    0.8    0.9    1
    throughput             0.427  0.622  0.761  0.885  0.936  0.977  1
    least                  0.343  0.537  0.742  0.845  0.906  0.945  1
    most                   0.533  0.695  0.833  0.920  0.966  0.996  1

From 0.6 on one GPU is predicted by the two others within 10 %, below within 33 %. H100 at 500 W of
700 W is a check that the law did not see: 0.892, where the clocks that published steps were fitted
with have 0.60 / 0.70 = 0.857 (`Device.sustained_clock`). Whole steps were measured, of which what
waits for memory hardly slows: products alone lose somewhat more than the law says.

Products slow in full from a utilisation of one half, and less below (`products.py`); without
measured products all that computes does. What waits for memory draws less power than the limit and
keeps its speed; links and the host do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware.device import Device
from shardwise.hardware.gpu_profile import usual_profile
from shardwise.hardware.gpus import Gpu, find_gpu, gpu_table
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.watts import FIELD

SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Limits over the full power."""
KEPT = (0.427, 0.622, 0.761, 0.885, 0.936, 0.977, 1.0)
"""The throughput of busy products at each."""
LAW = "median of power caps measured on V100, A40 and RTX 6000 (docs/hardware.md)"

OTHER_PARTS = ("V100-SXM3-32GB",)
"""Kinds that are found by the name of a part with less power."""


@dataclass(frozen=True)
class Range:
    """What one device may be limited to, in watts.

    `full_w` is its data sheet's power, `now_w` that of the profile's figures, `least_w` the least
    that its driver, or the law, knows.
    """

    full_w: float
    now_w: float
    least_w: float


def kept(share: float) -> float:
    """Returns the throughput of busy products at a share of the full power, of `SHARES`."""
    return float(np.interp(share, SHARES, KEPT))


def power_range(device: Device) -> Range | None:
    """Returns what a device may be limited to; None where its power is not known."""
    gpu = _gpu(device.kind)
    if gpu is None or gpu.power is None:
        return None
    power = gpu.power
    now = device.power_limit_w or power.profile_w or power.full_w
    return Range(power.full_w, now, max(power.least_w or 0.0, SHARES[0] * power.full_w))


def limited(device: Device, limit_w: float) -> Device:
    """Returns the device at a power limit: itself where its figures are at this power.

    Raises `BadInput` where its power is not known, for more power than the figures are at, and for
    less than the device, or the law, goes down to.
    """
    power = power_range(device)
    if power is None:
        raise BadInput(
            f"the power of {device.kind} is not known",
            field=FIELD,
            expected=f"no limit, or one of {', '.join(_known())}",
        )
    if not power.least_w <= limit_w <= power.now_w:
        raise BadInput(
            f"{limit_w:g} W is {_why_not(power, limit_w)} ({device.kind})",
            field=FIELD,
            expected=f"{power.least_w:g}W to {power.now_w:g}W",
        )
    if limit_w == power.now_w:
        return device
    factor = kept(limit_w / power.full_w) / kept(power.now_w / power.full_w)
    return replace(
        device,
        sustained_clock=device.sustained_clock * factor,
        compute_efficiency=device.compute_efficiency * factor,
        compute_efficiency_by_dtype={
            dtype: share * factor for dtype, share in device.compute_efficiency_by_dtype.items()
        },
        power_limit_w=limit_w,
    )


def at_limit(hardware: Hardware, limit_w: float | None) -> Device:
    """Returns the first kind of device of a profile at a power limit, None for no limit.

    Raises `BadInput` as `limited` does, and for a profile whose operators were measured: they are
    as fast as the power allowed at which they were.
    """
    if limit_w is None:
        return hardware.devices[0]
    _require_not_measured(hardware)
    return limited(hardware.devices[0], limit_w)


def with_power_limit(hardware: Hardware, limit_w: float) -> Hardware:
    """Returns the profile with all devices at a power limit. Raises `BadInput` as `at_limit`."""
    _require_not_measured(hardware)
    devices = tuple(limited(device, limit_w) for device in hardware.devices)
    full = "; ".join(dict.fromkeys(_source(device) for device in devices))
    keep = f"busy products keep {_shares(devices)} of their speed, {LAW}"
    said = f"given: --power-limit {limit_w:g}W; {keep}; {full}"
    return replace(
        hardware,
        name=f"{hardware.name}[{limit_w:g}W]",
        provenance=f"{hardware.provenance}; GPUs limited to {limit_w:g} W",
        devices=devices,
        sources={**hardware.sources, "devices.power_limit_w": said},
    )


def power_note(devices: Sequence[Device], limit_w: float | None) -> str | None:
    """Returns a sentence on what a power limit does to devices; None where it does nothing."""
    if limit_w is None:
        return None
    slower = [device for device in devices if limited(device, limit_w) is not device]
    if not slower:
        return None
    at = [limited(device, limit_w) for device in slower]
    return (
        f"at {limit_w:g} W busy products keep {_shares(at)} of their speed at full power: {LAW}, "
        "not measured on these GPUs"
    )


def _shares(devices: Sequence[Device]) -> str:
    """Returns which share of their speed at full power limited devices keep, in words."""
    parts = []
    for device in devices:
        power = power_range(device)
        if power is not None:
            parts.append(f"{kept(power.now_w / power.full_w):.0%} ({device.kind})")
    return ", ".join(dict.fromkeys(parts))


def _source(device: Device) -> str:
    """Returns where a device's power was published."""
    gpu = _gpu(device.kind)
    return "" if gpu is None or gpu.power is None else gpu.power.source


def _why_not(power: Range, limit_w: float) -> str:
    """Returns what is wrong with a limit outside the range, in words."""
    if limit_w > power.now_w:
        return f"more than the {power.now_w:g} W that the figures are at"
    if power.least_w > SHARES[0] * power.full_w:
        return f"less than the {power.least_w:g} W that the driver takes"
    return f"below {SHARES[0]:.0%} of its {power.full_w:g} W, where nothing was measured"


def _require_not_measured(hardware: Hardware) -> None:
    if hardware.operators:
        raise BadInput(
            f"operators of {hardware.name} were measured, at the power that the machine had",
            field=FIELD,
            expected="no limit, or a profile measured at this limit",
        )


@cache
def _gpu(kind: str) -> Gpu | None:
    """Returns the row of the table that a kind of device is of; None if none is."""
    if kind in (known := _by_kind()):
        return known[kind]
    if kind in OTHER_PARTS:
        return None
    try:
        return find_gpu(kind)
    except BadInput:
        return None


@cache
def _by_kind() -> dict[str, Gpu]:
    return {usual_profile(gpu).devices[0].kind: gpu for gpu in gpu_table()}


def _known() -> list[str]:
    return [gpu.name for gpu in gpu_table() if gpu.power is not None]
