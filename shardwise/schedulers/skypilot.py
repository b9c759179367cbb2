"""SkyPilot: the resources of a task, as YAML that is JSON too.

`num_nodes` is one number for a whole task, so the candidates are the counts with as many nodes as
the best one, fastest first (`ordered`: SkyPilot takes the first that it can get). Clouds sell
instances of 1, 2, 4, 8 or 16 GPUs, so no other number of a node's GPUs is asked for.
"""

from __future__ import annotations

from typing import Any

from shardwise.schedulers.counts import Count, Counts
from shardwise.schedulers.kueue import resource_name

SOLD = (1, 2, 4, 8, 16)
"""GPUs of the instances that clouds have."""


def skypilot(counts: Counts, efficiency: float = 0.0) -> dict[str, Any]:
    """Returns a task without commands: its name, nodes and accelerators."""
    sold = counts.on_nodes_of(SOLD)
    best = sold.best(efficiency)
    return {
        "name": resource_name(counts.name),
        "num_nodes": best.nodes,
        "resources": resources(counts.gpu_type, candidates(sold, best)),
    }


def candidates(counts: Counts, best: Count) -> list[Count]:
    """Returns the best count, then smaller ones on as many nodes, fastest first."""
    fewer = [c for c in counts.counts if c.nodes == best.nodes and c.gpus < best.gpus]
    return [best, *sorted(fewer, key=lambda c: (c.step_s, c.gpus))]


def resources(gpu_type: str, counts: list[Count]) -> dict[str, Any]:
    """Returns the `resources` of a task for these counts of GPUs per node."""
    wanted = [{"accelerators": {gpu_type: c.per_node}} for c in counts]
    return wanted[0] if len(wanted) == 1 else {"ordered": wanted}
