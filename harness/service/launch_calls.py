"""Launches as plain HTTP calls, a plan that one may run, and the measurement that it reports."""

from __future__ import annotations

from typing import Any

import httpx

from harness.service.service_harness import wait_until
from shardwise.hardware import load_hardware


def launch(client: httpx.Client, agents: Any = 1, ranks: int = 1, **more: Any) -> str:
    body = {"kind": "measure", "agents": agents, "ranks_per_agent": ranks, **more}
    answer = client.post("/v1/launches", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == answer.json()["location"]
    return str(answer.json()["location"])


def state_of(client: httpx.Client, location: str) -> str:
    return str(client.get(location).json()["state"])


def ended(client: httpx.Client, location: str) -> dict[str, Any]:
    def document_at_end() -> dict[str, Any] | None:
        document: dict[str, Any] = client.get(location).json()
        return document if document["state"] in ("done", "failed", "stopped", "lost") else None

    launched: dict[str, Any] = wait_until(document_at_end, f"{location} has ended")
    return launched


PLAN: dict[str, Any] = {
    "schema": "shardwise.plan/1",
    "id": "sha256:p",
    "graph": "sha256:g",
    "graph_name": "toy",
    "hardware": "l4",
    "hardware_id": load_hardware("l4").id,
    "gpus": 1,
    "nodes": 1,
    "predicted": {
        "compute_s": 1.0,
        "communication_s": 0.0,
        "replayed_time_s": 1.0,
        "peak_bytes": 1e9 / 0.95,
        "model_flops_utilisation": 0.4,
    },
}
"""As far as the service reads it."""

OF_PLAN: dict[str, Any] = {"kind": "run", "entry_point": "train", "plan": PLAN}
"""What asks for a launch of that plan."""


def measurement(ratio: float = 1.2, **more: Any) -> dict[str, Any]:
    """Returns what a run of the plan reports whose times are `ratio` of the predicted ones."""
    return {
        "schema": "shardwise.measurement/1",
        "plan": "sha256:p",
        "graph": "sha256:g",
        "graph_name": "toy",
        "hardware": "l4",
        "hardware_id": PLAN["hardware_id"],
        "gpus": 1,
        "nodes": 1,
        "steps": 10,
        "iteration_s": {"median": ratio, "p10": ratio, "p90": ratio, "all": [ratio] * 10},
        "compute_s": ratio,
        "communication_s": None,
        "peak_bytes": {"max": 1e9, "per_rank": [1e9]},
        "predicted": {"compute_s": 1.0, "communication_s": 0.0, "replayed_time_s": 1.0},
        "errors": {"iteration": ratio - 1, "compute": ratio - 1, "communication": None,
                   "peak": -0.05},
        "backend": "gloo",
        "device_kind": "cpu",
        "versions": {},
        **more,
    }  # fmt: skip
