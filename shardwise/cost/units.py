"""Checks that devices have units for the requested precision."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.cost.options import Options
from shardwise.cost.rounded_work import has_units
from shardwise.cost.step_settings import CPU
from shardwise.errors import BadInput
from shardwise.hardware import Device
from shardwise.sharding.recipes import RECIPES


def is_cpu(device: Device, options: Options) -> bool:
    """Returns whether a step is on CPUs, where recipes are run and not sped up."""
    return options.step.device == CPU or device.kind.lower().startswith("cpu")


def require_units(devices: Sequence[Device], options: Options) -> None:
    """Raises `BadInput` if a device has no units for the recipes of the options and pins, naming
    those that it has."""
    pinned = {value for pin in options.pins if pin.key == "precision" for value in pin.values}
    asked = [RECIPES[name] for name in sorted({options.precision, *pinned} & RECIPES.keys())]
    for device in devices:
        missing = [recipe for recipe in asked if not has_units(device, recipe)]
        if not missing or is_cpu(device, options):
            continue
        others = [r.name for n, r in RECIPES.items() if n == r.name and has_units(device, r)]
        narrow = ("bfloat16", "bf16"), ("float16", "fp16")
        others += [name for dtype, name in narrow if dtype in device.peak_flops_per_s]
        raise BadInput(
            f"{device.kind} has no units for {missing[0].name}",
            field="precision",
            expected=f"what it computes in: {', '.join(others) or 'captured'}",
        )
