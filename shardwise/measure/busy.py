"""Finds out whether another process uses a GPU (NVML); only reads, never sets anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardwise.errors import ShardwiseError

OVERRIDE = "--allow-busy measures anyway"


class DeviceBusy(ShardwiseError):
    """Another process is on a device that is to be measured."""

    exit_code = 1


def busy_gpus(count: int, environment: Mapping[str, str] = os.environ) -> str:
    """Returns who else uses the first `count` GPUs this process may see, or an empty string.

    Call it before this process uses a GPU. It does not start CUDA, which alone would put this
    process on the device. If NVML cannot tell, it returns the reason instead.
    """
    try:
        import pynvml
    except ImportError:
        return (
            "cannot tell whether others use the GPUs without NVML: pip install nvidia-ml-py "
            "(in shardwise[torch])"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML does not start: {error}"
    try:
        for number, handle in enumerate(_visible(pynvml, environment)[:count]):
            others = [
                process.pid
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                if process.pid != os.getpid()
            ]
            if others:
                return f"GPU {number} is used by " + ", ".join(f"process {p}" for p in others[:3])
    except pynvml.NVMLError as error:
        return f"NVML cannot tell who uses the GPUs: {error}"
    finally:
        pynvml.nvmlShutdown()
    return ""


def _visible(nvml: Any, environment: Mapping[str, str]) -> list[Any]:
    """Returns NVML's handles of the devices that CUDA shows, in CUDA's order."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    names = (
        [str(i) for i in range(nvml.nvmlDeviceGetCount())]
        if listed is None
        else [name.strip() for name in listed.split(",") if name.strip()]
    )
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name.encode())
        for name in names
    ]
