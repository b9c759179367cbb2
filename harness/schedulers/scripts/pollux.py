"""Runs in AdaptDL's environment: its own policy allocates jobs whose speedups are ours."""

import contextlib
import json
import random
import sys
from datetime import datetime, timedelta

import numpy as np

with contextlib.redirect_stdout(sys.stderr):
    from adaptdl_sched.policy.pollux import PolluxPolicy
    from adaptdl_sched.policy.speedup import SpeedupFunction
    from adaptdl_sched.policy.utils import JobInfo, NodeInfo

from shardwise.schedulers.goodput import Goodput, goodputs_of

given = json.load(sys.stdin)
np.random.seed(1)
random.seed(1)

jobs = {}
for number, document in enumerate(given["jobs"]):
    speedup = Goodput(document)
    jobs[str(number)] = JobInfo(
        {"gpu": 1},
        speedup,
        datetime(2026, 1, 1) + timedelta(hours=number),
        speedup.min_replicas,
        speedup.max_replicas,
    )
nodes = {f"node{i}": NodeInfo({"gpu": given["node_gpus"]}, False) for i in range(given["nodes"])}
template = NodeInfo({"gpu": given["node_gpus"]}, True)
with contextlib.redirect_stdout(sys.stderr):
    allocations, _ = PolluxPolicy().optimize(jobs, nodes, {}, template)

# Sia and AdaptDL wrap a goodput function in their own SpeedupFunction.
wrapped = SpeedupFunction(next(iter(goodputs_of(given["sia"]).values())), mem_size=64)
nodes_of, replicas = np.array([1, 1, 2, 1]), np.array([1, 4, 16, 3])
print(
    json.dumps(
        {
            "allocations": allocations,
            "wrapped": wrapped(nodes_of, replicas).tolist(),
            "ours": goodputs_of(given["sia"])["v100"](nodes_of, replicas).tolist(),
        }
    )
)
