"""Optimizer states in the host's memory: whether they fit there, and who shares it."""

from __future__ import annotations

from shardwise.cost.context import CostContext
from shardwise.cost.options import Options
from shardwise.errors import BadInput
from shardwise.graph.graph import DTYPE_BYTES, Graph
from shardwise.hardware import Hardware, Mesh
from shardwise.hardware.host import HostMemory
from shardwise.texts import gib


def host_memory_of(hardware: Hardware) -> HostMemory:
    """Returns the host memory. Raises `BadInput` if a profile does not state it."""
    if hardware.host_memory is None:
        raise BadInput(
            f"{hardware.name} does not state its hosts' memory",
            field="offload",
            expected="a profile with host_memory (docs/offloading.md)",
        )
    return hardware.host_memory


def devices_of_node(context: CostContext) -> int:
    """Returns the devices of the job on one node, the fullest."""
    mesh = context.mesh.mesh
    return -(-mesh.gpus // mesh.nodes)


def too_large_for_hosts(
    graph: Graph, hardware: Hardware, mesh: Mesh, options: Options
) -> str | None:
    """Returns why hosts have too little memory for the states under any strategy, or None if they
    may have enough. Raises `BadInput` if a profile does not state it."""
    if not options.step.offloads_states:
        return None
    memory = host_memory_of(hardware).memory_bytes
    states = sum(
        tensor.elements * options.host_bytes_per_element(DTYPE_BYTES[tensor.dtype])
        for tensor in graph.tensors.values()
        if tensor.trains
    )
    if states / mesh.nodes <= memory:
        return None
    return (
        f"states on the host (--offload) take {gib(states / mesh.nodes)} GiB of each of "
        f"{mesh.nodes}, which has {gib(memory)} GiB"
    )
