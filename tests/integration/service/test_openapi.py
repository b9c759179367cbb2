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

from harness.service.service_harness import System, variables_of

pytest.importorskip("schemathesis")
SECONDS = os.environ.get("SHARDWISE_OPENAPI_SECONDS", "90")
CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "429", "503"]
"""
"""What a schema allows may be refused for what it means (a graph that is not stored, more GPUs than
the service computes for): with 422, and with no other status."""

NOT_OURS = "use_after_free"
"""DELETE of a question cancels it: the job can still be read, and says so."""

LEAST = 500
"""Requests, on the slowest machine; some 1500 on two cores."""


@pytest.fixture(scope="module")
def small_system(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[System]:
    """Its answers are tested, not its solver: solves are short and small."""
    with variables_of(backend, request) as variables:
        small = {"solve_time_s": "2", "max_gpus": "64", "max_curve_gpus": "8", "max_poll_s": "1"}
        running = System(tmp_path_factory.mktemp(f"openapi-{backend}"), backend, variables | small)
        yield running
        running.stop()


@pytest.mark.full
def test_the_behaviour_is_that_of_the_document(small_system: System, tmp_path: Path) -> None:
    service = small_system.service
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    paths = service.client.get("/openapi.json").json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml",
        "run", f"{service.url}/openapi.json",
        "--phases", "examples,coverage,fuzzing,stateful",
        "--checks", "all", "--exclude-checks", NOT_OURS,
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


def test_a_path_allows_the_methods_of_its_own_route_only(system: System) -> None:
    answer = system.client.put("/v1/agents/tokens")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    answer = system.client.put("/v1/agents/agent_0")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "DELETE, GET")


def test_the_reference_needs_no_network(system: System) -> None:
    page = system.client.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text and "http://" not in page.text
    for path in system.client.get("/openapi.json").json()["paths"]:
        assert path in page.text
