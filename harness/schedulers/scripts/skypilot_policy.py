"""Runs in SkyPilot's environment: its own client of admin policies asks a running service."""

import json
import sys

import sky
from sky import exceptions, skypilot_config
from sky.server.requests import request_names
from sky.utils import admin_policy_utils

given = json.load(sys.stdin)
assert skypilot_config.get_nested(("admin_policy",), None) == given["url"]
rows = []
for case in given["cases"]:
    task = sky.Task.from_yaml_config(case["task"])
    name = request_names.AdminPolicyRequestName(case["request"])
    try:
        dag, _ = admin_policy_utils.apply(task, name, at_client_side=True)
    except exceptions.UserRequestRejectedByPolicy as error:
        rows.append({"rejected": str(error)})
        continue
    (mutated,) = dag.tasks
    config = mutated.to_yaml_config()
    rows.append(
        {
            "num_nodes": mutated.num_nodes,
            "accelerators": [r.accelerators for r in mutated.resources],
            "spot": [r.use_spot for r in mutated.resources],
            "disk_size": [r.disk_size for r in mutated.resources],
            "run": config.get("run"),
            "envs": config.get("envs"),
        }
    )
print(json.dumps(rows))
