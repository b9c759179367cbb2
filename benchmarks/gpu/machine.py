"""Which device this is, and its power and clocks while parts run (NVML, where it is there)."""

from __future__ import annotations

import threading
from contextlib import suppress
from statistics import median
from time import time

from shardwise.measure.busy import busy_gpus
from shardwise.measure.device import cpu_kind, total_memory

from .parts import Row, Work

PERIOD_S = 0.25
POWER_CAP = 0x4
"""NVML's reason for lower clocks: the power limit."""


def describe(device: str, work: Work) -> None:
    """Tells the device's name, memory and dtype, and the versions of what runs on it."""
    import torch

    row: Row = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "dtype": "float32"}
    if device == "cpu":
        row |= {"name": cpu_kind(torch.get_num_threads()), "memory_bytes": total_memory()}
    else:
        row["used by others"] = busy_gpus(1) or "no"
        found = torch.cuda.get_device_properties(0)
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        row["dtype"] = "bfloat16" if native else "float16"
        row |= {"name": found.name, "memory_bytes": float(found.total_memory)}
        row |= {"multiprocessors": found.multi_processor_count, "uuid": str(found.uuid)}
    work.tell("machine", row)


class Sampler:
    """Samples a GPU in a thread; without NVML there are no samples and no facts."""

    def __init__(self, uuid: str | None) -> None:
        self.facts: Row = {}
        self._samples: list[tuple[float, Row]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power and clocks", daemon=True)
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            self._nvml, self._handle = pynvml, handle
            self._take()
            highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
            self.facts = {
                "driver": str(pynvml.nvmlSystemGetDriverVersion()),
                "power limit": f"{pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3:.0f} W",
                "highest clock": f"{highest} MHz",
            }
        # ImportError, or any NVMLError: no NVML, no such GPU, or not allowed, as under MIG.
        except Exception as error:
            self.facts["NVML"] = f"{type(error).__name__}: {error}"
            return
        self._thread.start()

    def stop(self) -> None:
        """Takes no more samples."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def during(self, began: float, ended: float) -> Row:
        """Returns medians and extremes between two times; empty without samples."""
        found = [row for at, row in self._samples if began <= at <= ended]
        if not found:
            return {}
        watts, clocks, degrees, capped = (
            [row[name] for row in found] for name in ("W", "MHz", "°C", "capped")
        )
        return {
            "W": median(watts),
            "most W": max(watts),
            "MHz": median(clocks),
            "least MHz": min(clocks),
            "most °C": max(degrees),
            "power-limited share": sum(capped) / len(found),
        }

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            with suppress(self._nvml.NVMLError):
                self._take()

    def _take(self) -> None:
        nvml, handle = self._nvml, self._handle
        row = {
            "W": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "MHz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "°C": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "capped": bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & POWER_CAP),
        }
        self._samples.append((time(), row))
