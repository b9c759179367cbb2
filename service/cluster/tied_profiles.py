"""Ties a measured profile to the launch that reports it, and bounds it by a base profile.

Above the base's data sheet no device computes and no link carries: such a profile would make every
plan on it look faster than it can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from shardwise.errors import BadInput
from shardwise.hardware import Hardware, list_builtin, load_hardware
from shardwise.hardware.bandwidth import OPERATIONS, bus_factor
from shardwise.hardware.hardware import CollectiveTable

ABOVE_BASE = 2.0
"""How far above its base a measured profile may be: data sheets differ in clocks and sparsity."""

TINY_S = 1e-12

ABOVE_ALL = 4.0
"""The same above all built-in profiles, where no base is known."""


def check_profile(
    profile: Hardware, base: Hardware | None, request: Mapping[str, Any], kind: str
) -> None:
    """Raises BadInput with the field unless a launch of this request can have measured it.

    `base` is the profile of that name that bounds it: uploaded or built in, not measured.
    """
    if kind != "measure":
        raise BadInput(
            "a profile from a launch that runs a plan", field="schema", expected="a measurement"
        )
    if base is not None and not request.get("hardware"):
        raise BadInput(
            f"{profile.name[:80]!r} is another profile", field="name", expected="a name of its own"
        )
    agents = request["agents"]
    nodes = agents if isinstance(agents, int) else len(agents)
    most = nodes * int(request["ranks_per_agent"])
    if not profile.groups and profile.nodes is not None and profile.nodes * profile.per_node > most:
        raise BadInput(
            f"{profile.nodes} nodes of {profile.per_node} devices",
            field="devices",
            expected=f"at most the launch's {most} ranks",
        )
    factor, whose = (ABOVE_BASE, base.name) if base else (ABOVE_ALL, "the built-in profiles")
    of_flops, of_bytes = _peaks(base) if base else _highest()
    for field, figure, highest in _figures(profile, of_flops, of_bytes):
        if figure > factor * highest:
            raise BadInput(
                f"{figure:.3g} per second",
                field=field,
                expected=f"at most {factor * highest:.3g}, {factor:g} times that of {whose}",
            )


def _figures(
    profile: Hardware, of_flops: float, of_bytes: float
) -> Iterator[tuple[str, float, float]]:
    """Yields each rate of a profile: its field, its value, and the base's highest of that sort."""
    for i, device in enumerate(profile.devices):
        for dtype, flops in device.peak_flops_per_s.items():
            yield f"devices[{i}].peak_flops_per_s.{dtype}", flops, of_flops
        kernels = [(table.dtype, max(table.utilisation)) for table in device.products]
        kernels += [(table.dtype, max(table.utilisation)) for table in device.attention]
        for dtype, utilisation in kernels:
            yield f"devices[{i}].{dtype}.utilisation", device.peak(dtype) * utilisation, of_flops
        rate = device.memory_bandwidth_bytes_per_s
        yield f"devices[{i}].memory_bandwidth_bytes_per_s", rate, of_bytes
    for i, level in enumerate(profile.levels):
        yield f"levels[{i}].bandwidth_bytes_per_s", level.bandwidth_bytes_per_s, of_bytes
    for i, table in enumerate(profile.collectives):
        for size, time_s in zip(table.sizes_bytes, table.times_s, strict=True):
            yield f"collectives[{i}].times_s", _carried(table, size, time_s), of_bytes
    for i, calls in enumerate(profile.operators):
        for flops, time_s in zip(calls.flops, calls.times_s, strict=True):
            yield f"operators[{i}].times_s", flops / max(time_s, TINY_S), of_flops


def _carried(table: CollectiveTable, size: float, time_s: float) -> float:
    """Returns bytes per second on the slowest link, if the operation is a known one."""
    known = table.operation in OPERATIONS
    factor = bus_factor(table.operation, table.size) if known else 1.0
    return factor * size / max(time_s, TINY_S)


def _peaks(hardware: Hardware) -> tuple[float, float]:
    """Returns the most flops and the most bytes in a second, of any device or link."""
    devices = hardware.devices
    links = [level.bandwidth_bytes_per_s for level in hardware.levels]
    return (
        max(flops for device in devices for flops in device.peak_flops_per_s.values()),
        max([device.memory_bandwidth_bytes_per_s for device in devices] + links),
    )


@lru_cache(maxsize=1)
def _highest() -> tuple[float, float]:
    every = [_peaks(load_hardware(name)) for name in list_builtin()]
    return max(flops for flops, _ in every), max(rate for _, rate in every)
