"""JobSet: a plan's hosts as one set of pods for each kind, which Kueue admits all together.

A batch/v1 Job has one template, so several kinds take a JobSet (jobset.x-k8s.io/v1alpha2), whose
replicated jobs are Kueue's pod sets. Each selects its nodes by the label that NVIDIA's GPU feature
discovery gives them; Kueue gives a pod set the resource flavor whose node labels agree. Every pod
is a host, and starts torchrun as the host with its number: the replicated job's first and the pod's
completion index.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.errors import BadInput
from shardwise.schedulers.kueue import CONTAINER, GPU, resource_name
from shardwise.schedulers.plan_hosts import PORT, HostGroup, Hosts

PRODUCT = "nvidia.com/gpu.product"
"""The label of a node with the name of its GPUs."""
IMAGE = "trainer"
"""What the containers' image is called until somebody puts theirs in its place."""
MOST_NAME = 40
"""Characters of a JobSet's name: those of its pods, at most 63, begin with it."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def jobset(hosts: Hosts) -> dict[str, Any]:
    """Returns a JobSet with a replicated job for each run of like hosts.

    Raises `BadInput` for a GPU type that cannot be the value of a label.
    """
    name = resource_name(hosts.name)[:MOST_NAME].strip("-") or "job"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {"shardwise/hardware": hosts.hardware, "shardwise/plan": hosts.plan_id},
        },
        "spec": {"replicatedJobs": [_replicated(hosts, group, name) for group in hosts.groups]},
    }


def _replicated(hosts: Hosts, group: HostGroup, name: str) -> dict[str, Any]:
    return {
        "name": _job_name(group),
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": group.nodes,
                "completions": group.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "nodeSelector": {PRODUCT: _label(group)},
                        "containers": [_container(hosts, group, name)],
                    }
                },
            }
        },
    }


def _container(hosts: Hosts, group: HostGroup, name: str) -> dict[str, Any]:
    # JobSet's DNS name of a pod: JobSet-replicated job-replica-completion index, in its service.
    head = f"{name}-{_job_name(hosts.groups[0])}-0-0.{name}"
    start = (
        f"exec torchrun --nnodes={hosts.nodes} --node-rank=$(({group.first}+JOB_COMPLETION_INDEX))"
        f" --nproc-per-node={group.per_node} --master-addr={head} --master-port={PORT}"
        ' "$@"'
    )
    return {
        "name": CONTAINER,
        "image": IMAGE,
        "command": ["sh", "-c", start, CONTAINER],
        "args": ["train.py"],
        "resources": {"limits": {GPU: str(group.per_node)}},
    }


def _job_name(group: HostGroup) -> str:
    """Returns the name of a replicated job: `hosts-0`, from the number of its first host."""
    return f"hosts-{group.first}"


def _label(group: HostGroup) -> str:
    value = (group.gpu_type or group.kind).replace(" ", "-")
    if not LABEL.fullmatch(value):
        raise BadInput(f"got {value[:80]!r}", field="gpu_type", expected=f"a value of {PRODUCT}")
    return value
