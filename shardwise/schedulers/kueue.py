"""Kueue: a patch of a batch/v1 Job with the pods that Kueue may admit.

Pods are nodes of `per_pod` GPUs. With `kueue.x-k8s.io/job-min-parallelism` Kueue admits a Job with
fewer pods when the quota is short, with *any* number between that and `parallelism` (partial
admission; site/content/en/docs/tasks/run/jobs.md of kubernetes-sigs/kueue). So the bounds are a run
of pod counts all of which fit. Its webhook (pkg/controller/jobs/job/job_webhook.go) wants
0 < minimum < parallelism and, to lower completions along with parallelism, an Indexed Job with
equal numbers of both; where a run has one count, the annotations are left out.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.schedulers.counts import Count, Counts

MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS_FOLLOW = "kueue.x-k8s.io/job-completions-equal-parallelism"
GPU = "nvidia.com/gpu"
CONTAINER = "trainer"


def kueue(counts: Counts, efficiency: float = 0.0) -> dict[str, Any]:
    """Returns a strategic merge patch; the Job's own pod template has a container `trainer`."""
    best = counts.even().best(efficiency)
    per_pod = best.per_node
    run = pod_counts(counts, best)
    annotations = {"shardwise/hardware": counts.hardware}
    if len(run) > 1:
        annotations |= {MIN_PARALLELISM: str(run[0]), COMPLETIONS_FOLLOW: "true"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": resource_name(counts.name), "annotations": annotations},
        "spec": {
            "parallelism": run[-1],
            "completions": run[-1],
            "completionMode": "Indexed",
            "template": {
                "spec": {
                    "containers": [
                        {"name": CONTAINER, "resources": {"limits": {GPU: str(per_pod)}}}
                    ]
                }
            },
        },
    }


def pod_counts(counts: Counts, best: Count) -> list[int]:
    """Returns numbers of pods with as many GPUs each as `best` has, one after another, that all
    fit."""
    per_pod = best.per_node
    return [
        count.gpus // per_pod
        for count in counts.run_below(best, step=per_pod)
        if count.nodes == count.gpus // per_pod
    ]


def resource_name(text: str) -> str:
    """Returns a DNS label (RFC 1123) that says which graph it was."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or "job"
