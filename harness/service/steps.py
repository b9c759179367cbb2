"""Steps and data that tests of the service share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from harness.commands import succeed
from harness.graph_builder import GraphBuilder
from harness.service.service_harness import Service, wait_until
from shardwise.client import Client
from shardwise.graph import Graph, canonical_json

HARDWARE = "dgx-v100-16gb"


def mlp(width: int = 32, name: str = "mlp") -> Graph:
    builder = GraphBuilder(name)
    builder.input("x", 8, width)
    builder.linear("one", "x", builder.parameter("w1", 4 * width, width), "h")
    builder.linear("two", "h", builder.parameter("w2", width, 4 * width), "y")
    return builder.graph()


def upload(service: Service, graph: Graph, **headers: str) -> str:
    answer = service.client.post("/v1/graphs", content=canonical_json(graph), headers=headers)
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def keys(folder: Any, *arguments: str) -> str:
    return succeed("keys", *arguments, "--data-dir", str(folder / "data"), env={})


REFUSED = {"/v1/skypilot/policy": 400, "/v1/curves/bulk": 200}
"""What says that there is none with another status than 404: SkyPilot shows only a 400, and of many
curves each has its own error."""


def check(answer: Any, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == f"urn:shardwise:problem:{slug}"
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["X-Request-Id"]
    return problem


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


KEY = "a-key-of-webhooks-for-tests-0123456789"

QUICK = {
    "webhook_key": KEY,
    "webhook_allow_networks": "127.0.0.0/8",
    "webhook_retry_s": "0.2,0.2",
    "webhook_timeout_s": "2",
    "max_webhooks": "50",
    "sweep_s": "0.5",
}


def ended(client: Client, webhook_id: str, state: str) -> dict[str, Any]:
    job: dict[str, Any] = wait_until(
        lambda: next(client.webhook_deliveries(webhook_id, state), None), f"one is {state}"
    )
    return job
