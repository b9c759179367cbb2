"""Runs in Ray's environment: nodes with accelerator types hold our placement group."""

import json
import sys

import ray
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.cluster_utils import Cluster
from ray.util import placement_group, placement_group_table

given = json.load(sys.stdin)
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
nodes = {}
for kind, gpus in given["nodes"]:
    name = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(kind)
    resources = {f"accelerator_type:{name}": 1}
    node = cluster.add_node(num_cpus=gpus, num_gpus=gpus, resources=resources)
    nodes[node.node_id] = kind
ray.init(address=cluster.address, logging_level="ERROR")
group = placement_group(**given["group"])
ray.get(group.ready(), timeout=60)
placed = placement_group_table(group)["bundles_to_node_id"]
print(json.dumps([nodes[placed[i]] for i in range(len(placed))]))
ray.shutdown()
cluster.shutdown()
