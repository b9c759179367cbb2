"""The peak rates of this host's links: NVLink and PCIe by NVML, network cards by sysfs.

Only reads, never sets. An unknown peak is None, and then there is no verdict.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.measure.rank import Rank

SYSFS = Path("/sys/class")

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One way, after the line code; PCI-SIG's figures by generation."""


@dataclass(frozen=True)
class Link:
    """`kind` is `nvlink`, `pcie`, `loopback` or `network`; bytes per second one way."""

    kind: str
    peak_bytes_per_s: float
    source: str


def gpu_link(nvml: Any, handle: Any) -> Link | None:
    """Returns the fastest way out of a GPU: its active NVLinks together, else its PCIe slot."""
    return _nvlink(nvml, handle) or _pcie(nvml, handle)


def _nvlink(nvml: Any, handle: Any) -> Link | None:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                active += 1
        except nvml.NVMLError:
            break
    if not active:
        return None
    try:
        value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
        speed = float(value[0].value.uiVal) * 1e6
    except nvml.NVMLError:
        return None
    if speed <= 0:
        return None
    return Link("nvlink", active * speed, f"NVML: {active} NVLinks of {speed / 1e9:g} GB/s each")


def _pcie(nvml: Any, handle: Any) -> Link | None:
    try:
        generation = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        width = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except nvml.NVMLError:
        return None
    lane = PCIE_LANE_BYTES_PER_S.get(generation)
    if lane is None or not width:
        return None
    return Link("pcie", lane * width, f"NVML: PCIe generation {generation}, {width} lanes")


def network_link(sysfs: Path = SYSFS) -> Link | None:
    """Returns all active InfiniBand ports together, else the fastest card that has a device."""
    return _infiniband(sysfs) or _ethernet(sysfs)


def _infiniband(sysfs: Path) -> Link | None:
    total, ports = 0.0, 0
    for port in sorted(sysfs.glob("infiniband/*/ports/*")):
        rate = re.match(r"([0-9.]+) Gb/sec", _text(port / "rate"))
        if rate and "ACTIVE" in _text(port / "state"):
            total += float(rate[1]) * 1e9 / 8
            ports += 1
    if not ports:
        return None
    return Link("network", total, f"{ports} active InfiniBand ports")


def _ethernet(sysfs: Path) -> Link | None:
    cards = []
    for card in sorted(sysfs.glob("net/*")):
        # Bridges, veths and the loopback have no device, and their speeds mean nothing.
        if not (card / "device").exists() or _text(card / "operstate") != "up":
            continue
        speed = _text(card / "speed")
        if speed.isdecimal() and int(speed) > 0:
            cards.append((int(speed) * 1e6 / 8, card.name))
    if not cards:
        return None
    peak, name = max(cards)
    return Link("network", peak, f"network card {name}")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def known_links(rank: Rank, copied_bytes_per_s: float) -> dict[str, Link | None]:
    """Returns the known peaks inside this rank's node and between nodes; collective.

    A rank copies `copied_bytes_per_s` in memory, read and written.
    """
    between = network_link() if rank.world.nodes > 1 else None
    if not rank.on_gpu:
        # A message that stays on the host is copied: read and written, so half of what moves.
        source = "a large copy in memory, measured with all ranks at once"
        inside: Link | None = Link("loopback", copied_bytes_per_s / 2, source)
        if rank.world.nodes > 1 and len(set(rank.gather(platform.node()))) == 1:
            between = inside
    else:
        inside = _gpu_link_of(rank)
    return {"inside": inside, "between": between}


def _gpu_link_of(rank: Rank) -> Link | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        uuid = rank.torch.cuda.get_device_properties(rank.device).uuid
        return gpu_link(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode()))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
