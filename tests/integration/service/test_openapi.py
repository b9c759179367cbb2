"""schemathesis on the OpenAPI document, against a real service: no 5xx, nothing outside the schema.

It asks with the document's examples, with values at the edges of every parameter and beyond, and
with random ones, valid and not. What it finds it prints with a curl command that shows it again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_harness import Service, System

pytest.importorskip("schemathesis")
SECONDS = os.environ.get("SHARDWISE_OPENAPI_SECONDS", "90")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
LEAST = 500
"""Requests, on the slowest machine; some 1500 on two cores."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its answers are tested, not its solver: solves are short and small."""
    found = Service(
        tmp_path_factory.mktemp("openapi"),
        solve_time_s="2",
        max_gpus="64",
        max_curve_gpus="8",
        max_poll_s="1",
    )
    yield found
    found.stop()


@pytest.mark.full
def test_every_answer_is_in_the_schema(service: Service, tmp_path: Path) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    operations = sum(len(found) for found in paths.values())
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{service.url}/openapi.json",
        "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS),
        "--max-examples", "15", "--max-time", SECONDS, "--request-timeout", "30", "--seed", "6",
        "--generation-database", "none", "--warnings", "off", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{operations} selected / {operations} total" in done.stdout
    assert re.search(rf"Tested: {operations}\b", done.stdout), done.stdout[-3000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None and int(generated[1]) > LEAST, done.stdout[-3000:]
    assert service.logged("Exception in ASGI application") == []
    assert service.client.get("/readyz").status_code == 200


def test_the_reference_needs_no_network(system: System) -> None:
    page = system.client.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text and "http://" not in page.text
    for path in system.client.get("/openapi.json").json()["paths"]:
        assert path in page.text
