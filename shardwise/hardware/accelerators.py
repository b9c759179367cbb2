"""SkyPilot's names of accelerators, and the profiles that stand for them.

A profile is named by a built-in one's name, or by `gpu:NAME`: a node of a GPU of the table
(`gpus.py`) with as many of them as the instance has.
"""

from __future__ import annotations

from functools import cache

from shardwise.errors import BadInput
from shardwise.hardware.gpus import find_gpu
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.new_profile import new_profile
from shardwise.hardware.profiles import load_hardware

OF_GPU = "gpu:"
"""What comes before the name of a GPU of the table."""

BUILT_IN = {
    "V100": "dgx-v100-16gb",
    "V100-32GB": "dgx1-v100-32gb",
    "K80": "p2.8xlarge",
    "A100": "dgx-a100-40gb",
    "A100-80GB": "dgx-a100-80gb",
    "H100": "dgx-h100",
    "H200": "h200-8",
    "B200": "b200-8",
    "L4": "l4",
}
"""The built-in profiles of names; SkyPilot's A100 has 40 GB."""

SAME = {
    "A100-80GB-SXM": "A100-80GB",
    "H100-SXM": "H100",
    "H100-NVLINK": "H100",
    "H100-MEGA": "H100",
    "H200-SXM": "H200",
    "RTXPRO6000S": "RTX-PRO-6000",
    "RTXPRO6000": "RTX-PRO-6000",
    "RTXPRO6000WS": "RTX-PRO-6000-WS",
}
"""Names of the catalog for what another name says too."""

LARGE_A100 = 60 * 2**30
"""Bytes between the memory of the two kinds of A100."""

TOLERANCE = 0.15
"""How far the memory that a catalog says may be from a profile's, which is often rounded."""


def profile_name(accelerator: str, count: int, memory_bytes: float | None = None) -> str | None:
    """Returns the profile that stands for `count` accelerators in a node: a built-in name, or
    `gpu:NAME`.

    None where none does: an unknown name, more devices than the GPU's links join, or a device whose
    memory, which is `memory_bytes` where the catalog says so, is far from the profile's.
    """
    name = SAME.get(accelerator, accelerator)
    if name == "A100" and memory_bytes is not None and memory_bytes > LARGE_A100:
        name = "A100-80GB"
    spec = BUILT_IN.get(name) or _of_table(name)
    has = None if spec is None else _memory_bytes(spec, count)
    if has is None:
        return None
    far = memory_bytes is not None and abs(memory_bytes / has - 1) > TOLERANCE
    return None if far else spec


def offered_profile(spec: str, per_node: int) -> Hardware:
    """Returns the profile of nodes with `per_node` devices.

    `spec` is what `--hardware` takes, or `gpu:NAME`. Raises `BadInput` for an unknown profile or
    GPU, and for more devices than the GPU's links join.
    """
    if spec.startswith(OF_GPU):
        return new_profile(spec.removeprefix(OF_GPU), per_node=per_node)
    hardware = load_hardware(spec)
    if hardware.per_node == per_node:
        return hardware
    return hardware.with_devices_per_node(per_node)


@cache
def _memory_bytes(spec: str, count: int) -> float | None:
    try:
        return offered_profile(spec, count).devices[0].memory_bytes
    except BadInput:
        return None


@cache
def _of_table(name: str) -> str | None:
    try:
        return OF_GPU + find_gpu(name).name
    except BadInput:
        return None
