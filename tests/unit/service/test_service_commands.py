"""`--json` of the commands that look after a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import click
from click.testing import CliRunner

from service.commands import backup, keys, migrate, restore
from service.schema import known_revisions


def asked(command: click.Command, *arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_each_gives_one_document(tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path / name}.sqlite" for name in ("old", "new"))
    made = asked(migrate, "--database-url", old)
    assert made == {"schema": "shardwise.migrated/1", "revision": made["revision"]}
    assert made["revision"] in known_revisions()
    asked(migrate, "--database-url", new)
    asked(keys, "create", "--tenant", "t", "--database-url", old)
    (key,) = asked(keys, "list", "--database-url", old)["keys"]
    limit = asked(keys, "limit", "t", "max_queued", "5", "--database-url", old)
    assert limit == {
        "schema": "shardwise.limit/1", "tenant": "t", "limit": "max_queued", "value": 5.0
    }  # fmt: skip
    revoked = asked(keys, "revoke", key["id"], "--database-url", old)
    assert revoked == {"schema": "shardwise.key-revoked/1", "id": key["id"]}
    file = str(tmp_path / "store.backup")
    written = asked(backup, file, "--database-url", old)
    assert written["file"] == file and sum(written["rows"].values()) >= 2
    assert asked(restore, file, "--database-url", new)["rows"] == written["rows"]
