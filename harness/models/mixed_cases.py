"""Random small models on random clusters of two or three kinds of devices."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from harness.graph_builder import ADD, GraphBuilder
from shardwise.cost.options import Options
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, hardware_from_document

BATCHES = (8, 12, 16, 48, 64, 256, 1024)
WIDTHS = (64, 256, 512, 1024, 2048)
STATE = 4
"""Bytes of parameters, gradients and optimizer state, over those of parameters."""


@dataclass(frozen=True)
class MixedCase:
    """A question: a graph, a profile with groups, a bundle of its devices, and the options."""

    graph: Graph
    hardware: Hardware
    bundle: Devices
    options: Options


def mixed_case(seed: int) -> MixedCase:
    """Returns the case of a seed, always the same."""
    random = Random(seed)
    graph = _graph(random, seed)
    hardware = hardware_from_document(_cluster(random, _needed_bytes(graph)))
    counts = {
        group.name: random.choice((group.gpus, group.gpus, group.per_node))
        for group in hardware.groups
    }
    options = Options(micro_batches=random.choice(((1,), (1,), (1, 2))))
    return MixedCase(graph, hardware, Devices.of(hardware, counts), options)


def _graph(random: Random, seed: int) -> Graph:
    """Returns a chain of products, with activation functions and residual additions here and
    there."""
    builder = GraphBuilder(f"random-{seed}")
    width = random.choice(WIDTHS)
    data = builder.input("x", random.choice(BATCHES), width)
    for number in range(random.randint(2, 5)):
        entering = data
        wider = random.choice(WIDTHS)
        builder.parameter(f"w{number}", wider, width)
        data = builder.linear(f"product{number}", data, f"w{number}", f"h{number}")
        if random.random() < 0.6:
            data = builder.relu(f"relu{number}", data, f"a{number}")
        if random.random() < 0.5:
            builder.parameter(f"v{number}", width, wider)
            data = builder.linear(f"back{number}", data, f"v{number}", f"b{number}")
            data = builder.both(f"add{number}", ADD, data, entering, f"r{number}")
        else:
            width = wider
    return builder.graph()


def _needed_bytes(graph: Graph) -> float:
    """Returns about what a device needs that has all parameters and an eighth of the samples."""
    of_role = {"parameter": 0.0, "other": 0.0}
    for tensor in graph.tensors.values():
        of_role["parameter" if tensor.role == "parameter" else "other"] += tensor.size_bytes
    return STATE * of_role["parameter"] + of_role["other"] / 8


def _cluster(random: Random, needed_bytes: float) -> dict[str, Any]:
    names = ("fast", "middle", "slow")[: random.randint(2, 3)]
    peak = random.choice((1e12, 5e12, 2e13))
    room = random.choice((0.6, 1.0, 1.5, 4.0))
    devices, groups = [], []
    for name in names:
        memory = needed_bytes * room * random.choice((0.7, 1.0, 1.6))
        devices.append(
            {
                "kind": name.upper(),
                "memory_bytes": max(round(memory), 2**20),
                "peak_flops_per_s": {"float32": peak},
                "memory_bandwidth_bytes_per_s": peak / random.choice((10, 20, 40)),
                "compute_efficiency": 0.6,
                "memory_efficiency": 0.75,
                "kernel_latency_s": 5e-6,
                "count": 1,
            }
        )
        group: dict[str, Any] = {
            "name": name,
            "kind": name.upper(),
            "nodes": random.randint(1, 2),
            "per_node": random.choice((1, 2, 2, 4)),
        }
        if random.random() < 0.3:
            group["network"] = _link(random.choice((5e8, 5e9)), 1e-5)
        groups.append(group)
        peak /= random.choice((1.0, 1.3, 2.0, 3.0))
    return {
        "schema": "shardwise.hardware/1",
        "name": "random",
        "provenance": "drawn",
        "devices": devices,
        "levels": [
            {"name": "inside a node", "size": 4, **_link(random.choice((1e10, 1e11)), 5e-6)},
            {"name": "between nodes", "size": 6, **_link(random.choice((1e9, 1e10)), 1e-5)},
        ],
        "groups": groups,
        "sources": {},
    }


def _link(bandwidth: float, latency_s: float) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency_s, "efficiency": 1.0}
