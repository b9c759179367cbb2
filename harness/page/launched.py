"""An agent that has worked, for tests of the page: states, output, measurements, a profile."""

from __future__ import annotations

import uuid
from typing import Any

import httpx

from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import wait_until
from shardwise.hardware import hardware_document, load_hardware

GPU_HOST: dict[str, Any] = {
    "kernel": "6.8.0",
    "python": "3.12.3",
    "torch": "2.6.0",
    "shardwise": "0.7",
    "cpu_only": False,
    "devices": [
        {
            "index": index,
            "kind": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 85e9,
            "used_by_others": index == 3,
            "nvlink": [peer for peer in range(4) if peer != index],
            "pcie": {"generation": 5, "width": 16},
            "numa": index // 2,
            "uuid": f"GPU-{index}",
        }
        for index in range(4)
    ],
}


def plan_of(client: httpx.Client, gpus: int = 2) -> dict[str, Any]:
    """Returns a computed plan's job, with the plan as its result."""
    body = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": gpus}
    accepted = client.post("/v1/plans", json=body).json()

    def ended() -> dict[str, Any] | None:
        job: dict[str, Any] = client.get(f"/v1/plans/{accepted['id']}").json()
        return job if job["state"] == "done" else None

    document: dict[str, Any] = wait_until(ended, "a plan")
    return document


def measurement(plan: dict[str, Any], ratio: float) -> dict[str, Any]:
    """Returns what a run of the plan reports: every time is `ratio` of the prediction."""
    predicted = plan["predicted"]
    step_s, peak = ratio * predicted["replayed_time_s"], 0.95 * predicted["peak_bytes"]
    return {
        "schema": "shardwise.measurement/1",
        "plan": plan["id"],
        "graph": plan["graph"],
        "graph_name": plan["graph_name"],
        "hardware": plan["hardware"],
        "hardware_id": plan["hardware_id"],
        "nodes": plan.get("nodes"),
        "gpus": plan["gpus"],
        "steps": 20,
        "iteration_s": {
            "median": step_s,
            "p10": 0.9 * step_s,
            "p90": 1.1 * step_s,
            "all": [step_s],
        },
        "compute_s": ratio * predicted["compute_s"],
        "communication_s": ratio * predicted["communication_s"],
        "peak_bytes": {"max": peak, "per_rank": [peak] * plan["gpus"]},
        "predicted": predicted,
        "errors": {
            "iteration": ratio - 1,
            "compute": ratio - 1,
            "communication": ratio - 1,
            "peak": -0.05,
        },
        "backend": "gloo",
        "device_kind": "cpu",
        "versions": {},
    }


def run_of(client: httpx.Client, plan: dict[str, Any], agent: FakeAgent, ratio: float) -> str:
    """Runs a launch of the plan to its end, with measurements. Returns its id."""
    body = {"plan_id": plan["id"], "agents": [agent.id], "entry_point": "train"}
    answer = client.post("/v1/launches", json=body)
    assert answer.status_code == 201, answer.text
    part = agent.must_claim()
    agent.say(part, "running")
    agent.report(
        agent.of(part, "log", rank=0, first_line=1, lines=["step 1", "<b>bold</b> & done"]),
        agent.of(part, "log", rank=1, stream="stderr", first_line=1, lines=["a warning"]),
        agent.of(part, "result", name="run.json", document=measurement(plan, ratio)),
        agent.of(part, "state", state="done", exit_code=0, peak_rss_bytes=3e9),
    )
    return str(answer.json()["id"])


def measured_profile(client: httpx.Client) -> str:
    """Stores a profile with measured collectives of several group shapes. Returns its id."""
    sizes = [2.0**power for power in range(12, 29, 2)]

    def table(operation: str, nodes: int, ranks: int, peak: float, **more: Any) -> dict[str, Any]:
        times = [30e-6 + size / peak for size in sizes]
        spread = {"p10_s": [0.9 * t for t in times], "p90_s": [1.2 * t for t in times]}
        return {
            "operation": operation,
            "nodes": nodes,
            "ranks_per_node": ranks,
            "consecutive": True,
            "sizes_bytes": sizes,
            "times_s": times,
            **spread,
            **more,
        }

    document = {
        **hardware_document(load_hardware("dgx-a100-80gb")),
        "name": f"measured-{uuid.uuid4().hex[:6]}",
        "provenance": "measured on 2026-11-21 on node-17",
        "measurement": {"when": "2026-11-21", "torch": "2.6.0", "left_out": ["a link was busy"],
                        "links": {"inside": "nvlink", "between": "network"}},
        "collectives": [
            table("all_reduce", 1, 8, 1.3e11),
            table("all_reduce", 1, 2, 1.4e11, consecutive=False),
            table("all_reduce", 2, 8, 4e10),
            table("all_gather", 1, 8, 2.4e11),
            table("all_gather", 2, 1, 2e9, siblings=8),
            table("their_own", 1, 8, 1e11),
        ],
    }  # fmt: skip
    answer = client.post("/v1/hardware", json=document)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])
