"""Runs in Ray's environment on a cluster's head: the hosts that hold our placement group."""

import json
import sys

import ray
from ray.util import placement_group, placement_group_table

ray.init(address="auto", logging_level="ERROR")
group = placement_group(**json.load(sys.stdin))
ray.get(group.ready(), timeout=60)
hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
placed = placement_group_table(group)["bundles_to_node_id"]
print(json.dumps([hosts[placed[i]] for i in range(len(placed))]))
