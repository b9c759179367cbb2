"""Examples of request bodies, by the name of the shape."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, Any] = {
    "FrontierRequest": {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 4},
    "CurvesRequest": {
        "questions": [
            {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "counts": [1, 2, 4, 8]},
            {"graph": "shipped:gpt2", "hardware": "dgx-v100-16gb", "max_gpus": 8},
        ]
    },
    "CurveRequest": {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "max_gpus": 8},
    "WatchRequest": {
        "name": "vgg-on-v100",
        "graph": "shipped:vgg16",
        "hardware": "dgx-v100-16gb",
        "max_gpus": 16,
    },
    "PlanRequest": {
        "graph": "shipped:vgg16",
        "hardware": "dgx-v100-16gb*1",
        "gpus": 8,
        "objective": "mini-time",
        "options": {"epsilon": 0.01, "optimizer": "adam"},
    },
    "PricingRequest": {
        "graph": "shipped:gpt2",
        "hardware": "dgx-h100",
        "gpus": 8,
        "configuration": '{"train_batch_size": 64, "zero_optimization": {"stage": 2}}',
        "file": "ds_config.json",
    },
    "QuoteRequest": {"graph": "shipped:gpt2", "steps": 100000, "deadline_s": 86400.0},
    "CompareRequest": {"graph": "shipped:gpt2", "hardware": "dgx-a100-80gb", "gpus": 8},
    "UserRequest": {"task": "run: python train.py\n", "skypilot_config": "{}\n"},
    "AllocationRequest": {
        "gpus": 8,
        "objective": "max-min",
        "jobs": [
            {"name": "vgg", "graph": "shipped:vgg16", "hardware": "dgx-v100-16gb"},
            {
                "name": "other",
                "curve": {"points": [{"gpus": 1, "time_s": 1.0}, {"gpus": 2, "time_s": 0.6}]},
            },
        ],
    },
    "Graph": {
        "schema": "shardwise.graph/1",
        "name": "one-layer",
        "tensors": [
            {"name": "x", "shape": [8, 32], "dtype": "float32", "role": "input", "batch_dim": 0},
            {"name": "w", "shape": [64, 32], "dtype": "float32", "role": "parameter"},
            {"name": "y", "shape": [8, 64], "dtype": "float32", "role": "output"},
        ],
        "operators": [
            {
                "name": "linear",
                "kind": "aten.linear.default",
                "inputs": ["x", "w"],
                "outputs": ["y"],
                "attributes": {"tensor_arguments": ["input", "weight"]},
                "scope": "",
            }
        ],
    },
    "TokenRequest": {"name": "nodes", "expires_s": 3600.0, "uses": 8},
    "EnrolRequest": {
        "token": "swe_0000000000000000000000000000000000000000000",
        "name": "node-17",
        "inventory": {
            "schema": "shardwise.inventory/1",
            "host": "node-17",
            "cpus": 2,
            "memory_bytes": 8e9,
            "addresses": ["10.0.0.17"],
            "devices": [],
            "cpu_only": True,
            "entry_points": [{"name": "train", "description": "our training script"}],
            "slots": 2,
        },
    },
    "HeartbeatRequest": {
        "boot_id": "0f8fad5b",
        "inventory_hash": "sha256:00",
        "jobs": [],
        "draining": False,
    },
    "DrainRequest": {"reason": "new drivers"},
    "ReportsRequest": {
        "reports": [
            {
                "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
                "assignment": "asn_0",
                "token": "0",
                "kind": "state",
                "state": "running",
            }
        ]
    },
    "LaunchRequest": {
        "kind": "measure",
        "agents": 2,
        "ranks_per_agent": 1,
        "hardware": "my-cluster",
        "time_limit_s": 600.0,
    },
    "RefitRequest": {},
    "KeyRequest": {"name": "ci", "scopes": ["read", "submit"], "expires_s": 7776000.0},
    "RotateRequest": {"overlap_s": 3600.0},
    "TenantRequest": {"id": "research", "limits": {"max_queued": 50}},
    "LimitsRequest": {"limits": {"max_queued": 50, "max_graphs": None}},
    "WebhookRequest": {
        "name": "chat",
        "url": "https://hooks.example.com/shardwise",
        "events": ["job.ended", "launch.ended"],
        "states": ["failed", "lost"],
    },
}
