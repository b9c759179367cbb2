"""With an exporter configured, a request and the solve that it caused are one trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.service.service_harness import Service, wait_until
from harness.service.steps import HARDWARE, mlp, upload

pytest.importorskip("opentelemetry.sdk")
SPAN = re.compile(r"^\{\n.*?^\}", re.DOTALL | re.MULTILINE)


def test_a_solve_is_in_its_requests_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    service = Service(tmp_path)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"graph": upload(service, mlp()), "hardware": HARDWARE, "gpus": 1}
    answer = service.client.post("/v1/frontiers", json=body, headers={"traceparent": parent})
    service.ended(answer.headers["Location"])

    def names() -> set[str]:
        spans = [json.loads(text) for text in SPAN.findall(service.log.read_text())]
        trace = [s for s in spans if s["context"]["trace_id"].endswith(parent.split("-")[1])]
        return {span["name"] for span in trace}

    wait_until(lambda: {"POST /v1/frontiers", "solve frontier"} <= names(), "both spans are there")
    service.stop()
