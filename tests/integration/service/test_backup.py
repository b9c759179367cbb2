"""Backups: whole or refused, of both databases, and from one kind into the other."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from harness.service.service_harness import System, new_database, wait_until
from harness.service.steps import mlp, upload
from service.host.backup import read_backup, tables, write_backup
from service.store.database import Database
from service.store.schema import migrate
from shardwise.errors import BadInput


@contextmanager
def empty(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    if kind == "sqlite":
        restored = Database(f"sqlite:///{tmp_path / 'restored.sqlite'}")
        migrate(restored)
        yield restored
        restored.close()
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        restored = Database(url.replace("postgresql://", "postgresql+psycopg://"))
        migrate(restored)
        yield restored
        restored.close()


def contents(database: Database) -> dict[str, list[str]]:
    with database.engine.connect() as connection:
        return {
            table.name: sorted(repr(tuple(row)) for row in connection.execute(select(table)))
            for table in tables()
        }


@pytest.fixture(scope="module")
def used(own_system: System) -> System:
    """A system with graphs, profiles, jobs and answers."""
    graph = upload(own_system.service, mlp())
    for gpus in (1, 2):
        body = {"graph": graph, "hardware": "dgx-v100-16gb", "gpus": gpus}
        accepted = own_system.client.post("/v1/plans", json=body).json()
        wait_until(
            lambda accepted=accepted: (
                own_system.client.get(accepted["location"]).json()["state"] == "done"
            ),
            "a plan",
        )
    return own_system


@pytest.mark.parametrize("into", ["sqlite", "postgresql"])
def test_a_backup_of_a_running_service_comes_back(
    used: System, into: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = used.database()
    file = tmp_path / "store.backup"
    counts = write_backup(source, file)
    assert counts["jobs"] >= 2 and counts["results"] >= 2 and counts["graph_blobs"] >= 1
    assert file.stat().st_mode & 0o777 == 0o600
    with empty(into, tmp_path, request) as target:
        assert read_backup(target, file) == counts
        mine, theirs = contents(target), contents(source)
        # Workers sign on while the backup is compared.
        mine.pop("workers"), theirs.pop("workers")
        assert mine == theirs
        with pytest.raises(BadInput, match="the database has rows"):
            read_backup(target, file)
    source.close()


@pytest.mark.parametrize("damage", ["cut", "one row less", "other schema", "other revision", "x"])
def test_a_damaged_backup_changes_nothing(
    used: System, damage: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = used.database()
    file = tmp_path / "store.backup"
    write_backup(source, file)
    source.close()
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    header: dict[str, Any] = json.loads(lines[0])
    match damage:
        case "cut":
            file.write_bytes(file.read_bytes()[:-20])
        case "one row less":
            file.write_bytes(gzip.compress("\n".join([*lines[:-2], lines[-1]]).encode()))
        case "other schema":
            lines[0] = json.dumps({**header, "schema": "other/1"})
        case "other revision":
            lines[0] = json.dumps({**header, "revision": "0000"})
        case "x":
            file.write_bytes(b"not gzip")
    if damage.startswith("other"):
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
    with empty("sqlite", tmp_path, request) as target:
        before = contents(target)
        with pytest.raises(BadInput):
            read_backup(target, file)
        assert contents(target) == before


def test_a_full_place_leaves_the_old_backup(used: System, tmp_path: Path) -> None:
    source = used.database()
    with pytest.raises(BadInput):
        write_backup(source, tmp_path / "none" / "store.backup")
    source.close()
