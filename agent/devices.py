"""NVIDIA devices as NVML shows them: memory, NVLink and PCIe, who uses them. Reads, never sets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
CONTROL = Path("/dev/nvidiactl")
NVLINKS = 18
"""Most links of a device, of all kinds until Blackwell."""


def devices(own_pids: set[int]) -> list[dict[str, Any]]:
    """Returns one object per device; empty where there is no GPU, no driver or no NVML.

    `used_by_others`: a process that is not in `own_pids` computes there. In a container NVML may
    show no processes at all; the device then counts as unused.
    """
    if not CONTROL.exists():
        return []
    try:
        import pynvml
    except ModuleNotFoundError:
        log.warning("there is a GPU, but no nvidia-ml-py: it is not reported")
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.warning("NVML: %s", error)
        return []
    try:
        return _read(pynvml, own_pids)
    except pynvml.NVMLError as error:
        log.warning("NVML: %s", error)
        return []
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, own_pids: set[int]) -> list[dict[str, Any]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    by_bus = {_bus(nvml.nvmlDeviceGetPciInfo(handle)): i for i, handle in enumerate(handles)}
    return [_device(nvml, i, handle, by_bus, own_pids) for i, handle in enumerate(handles)]


def _device(
    nvml: Any, index: int, handle: Any, by_bus: dict[str, int], own_pids: set[int]
) -> dict[str, Any]:
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    document: dict[str, Any] = {
        "index": index,
        "kind": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "used_by_others": any(process.pid not in own_pids for process in running),
        "nvlink": _peers(nvml, handle, by_bus, index, len(by_bus)),
    }
    pcie = _asked(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
    width = _asked(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
    if pcie is not None and width is not None:
        document["pcie"] = {"generation": int(pcie), "width": int(width)}
    node = _numa_node(_bus(nvml.nvmlDeviceGetPciInfo(handle)))
    if node is not None:
        document["numa"] = node
    return document


def _peers(nvml: Any, handle: Any, by_bus: dict[str, int], own: int, count: int) -> list[int]:
    """Returns the devices at the other ends of the links; an NVSwitch makes all others peers."""
    peers: set[int] = set()
    for link in range(NVLINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            remote = _bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
        except nvml.NVMLError:
            continue
        if remote in by_bus:
            peers.add(by_bus[remote])
        else:
            peers.update(range(count))
    return sorted(peers - {own})


def _asked(nvml: Any, call: Any, handle: Any) -> Any:
    """Returns what NVML answers, or None if the device does not support the call."""
    try:
        return call(handle)
    except nvml.NVMLError:
        return None


def _bus(info: Any) -> str:
    return _text(info.busId).lower()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _numa_node(bus: str) -> int | None:
    # sysfs writes the domain with four digits, NVML with eight.
    domain, _, rest = bus.partition(":")
    path = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
