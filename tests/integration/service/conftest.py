"""Back ends: the embedded one, and PostgreSQL with Valkey; each with real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.service.service_harness import System, new_database, variables_of, with_driver

if TYPE_CHECKING:
    from harness.service.answered import Answered

for package in ("fastapi", "celery", "sqlalchemy", "psycopg"):
    pytest.importorskip(package, reason="needs shardwise[service,worker]")


POSTGRES = (
    "test_agents.py", "test_backup.py", "test_jobs_survive.py", "test_pipeline_questions.py",
    "test_webhooks.py",
)  # fmt: skip
"""Modules whose systems `make test` starts on PostgreSQL and Valkey; those of all others are
embedded. `make test-all` starts both."""

BOTH_DATABASES = (
    "test_enrolment.py", "test_fair_order.py", "test_gangs.py", "test_leases.py", "test_schema.py",
    "test_webhook_outbox.py",
)  # fmt: skip
"""Modules about leases, locks, the queue and the schema: in these the databases differ; so they do
in single tests that name both. What others do on PostgreSQL too, `make test-all` tries."""

EMPTY = "test_schema.py"
"""The module whose databases have no tables yet."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        of = getattr(item, "callspec", None)
        if of is None or item.path.parent != here:
            continue
        own = [mark.args[0] for mark in item.iter_markers("parametrize")]
        backend = "postgres" if item.path.name in POSTGRES else "embedded"
        elsewhere = of.params.get("backend", backend) != backend
        if elsewhere and not any("backend" in names for names in own):
            item.add_marker("full")
        of_both = item.path.name in BOTH_DATABASES or "database" in own
        if of.params.get("database") == "postgresql" and not of_both:
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


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite that has all tables and no rows."""
    path = tmp_path_factory.mktemp("migrated") / "a.sqlite"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_name(postgres_url: str) -> Iterator[str]:
    """The name of a PostgreSQL database that has all tables and no rows."""
    with new_database(postgres_url) as url:
        _migrate(with_driver(url))
        yield url.rpartition("/")[2]


def _migrate(url: str) -> None:
    from service.store.database import Database
    from service.store.schema import migrate

    opened = Database(url)
    migrate(opened)
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database of either kind, without rows."""
    from service.store.database import Database

    empty = request.path.name == EMPTY
    if request.param == "sqlite":
        path = tmp_path / "a.sqlite"
        if not empty:
            shutil.copy(request.getfixturevalue("migrated_file"), path)
        opened = Database(f"sqlite:///{path}")
        yield opened
        opened.close()
        return
    like = "template1" if empty else request.getfixturevalue("migrated_name")
    with new_database(request.getfixturevalue("postgres_url"), like) as url:
        opened = Database(with_driver(url))
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
