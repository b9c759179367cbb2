#!/usr/bin/env python3
"""A Kubeflow TrainJob with the nodes and processes that its curve names.

    python patch_trainjob.py trainjob.yaml | kubectl create -f -

The TrainJob says what it is: annotations `shardwise/graph` and `shardwise/hardware`, and, if they
are wanted, `shardwise/max-gpus` (8) and `shardwise/efficiency` (0: the fastest count). The curve is
asked of the service SHARDWISE_SERVER (SHARDWISE_KEY: its key). `numNodes`, `numProcPerNode` and the
GPUs of `resourcesPerNode` are set; all else stays. The trainer of a TrainJob cannot be changed once
it is created, so this runs before. Without an answer nothing is printed and the exit code is 1.

Needs pyyaml and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

SERVER = "http://127.0.0.1:8000"
TIMEOUT_S = 30.0
GPU = "nvidia.com/gpu"


def curve(annotations: dict[str, str]) -> dict[str, Any]:
    """Returns the curve, whose points have numbers of GPUs and nodes."""
    query = {
        "graph": annotations["shardwise/graph"],
        "hardware": annotations["shardwise/hardware"],
        "max_gpus": annotations.get("shardwise/max-gpus", "8"),
    }
    server = os.environ.get("SHARDWISE_SERVER", SERVER)
    request = urllib.request.Request(f"{server}/v1/curves?{urllib.parse.urlencode(query)}")
    if key := os.environ.get("SHARDWISE_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        if response.status == 202:
            sys.exit("patch_trainjob: the curve is being computed: try again in a minute")
        return dict(json.load(response))


def best(document: dict[str, Any], efficiency: float) -> dict[str, Any]:
    """Returns the fastest point whose nodes have equal GPUs and whose GPUs are used well enough."""
    points = [p for p in document["points"] if p["feasible"] and p["gpus"] % p["nodes"] == 0]
    if not points:
        sys.exit(f"patch_trainjob: nothing fits: {document['points'][-1].get('reason')}")
    step = "replayed_time_s" if document.get("overlap") else "time_s"
    most = max(1 / (p[step] * p["gpus"]) for p in points)
    good = [p for p in points if 1 / (p[step] * p["gpus"]) >= efficiency * most]
    return min(good, key=lambda p: (p[step], p["gpus"]))


def patched(job: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """Returns the TrainJob with the point's nodes and GPUs."""
    per_node = point["gpus"] // point["nodes"]
    trainer = job["spec"].setdefault("trainer", {})
    trainer["numNodes"] = point["nodes"]
    trainer["numProcPerNode"] = per_node
    resources = trainer.setdefault("resourcesPerNode", {})
    for kind in ("limits", "requests"):
        resources.setdefault(kind, {})[GPU] = per_node
    return job


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: patch_trainjob.py TRAINJOB.yaml")
    job = yaml.safe_load(Path(sys.argv[1]).read_text("utf-8"))
    if not isinstance(job, dict) or job.get("kind") != "TrainJob":
        sys.exit(f"patch_trainjob: {sys.argv[1]}: not a TrainJob")
    annotations = job.get("metadata", {}).get("annotations") or {}
    for name in ("shardwise/graph", "shardwise/hardware"):
        if name not in annotations:
            sys.exit(f"patch_trainjob: {sys.argv[1]}: metadata.annotations has no {name}")
    try:
        document = curve(annotations)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        sys.exit(f"patch_trainjob: no curve: {error}")
    point = best(document, float(annotations.get("shardwise/efficiency", "0")))
    yaml.safe_dump(patched(job, point), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
