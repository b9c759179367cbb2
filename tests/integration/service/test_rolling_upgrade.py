"""Two releases at once on PostgreSQL and Valkey, with real processes of both.

The newer release is a copy of the packages with another version and one more migration: the first
only adds, the second raises the floor.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import func, select, text

from harness.service.service_harness import ROOT, App, Service, free_port, new_database, wait_until
from service.base.settings import load_settings
from service.store.database import Database
from service.store.tables import Job, Result

pytestmark = pytest.mark.full

LOADED_S = 240.0
"""How long a machine that does much else may take for what takes seconds."""

ADDS = """
    op.add_column("jobs", sa.Column("note", sa.String(length=40), server_default="of 0.2"))
    op.create_table("notes", sa.Column("id", sa.Integer(), primary_key=True))
"""
CHANGES = """
    op.execute("UPDATE schema_floor SET revision = '9002'")
"""
LONG = {
    "graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": 12, "options": {"overlap": False}
}  # fmt: skip


@dataclass(frozen=True)
class Release:
    """Where a release's packages are, and its version."""

    path: Path
    version: str

    def app(self, folder: Path, name: str, **variables: str) -> App:
        return self._of(App)(folder, name, **variables)

    def service(self, folder: Path, **variables: str) -> Service:
        served: Service = self._of(Service)(folder, **variables)
        version = served.client.get("/openapi.json").json()["info"]["version"]
        assert version == self.version, "the process runs the other release's code"
        return served

    def _of(self, kind: type[Any]) -> type[Any]:
        return type(kind.__name__, (kind,), {"python_path": (str(self.path),)})


def next_release(before: Release, path: Path, version: str, revision: str, act: str) -> Release:
    """A copy of a release with one more migration."""
    for package in ("service", "worker", "migrations", "shardwise"):
        shutil.copytree(before.path / package, path / package)
    init = path / "shardwise/__init__.py"
    source, changed = re.subn(r'__version__ = ".*"', f'__version__ = "{version}"', init.read_text())
    assert changed == 1
    init.write_text(source)
    former = max(p.name[:4] for p in (path / "migrations/versions").glob("[0-9]*.py"))
    (path / f"migrations/versions/{revision}_next.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f'revision = "{revision}"\ndown_revision = "{former}"\n'
        f"branch_labels = None\ndepends_on = None\n\ndef upgrade() -> None:{act}"
    )
    return Release(path, version)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Release]:
    """This one, the next that only adds, and the one after, which needs its own schema."""
    folder = tmp_path_factory.mktemp("releases")
    from shardwise import __version__

    first = Release(ROOT, __version__)
    second = next_release(first, folder / "second", "99.1.0", "9001", ADDS)
    return [first, second, next_release(second, folder / "third", "99.2.0", "9002", CHANGES)]


@pytest.fixture(scope="module")
def variables(postgres_url: str, redis_url: str) -> Iterator[dict[str, str]]:
    with new_database(postgres_url) as url:
        yield {
            "database_url": url,
            "redis_url": redis_url,
            "queue": "rolling-upgrade",
            "concurrency": "1",
            "heartbeat_s": "0.5",
            "sweep_s": "0.5",
            "ring_again_s": "2",
            "stop_grace_s": "0.3",
            # No lease may run out because the machine is slow: that would be a second attempt.
            "lease_s": "120",
        }


def migrated(release: Release, folder: Path, variables: dict[str, str]) -> None:
    app = release.app(folder, "migrate", **variables)
    assert app.process.wait(LOADED_S) == 0, app.log.read_text()
    app.stop()


def refused(release: Release, folder: Path, variables: dict[str, str], says: str) -> None:
    for name in ("serve", "worker"):
        app = release.app(folder, name, **{**variables, "port": "0"})
        assert app.process.wait(LOADED_S) == 2
        assert says in app.log.read_text()
        app.stop()


def ask(service: Service, gpus: int) -> str:
    body = {
        "graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": gpus,
        "options": {"overlap": False},
    }  # fmt: skip
    answer = service.client.post("/v1/frontiers", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["Location"])


def counted(url: str, name: str, **labels: str) -> int:
    """The sum of a metric's samples with these labels."""
    families = text_string_to_metric_families(httpx.get(url, timeout=60).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return int(sum(s.value for s in samples if labels.items() <= s.labels.items()))


def solved(worker: App) -> Counter[str]:
    """How often this worker recorded each job, by its log."""
    return Counter(record["job_id"] for record in worker.logged(" done") if "job_id" in record)


def ready(service: Service) -> int:
    return service.client.get("/readyz").status_code


def test_no_job_is_lost_or_done_twice(
    releases: list[Release], variables: dict[str, str], tmp_path: Path
) -> None:
    old, new, _ = releases
    ports = [free_port(), free_port()]
    scraped = [f"http://127.0.0.1:{port}/metrics" for port in ports]
    settings = [{**variables, "worker_metrics_port": str(port)} for port in ports]
    apps: list[App] = []

    def kept(app: Any) -> Any:
        apps.append(app)
        return app

    try:
        migrated(old, tmp_path, variables)
        first = kept(old.service(tmp_path, **variables))
        old_worker = kept(old.app(tmp_path, "worker", **settings[0]))
        asked = [ask(first, gpus) for gpus in (1, 2, 3)]

        refused(new, tmp_path, variables, "`shardwise migrate` first")
        migrated(new, tmp_path, variables)
        assert ready(first) == 200, "the floor allows the old release"
        second = kept(new.service(tmp_path, **variables))
        new_worker = kept(new.app(tmp_path, "worker", **settings[1]))
        wait_until(
            lambda: second.client.get("/readyz").json()["checks"]["workers"] == 2,
            "the new worker lives: else the old one might compute everything",
            LOADED_S,
        )

        def are_logged() -> bool:
            """An answer is stored before its line is written."""
            return (solved(old_worker) + solved(new_worker)).total() >= len(asked)

        pairs = [(ask(first, gpus), ask(second, gpus)) for gpus in (4, 5, 6)]
        asked += [location for pair in pairs for location in pair]
        for location in asked:
            for service in (first, second):
                job = service.ended(location, LOADED_S)
                assert (job["state"], job["attempts"]) == ("done", 1), job
        for one, other in pairs:
            assert one != other, "another release may answer differently: it asks again"
            two_answers = [first.client.get(location).json()["result"] for location in (one, other)]
            for answer in two_answers:
                answer.pop("search")  # how long it took
            assert two_answers[0] == two_answers[1]
        wait_until(are_logged, "both logs are whole")
        assert solved(old_worker) and solved(new_worker), "both releases' workers compute"

        # The old worker is stopped while it computes: what it had is the new one's.
        counts = [counted(url, "shardwise_solves_total", outcome="done") for url in scraped]
        assert sum(counts) == len(asked)
        long = [s.client.post("/v1/curves", json=LONG).headers["Location"] for s in (first, second)]
        wait_until(
            lambda: all(first.client.get(at).json()["state"] == "running" for at in long),
            "each worker has one of the two",
            LOADED_S,
        )
        assert old_worker.stop() == 0
        asked += [*long, ask(first, 7)]
        computed = counted(f"{first.url}/metrics", "shardwise_answers_total", source="computed")
        assert ready(first) == 200
        assert first.stop() == 0
        asked.append(ask(second, 8))
        results = [second.ended(location, LOADED_S)["result"] for location in asked]
        assert results[-4]["points"] == results[-3]["points"]

        computed += counted(f"{second.url}/metrics", "shardwise_answers_total", source="computed")
        assert computed == len(asked) == len(set(asked))
        wait_until(are_logged, "both logs are whole")
        new_done = counted(scraped[1], "shardwise_solves_total", outcome="done")
        assert sum(solved(new_worker).values()) == new_done
        whole = solved(old_worker) + solved(new_worker)
        assert whole == Counter(location.rpartition("/")[2] for location in asked)
        assert stored(variables) == (len(asked), len(asked), 1, {"of 0.2"})
    finally:
        for app in apps:
            app.kill()


def stored(variables: dict[str, str]) -> tuple[int, int, int, set[str]]:
    """Jobs that are done, results, most attempts of a job, and what the new column holds."""
    environment = {"SHARDWISE_DATABASE_URL": variables["database_url"]}
    database = Database(load_settings({}, environment).database)
    with database.read() as session:
        done = session.scalar(select(func.count()).where(Job.state == "done"))
        jobs = session.scalar(select(func.count()).select_from(Job))
        results = session.scalar(select(func.count()).select_from(Result))
        attempts = session.scalar(select(func.max(Job.attempts)))
        notes = set(session.scalars(text("SELECT DISTINCT note FROM jobs")))
    database.close()
    assert done == jobs
    return int(jobs or 0), int(results or 0), int(attempts or 0), notes


def test_below_the_floor_nothing_runs(
    releases: list[Release], variables: dict[str, str], tmp_path: Path
) -> None:
    """A schema that took something away: the former releases step aside and cannot start."""
    old, new, newest = releases
    migrated(new, tmp_path, variables)
    service = old.service(tmp_path, **variables)
    worker = old.app(tmp_path, "worker", **variables)
    try:
        wait_until(
            lambda: service.client.get("/readyz").json()["checks"]["workers"], "it works", LOADED_S
        )
        migrated(newest, tmp_path, variables)
        wait_until(lambda: ready(service) == 503, "it is no longer ready", LOADED_S)
        why = service.client.get("/readyz").json()["checks"]["database"]
        assert "revision 9002, which this release does not know" in why
        assert worker.process.wait(LOADED_S) != 0, "the worker ends by itself"
        assert "revision 9002, which this release does not know" in worker.log.read_text()
        for release in (old, new):
            refused(release, tmp_path, variables, "which this release does not know")
    finally:
        service.kill()
        worker.kill()
