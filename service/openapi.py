"""What the OpenAPI document says of each route (placeholder filled below)."""

from __future__ import annotations

from typing import Any

post_graph: dict[str, Any] = {}
list_graphs: dict[str, Any] = {}
get_graph: dict[str, Any] = {}
get_graph_document: dict[str, Any] = {}
delete_graph: dict[str, Any] = {}
post_hardware: dict[str, Any] = {}
list_hardware: dict[str, Any] = {}
get_hardware: dict[str, Any] = {}
delete_hardware: dict[str, Any] = {}
get_curve: dict[str, Any] = {}
healthz: dict[str, Any] = {}
readyz: dict[str, Any] = {}
metrics: dict[str, Any] = {}
post_allocation: dict[str, Any] = {}


def ask(kind: str, shape: type) -> dict[str, Any]:
    return {}


def list_jobs(kind: str | None) -> dict[str, Any]:
    return {}


get_job = job_events = cancel_job = list_jobs
