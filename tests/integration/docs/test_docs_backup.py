"""Every command of docs/deploy.md's Backup section as written, on both databases."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from harness.commands import shardwise
from harness.service.service_harness import ROOT, new_database, postgres_program, with_driver
from harness.tiers import some
from service.host.backup import tables
from service.questions.ingest import upload_of
from service.store.database import Database
from service.store.graphs import add_graph
from service.store.keys import create_key
from service.store.schema import migrate
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph


def section(name: str) -> str:
    text = (ROOT / "docs/deploy.md").read_text()
    match = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert match, name
    return match[1]


def commands() -> list[list[str]]:
    (block,) = re.findall(r"^```sh\n(.*?)^```", section("Backup"), re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.fixture
def urls(postgres_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of either kind an old database and a new one."""
    with new_database(postgres_url) as old, new_database(postgres_url) as new:
        yield {
            "old postgresql": old,
            "new postgresql": new,
            "old sqlite": f"sqlite:///{tmp_path / 'old.sqlite'}",
            "new sqlite": f"sqlite:///{tmp_path / 'new.sqlite'}",
        }


def fill(url: str) -> dict[str, list[str]]:
    """Some rows, with bytes and JSON among them; what is then stored."""
    with closing(Database(with_driver(url))) as database:
        migrate(database)
        upload = upload_of(read_graph(shipped_graph("vgg16")))
        with database.write() as session:
            create_key(session, "acme", ("read",))
            add_graph(session, "acme", upload.id, upload.canonical, upload.summary)
    return contents(url)


def contents(url: str) -> dict[str, list[str]]:
    with closing(Database(with_driver(url))) as database, database.engine.connect() as connection:
        return {
            table.name: sorted(repr(tuple(row)) for row in connection.execute(select(table)))
            for table in tables()
        }


def run(command: list[str], url: str, folder: Path) -> None:
    assert command[0] == "shardwise"
    environment = {**os.environ, "SHARDWISE_DATABASE_URL": url}
    done = shardwise(*command[1:], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    some(
        [("sqlite", "postgresql"), ("postgresql", "sqlite"), ("sqlite", "sqlite")],
        lambda way: way == ("sqlite", "postgresql"),
    ),
)
def test_the_commands_as_written(urls: dict[str, str], old: str, new: str, tmp_path: Path) -> None:
    before = fill(urls[f"old {old}"])
    backup, *rest = commands()
    assert [c[1] for c in (backup, *rest)] == ["backup", "migrate", "restore"]
    run(backup, urls[f"old {old}"], tmp_path)
    for command in rest:
        run(command, urls[f"new {new}"], tmp_path)
    assert before["graph_blobs"]
    assert contents(urls[f"new {new}"]) == before


def test_the_databases_own_ways(urls: dict[str, str], tmp_path: Path) -> None:
    """`pg_dump` and SQLite's `.backup`, which the page names."""
    assert "`pg_dump` and SQLite's `.backup` work as well" in section("Backup")
    before = fill(urls["old sqlite"])
    with (
        closing(sqlite3.connect(tmp_path / "old.sqlite")) as old,
        closing(sqlite3.connect(tmp_path / "new.sqlite")) as new,
    ):
        old.backup(new)  # the shell's `.backup` is this call
    assert contents(urls["new sqlite"]) == before
    before = fill(urls["old postgresql"])
    dump = tmp_path / "store.dump"
    for arguments in (
        ["pg_dump", "-Fc", "-f", str(dump), urls["old postgresql"]],
        ["pg_restore", "-d", urls["new postgresql"], str(dump)],
    ):
        subprocess.run([postgres_program(arguments[0]), *arguments[1:]], check=True)
    assert contents(urls["new postgresql"]) == before
    run(["shardwise", "migrate"], urls["new postgresql"], tmp_path)
