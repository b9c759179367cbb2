"""A row of the table of GPUs as a profile of its usual node.

The device's figures come from the row or, where a built-in profile has the same device, from there,
measured kernels included: no figure is in two places. So do links. What no data sheet says (which
fraction of a peak kernels and links reach, latencies, the host's time) is that of the profile which
the row names in `like`, and `sources` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwise.hardware.builtin import profile_of_file
from shardwise.hardware.device import Device
from shardwise.hardware.gpus import Gpu, pcie_of
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.levels import Level

PCIE = "pcie"
PLAIN_PCIE = "l4"
"""The profile whose latency, and fraction of the bandwidth that collectives reach, PCIe has."""

OF_DEVICE = (
    "compute_efficiency",
    "memory_efficiency",
    "kernel_latency_s",
    "compute_efficiency_by_dtype",
    "fast_convolution_saving",
    "host",
    "host_memory",
)
"""Sources that are about the device, besides those that begin with `devices.`."""

ASSUMED = ("compute_efficiency", "memory_efficiency", "kernel_latency_s", "host")
OF_BEST_PRODUCTS = 0.55 / (794.5 / 989.4)
"""Of what the fastest products of a GPU reach, those of training reach as much as on H100: 0.55 of
its peak (dgx-h100), where 794.5 of 989.4 TFLOPS is the most that any size was measured to reach
(Bekman, Machine Learning Engineering, maximum achievable matmul FLOPS)."""
WITHOUT_NVLINK = "assumed, as in l4: without NVLink collectives reach about half of PCIe"
NO_HOST = "left out: the maker's software compiles a graph, so that the host does not launch it"


def usual_profile(gpu: Gpu) -> Hardware:
    """Returns the profile of a GPU's usual node: the built-in one of the same device, or one with
    the row's figures.

    Measured collectives are those of the built-in profile, where the links are too.
    """
    donor = _profile(gpu.device or gpu.like or "")
    pattern = donor if gpu.links is None else _profile(gpu.links)
    count = gpu.per_node or pattern.per_node
    device = replace(donor.devices[0], count=count) if gpu.device else _device(gpu, donor, count)
    levels = _levels(gpu, pattern, count)
    same_links = gpu.device is not None and gpu.links is None
    sources = _device_sources(gpu, donor) | _link_sources(gpu, pattern, same_links)
    return Hardware(
        name=gpu.name,
        provenance=published(gpu),
        devices=(device,),
        levels=levels,
        collectives=donor.collectives if same_links else (),
        sources=sources,
        two_node_trees=pattern.two_node_trees,
        packing=donor.packing,
        host=donor.host if gpu.host else None,
        host_memory=donor.host_memory if gpu.device else None,
    )


def published(gpu: Gpu) -> str:
    """Returns where the figures of a GPU were published, as a provenance says it."""
    named = f"{gpu.source}, {gpu.date}"
    return f"data sheets ({named})" if gpu.data_sheet else named


def pcie_level(generation: int, size: int) -> Level:
    """Returns the innermost level of a node whose devices have only PCIe between them."""
    row = pcie_of(generation)
    bandwidth = row.bytes_per_s or _profile(row.like or "").levels[0].bandwidth_bytes_per_s
    usual = _profile(PLAIN_PCIE).levels[0]
    return replace(usual, size=size, bandwidth_bytes_per_s=bandwidth)


def pcie_sources(generation: int) -> dict[str, str]:
    """Returns the sources of `pcie_level`."""
    return {
        "levels.inside": pcie_of(generation).source,
        "levels.inside.efficiency": WITHOUT_NVLINK,
    }


def _profile(spec: str) -> Hardware:
    """Returns the built-in profile PROFILE, or the part PROFILE/GROUP of one with groups."""
    name, _, group = spec.partition("/")
    whole = profile_of_file(name)
    return whole.of_group(group) if group else whole


def _device(gpu: Gpu, like: Hardware, count: int) -> Device:
    usual = like.devices[0]
    return Device(
        kind=gpu.kind,
        count=count,
        memory_bytes=gpu.memory_bytes,
        peak_flops_per_s=dict(gpu.peak_flops_per_s),
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        compute_efficiency=_compute_efficiency(gpu) or usual.compute_efficiency,
        memory_efficiency=usual.memory_efficiency,
        kernel_latency_s=usual.kernel_latency_s,
    )


def _compute_efficiency(gpu: Gpu) -> float | None:
    """Returns the fraction of the 16-bit peak that training's matrix products reach, or None if the
    best products of the GPU were not measured."""
    if gpu.best_products_flops_per_s is None:
        return None
    reached = gpu.best_products_flops_per_s / gpu.peak_flops_per_s["bfloat16"]
    return round(OF_BEST_PRODUCTS * reached, 3)


def _levels(gpu: Gpu, pattern: Hardware, count: int) -> tuple[Level, ...]:
    """Returns the pattern's levels with the row's figures, for `count` devices in a node.

    The outermost level's bandwidth is per unit of the level below: a node, or a domain.
    """
    inner, *middle, outer = pattern.levels
    usual = inner.size * (middle[0].size if middle else 1)
    domain = (gpu.domain or usual) if middle else count
    network = outer.bandwidth_bytes_per_s / usual
    if gpu.network_gbit_per_s is not None:
        network = gpu.network_gbit_per_s * 1e9 / 8
    if gpu.fabric == PCIE and gpu.pcie is not None:
        inner = pcie_level(gpu.pcie, count)
    inside = gpu.inside_bytes_per_s or inner.bandwidth_bytes_per_s
    inner = replace(inner, size=count, bandwidth_bytes_per_s=inside)
    joined = [
        replace(level, size=domain // count, bandwidth_bytes_per_s=count * inside)
        for level in middle
    ]
    return (inner, *joined, replace(outer, bandwidth_bytes_per_s=domain * network))


def _device_sources(gpu: Gpu, donor: Hardware) -> dict[str, str]:
    if gpu.device:
        return {
            figure: source
            for figure, source in donor.sources.items()
            if figure.startswith("devices.") or figure in OF_DEVICE
        }
    sources = {
        figure: f"as in {donor.name}: {donor.sources[figure]}"
        for figure in ASSUMED
        if figure in donor.sources
    }
    if not gpu.host:
        sources["host"] = NO_HOST
    if gpu.best_products_flops_per_s is not None:
        sources["compute_efficiency"] = gpu.sources["products"]
    return sources | {
        "devices.peak_flops_per_s": gpu.sources["peak"],
        "devices.memory": gpu.sources["memory"],
    }


def _link_sources(gpu: Gpu, pattern: Hardware, same: bool) -> dict[str, str]:
    """Returns the sources of links; `same`: those of the device's own profile."""
    kept: Mapping[str, str] = {
        figure: source
        for figure, source in pattern.sources.items()
        if figure.startswith("levels.")
        or figure in ("devices", "two_node_trees")
        or (same and figure == "collectives")
    }
    sources = dict(kept) if same else {f: f"as in {pattern.name}: {s}" for f, s in kept.items()}
    if not same and gpu.fabric == PCIE and gpu.pcie is not None:
        sources |= pcie_sources(gpu.pcie)
    own = {f"levels.{word}": gpu.sources.get(word) for word in ("inside", "between", "torus")}
    return sources | {figure: source for figure, source in own.items() if source is not None}
