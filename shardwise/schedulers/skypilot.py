"""SkyPilot: the resources of a task, as YAML that is JSON too.

`num_nodes` is one number for a whole task, so the candidates are the counts with as many nodes as
the best one, fastest first (`ordered`: SkyPilot takes the first that it can get). Clouds sell
instances of 1, 2, 4, 8 or 16 GPUs, so no other number of a node's GPUs is asked for.
"""

from __future__ import annotations

from typing import Any

from shardwise.errors import BadInput
from shardwise.schedulers.counts import Count, Counts
from shardwise.schedulers.kueue import resource_name
from shardwise.schedulers.plan_hosts import Hosts

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


def skypilot_of_plan(hosts: Hosts) -> dict[str, Any]:
    """Returns a task without commands for the hosts of a plan.

    Raises `BadInput`, which names the kinds, unless all hosts are alike: a task has one kind of
    accelerators, and as many on every node.
    """
    if len(hosts.groups) > 1:
        raise BadInput(
            f"hosts with {', '.join(f'{g.per_node} {g.type_name}' for g in hosts.groups)}",
            field="cluster.blocks",
            expected="like hosts: a SkyPilot task has one kind of accelerators; sbatch, kueue and "
            "ray have several",
        )
    (group,) = hosts.groups
    name = group.gpu_type or group.group.upper() or group.kind
    return {
        "name": resource_name(hosts.name),
        "num_nodes": group.nodes,
        "resources": {"accelerators": {name: group.per_node}},
    }
