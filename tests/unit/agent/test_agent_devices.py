"""Devices as NVML reports them, by a fake NVML: no GPU is here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agent.devices
from agent.slots import Slots


class NvmlError(Exception):
    """What pynvml raises."""


class FakeNvml:
    """Four devices: 0 and 1 linked directly, 2 behind a switch, 3 without links."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.open = 0
        self.running: dict[int, list[int]] = {1: [4242], 2: [77]}

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return b"NVIDIA Old" if handle == 3 else "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=2**30 * (handle + 1))

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0".encode())

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.running.get(handle, [])]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if handle == 3 or link > 5:
            raise NvmlError("not supported")
        return int(link < 2)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        bus = "00000000:99:00.0" if handle == 2 else f"00000000:{1 - handle:02X}:00.0"
        return SimpleNamespace(busId=bus)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        if handle == 3:
            raise NvmlError("not supported")
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 16


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    fake = FakeNvml()
    control = tmp_path / "nvidiactl"
    control.touch()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(agent.devices, "CONTROL", control)
    return fake


def test_devices_with_links_and_users(nvml: FakeNvml) -> None:
    devices = agent.devices.devices(own_pids={4242})
    assert [device["index"] for device in devices] == [0, 1, 2, 3]
    assert [device["kind"] for device in devices] == ["NVIDIA H200"] * 3 + ["NVIDIA Old"]
    assert [device["nvlink"] for device in devices] == [[1], [0], [0, 1, 3], []]
    assert [device["used_by_others"] for device in devices] == [False, False, True, False]
    assert devices[0]["pcie"] == {"generation": 5, "width": 16}
    assert "pcie" not in devices[3]
    assert devices[1]["memory_bytes"] == 2**31
    assert nvml.open == 0


def test_a_driver_that_fails_leaves_a_host_without_devices(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise NvmlError("driver not loaded")

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", fail)
    assert agent.devices.devices(set()) == []
    assert nvml.open == 0


def test_without_a_gpu_nvml_is_not_even_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(agent.devices, "CONTROL", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert agent.devices.devices(set()) == []


def test_slots_are_given_with_their_devices() -> None:
    slots = Slots(5, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    first = slots.take(2)
    assert slots.environment(first) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert slots.take(4) == []
    second = slots.take(3)
    # A slot beyond the devices computes without one.
    assert slots.environment(second) == {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-d"}
    assert slots.free == 0
    slots.give_back(first)
    assert slots.take(1) == [0]
    assert Slots(2, []).environment([0]) == {}
