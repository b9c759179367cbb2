"""Back ends: the embedded one, and PostgreSQL with Valkey; each with real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.service.service_harness import System, new_database, variables_of

if TYPE_CHECKING:
    from harness.service.answered import Answered

for package in ("fastapi", "celery", "sqlalchemy", "psycopg"):
    pytest.importorskip(package, reason="needs shardwise[service,worker]")


ONE_BACKEND = {
    "test_agents.py": "postgres",
    "test_backup.py": "postgres",
    "test_comparison_questions.py": "embedded",
    "test_end_to_end.py": "embedded",
    "test_jobs_survive.py": "postgres",
    "test_launch_calls.py": "embedded",
    "test_launch_client.py": "embedded",
    "test_pipeline_questions.py": "postgres",
    "test_pipelines_beside.py": "embedded",
    "test_trainer_questions.py": "embedded",
    "test_webhooks.py": "postgres",
}
"""Modules whose own systems `make test` starts on one back end; `make test-all` on both.

What differs between the two databases is tested on both by `test_leases.py`, `test_gangs.py` and
`test_schema.py`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        of = getattr(item, "callspec", None)
        backend = of.params.get("backend") if of is not None else None
        if (
            item.path.parent == here
            and backend is not None
            and ONE_BACKEND.get(item.path.name, backend) != backend
            and not any("backend" in mark.args[0] for mark in item.iter_markers("parametrize"))
        ):
            item.add_marker("full")


@pytest.fixture(scope="session", params=["embedded", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def system(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[System]:
    """One running system for each back end, shared by tests that leave it as it was."""
    with variables_of(backend, request) as variables:
        running = System(tmp_path_factory.mktemp(backend), backend, variables)
        yield running
        running.stop()


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answered]:
    """A running system with every answer that is kept, shared by tests that leave it as it was."""
    from harness.service.answered import Answered

    running = Answered(tmp_path_factory.mktemp("answered"), heartbeat_s="0.2")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def own_system(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[System]:
    """A module's own system, with short leases: its tests break it and mend it again."""
    with variables_of(backend, request) as variables:
        quick = {
            "lease_s": "3",
            "heartbeat_s": "0.5",
            "sweep_s": "0.5",
            "ring_again_s": "1",
            "stop_grace_s": "0.3",
            "agent_lease_s": "8",
            "agent_heartbeat_s": "0.5",
            "claim_s": "30",
            "max_log_lines": "50",
            "max_log_bytes": "20000",
            "enrol_rate_per_s": "0",
            # Five hundred agents come from one address here, all at once.
            "anonymous_burst": "1000",
            "calls_waiting": "1000",
        }
        folder = tmp_path_factory.mktemp(f"own-{backend}")
        running = System(folder, backend, {**variables, **quick})
        yield running
        running.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty database of either kind."""
    from service.store.database import Database

    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'a.sqlite'}")
        yield opened
        opened.close()
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        opened = Database(url.replace("postgresql://", "postgresql+psycopg://"))
        yield opened
        opened.close()


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, of 4 MiB or as the test says; needs root, as mounting does."""
    size = getattr(request, "param", "4m")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here: needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
