"""Profiles of several kinds of devices for tests, and searches on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.answers import Options
from shardwise.cost.options import quiet
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware, hardware_from_document
from shardwise.search.mixed.search import MixedDraft, MixedSearch
from shardwise.search.search import Subject

FAST: Mapping[str, float] = {"memory": 16.0, "flops": 14e12, "bandwidth": 900e9}
SLOW: Mapping[str, float] = {"memory": 11.0, "flops": 6e12, "bandwidth": 450e9}


def device(kind: str, figures: Mapping[str, float]) -> dict[str, Any]:
    """Returns the file form of a device with this memory (GiB) and these flops and bytes a
    second."""
    return {
        "kind": kind,
        "count": 1,
        "memory_bytes": figures["memory"] * 2**30,
        "peak_flops_per_s": {"float32": figures["flops"]},
        "memory_bandwidth_bytes_per_s": figures["bandwidth"],
        "compute_efficiency": 0.6,
        "memory_efficiency": 0.8,
        "kernel_latency_s": 5e-6,
    }


def profile(
    groups: Sequence[tuple[str, str, int, int]],
    kinds: Mapping[str, Mapping[str, float]],
    *,
    inside: float = 10e9,
    network: float = 2e9,
    latency_s: float = 2e-5,
) -> Hardware:
    """Returns a profile of groups (name, kind, nodes, devices of a node)."""
    levels = [("inside a node", inside, 1e-5), ("between nodes", network, latency_s)]
    return hardware_from_document(
        {
            "schema": "shardwise.hardware/1",
            "name": "several kinds",
            "provenance": "made for tests",
            "devices": [device(kind, figures) for kind, figures in kinds.items()],
            "levels": [
                {
                    "name": name,
                    "size": 1,
                    "bandwidth_bytes_per_s": bandwidth,
                    "latency_s": latency,
                    "efficiency": 1.0,
                }
                for name, bandwidth, latency in levels
            ],
            "groups": [
                {"name": name, "kind": kind, "nodes": nodes, "per_node": per_node}
                for name, kind, nodes, per_node in groups
            ],
        }
    )


def everything(hardware: Hardware) -> Devices:
    """Returns all devices of a profile."""
    return Devices.of(hardware, {group.name: group.gpus for group in hardware.groups})


def mixed_search(
    graph: Graph, hardware: Hardware, options: Options, micro_batches: int = 1
) -> MixedSearch:
    """Returns the search of a graph on all devices of a profile, without points."""
    subject, bundle = Subject.of(graph), everything(hardware)
    draft = MixedDraft.of(subject, hardware, bundle, options, quiet, micro_batches)
    return draft.joined(quiet)


def every_strategy(search: MixedSearch) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns all strategies: choices and alternatives."""
    problem = search.problem
    choices, edges = [], []
    for choice in product(*(range(len(cost.time_s)) for cost in problem.costs)):
        counts = [
            int(edge.table.count[edge.table.cell(choice[edge.source], choice[edge.target])])
            for edge in problem.edges
        ]
        for alternatives in product(*map(range, counts)):
            choices.append(choice)
            edges.append(alternatives)
    count = len(choices)
    return (
        np.array(choices, dtype=np.uint32),
        np.array(edges, dtype=np.uint32).reshape(count, len(problem.edges)),
    )
