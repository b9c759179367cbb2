"""Random clusters of several kinds of devices, for training and evaluation of a policy.

A cluster has 2 to 5 groups of different kinds, as data sheets give them, on one or two nodes each;
its network is drawn, from gigabit Ethernet to InfiniBand. All groups have as many devices in a node
as the first, times a power of two, so that blocks are not smaller than a node's share.
"""

from __future__ import annotations

import numpy as np

from shardwise.hardware import Devices, Hardware, hardware_from_document
from shardwise.hardware.hardware import SCHEMA

MOST_BLOCKS = 6
"""Blocks of a cluster; more only lengthen training."""
FEWEST_GROUPS, MOST_GROUPS = 2, 5
LATENCY_S = 1.2e-5

KINDS: tuple[tuple[str, float, float, float, float], ...] = (
    ("P100-12GB", 12, 9.3, 9.3, 549),
    ("GTX-1080Ti", 11, 11.3, 11.3, 484),
    ("V100-16GB", 16, 15.7, 125, 900),
    ("V100-32GB", 32, 15.7, 125, 900),
    ("T4-16GB", 16, 8.1, 65, 320),
    ("RTX-3090", 24, 35.6, 71, 936),
    ("A10-24GB", 24, 31.2, 125, 600),
    ("L4-24GB", 24, 30.3, 121, 300),
    ("A100-40GB", 40, 19.5, 312, 1555),
    ("A100-80GB", 80, 19.5, 312, 2039),
    ("L40S-48GB", 48, 91.6, 362, 864),
    ("H100-80GB", 80, 67, 989, 3350),
)
"""Kind, GiB, TFLOP/s in float32 and in bfloat16 with float32 sums, GB/s: from data sheets."""


def random_cluster(draw: np.random.Generator) -> tuple[Hardware, Devices]:
    """Returns a profile with groups, and the bundle of all its devices."""
    count = int(draw.integers(FEWEST_GROUPS, MOST_GROUPS + 1))
    chosen = [KINDS[i] for i in sorted(draw.choice(len(KINDS), count, replace=False).tolist())]
    size = int(draw.choice([1, 2]))
    network = float(draw.choice([1.25e9, 3.1e9, 6.25e9, 12.5e9, 25e9]))
    groups, blocks = [], 0
    for place, (kind, *_) in enumerate(chosen):
        left = MOST_BLOCKS - blocks - (count - place - 1)
        shapes = [(nodes, parts) for nodes in (1, 2) for parts in (1, 2) if nodes * parts <= left]
        nodes, parts = shapes[int(draw.integers(len(shapes)))]
        blocks += nodes * parts
        groups.append(
            {
                "name": kind.lower(),
                "kind": kind,
                "nodes": nodes,
                "per_node": parts * size,
                "inside": _link(float(draw.choice([1e10, 2.5e10, 1.5e11]))),
                "network": _link(network * float(draw.choice([0.5, 1.0, 1.0]))),
            }
        )
    document = {
        "schema": SCHEMA,
        "name": "random",
        "provenance": "drawn for the training of a policy",
        "devices": [_device(*one) for one in chosen],
        "levels": [
            {"name": "inside a node", "size": size, **_link(1e10)},
            {"name": "between nodes", "size": blocks, **_link(network)},
        ],
        "groups": groups,
        "sources": {},
    }
    hardware = hardware_from_document(document)
    return hardware, Devices.of(hardware, {group.name: group.gpus for group in hardware.groups})


def _link(bandwidth: float) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": bandwidth, "latency_s": LATENCY_S, "efficiency": 1.0}


def _device(
    kind: str, memory_gib: float, float32: float, bfloat16: float, bandwidth: float
) -> dict[str, object]:
    return {
        "kind": kind,
        "memory_bytes": memory_gib * 2**30,
        "peak_flops_per_s": {"float32": float32 * 1e12, "bfloat16": bfloat16 * 1e12},
        "memory_bandwidth_bytes_per_s": bandwidth * 1e9,
        "compute_efficiency": 0.6,
        "memory_efficiency": 0.75,
        "kernel_latency_s": 5e-6,
        "count": 1,
    }
