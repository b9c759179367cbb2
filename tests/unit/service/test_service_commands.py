"""`--json` of the commands that look after a database."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

import click
from click.testing import CliRunner

from service.base.archive import read_files
from service.base.settings import Settings
from service.host.commands import backup, keys, migrate, restore
from service.host.shell_audit import shell_actor
from service.host.tenant_commands import audit, tenants
from service.store.database import Database
from service.store.gangs import rules_of
from service.store.schema import known_revisions
from service.store.sessions import open_session
from service.store.tenant_deletion import sweep_deletions
from shardwise.errors import ShardwiseError


def asked(command: click.Command, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_each_gives_one_document(tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path / name}.sqlite" for name in ("old", "new"))
    migrated = asked(migrate, "--database-url", old)
    assert migrated == {"schema": "shardwise.migrated/1", "revision": migrated["revision"]}
    assert migrated["revision"] in known_revisions()
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


def failed(command: click.Command, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, ShardwiseError), result.output
    return str(result.exception)


def test_keys_end_and_are_rotated(tmp_path: Path) -> None:
    url = ("--database-url", f"sqlite:///{tmp_path / 'one'}.sqlite")
    asked(migrate, *url)
    created = asked(keys, "create", "--tenant", "t", "--name", "ci", "--expires", "90d", *url)
    dated = asked(keys, "create", "--tenant", "t", "--expires", "2030-01-01", *url)
    assert dated["expires_at"] == "2030-01-01T00:00:00.000Z"
    new = asked(keys, "rotate", created["id"], "--overlap", "2h", *url)
    assert new["replaces"] == created["id"] and new["key"] != created["key"]
    rows = {key["id"]: key for key in asked(keys, "list", *url)["keys"]}
    assert rows[new["id"]]["name"] == "ci"
    assert rows[created["id"]]["expires_at"] < rows[new["id"]]["expires_at"]
    assert "was rotated to" in failed(keys, "rotate", created["id"], *url)
    at_once = asked(keys, "rotate", new["id"], "--overlap", "0", *url)
    rows = {key["id"]: key["state"] for key in asked(keys, "list", *url)["keys"]}
    assert (rows[new["id"]], rows[at_once["id"]]) == ("revoked", "active")
    for expires in ("soon", "-5d", "1990-01-01", "0d", "900000d"):
        assert "expires" in failed(keys, "create", "--tenant", "t", "--expires", expires, *url)
    assert "no key" in failed(keys, "rotate", "0" * 16, *url)


def test_tenants_from_the_shell(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'one'}.sqlite"
    url = ("--database-url", where)
    asked(migrate, *url)
    assert asked(tenants, "create", "t", *url)["state"] == "active"
    asked(keys, "create", "--tenant", "t", *url)
    assert asked(tenants, "limit", "t", "max_stored_bytes", "1GB", *url)["value"] == 1e9
    (tenant,) = asked(tenants, "list", *url)["tenants"]
    assert (tenant["limits"], tenant["usage"]["keys"]) == ({"max_stored_bytes": 1e9}, 1)
    file = tmp_path / "t.tar.gz"
    assert asked(tenants, "export", "t", str(file), *url)["bytes"] == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert "end.json" in read_files(file.read_bytes())
    assert "--yes" in failed(tenants, "delete", "t", *url)
    assert "no other tenant has a key" in failed(tenants, "delete", "t", "--yes", "t", *url)
    asked(keys, "create", "--tenant", "ops", "--scope", "operator", *url)
    assert asked(tenants, "delete", "t", "--yes", "t", *url)["state"] == "deleting"
    database = Database(where)
    while not sweep_deletions(database, rules_of(Settings()), 0.0):
        pass
    database.close()
    assert [one["id"] for one in asked(tenants, "list", *url)["tenants"]] == ["ops"]
    result = CliRunner().invoke(audit, ["--since", "1h", *url], catch_exceptions=False)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    told_by = [(line["tenant"], line["action"], line["actor"]) for line in lines]
    assert told_by == [
        ("local", "tenants.deleted", None),
        ("local", "tenants.delete", shell_actor()),
        ("ops", "keys.create", shell_actor()),
    ]
    assert asked(audit, "--action", "tenants", *url)["lines"] == lines[:2]
    assert asked(audit, "--until", "1h", *url)["lines"] == []


def test_what_a_shell_changes_is_in_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"sqlite:///{tmp_path / 'one'}.sqlite"
    url = ("--database-url", where)
    asked(migrate, *url)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="o p\n" + "x" * 99))
    asked(tenants, "create", "t", *url)
    first = asked(keys, "create", "--tenant", "t", *url)["id"]
    second = asked(keys, "rotate", first, *url)["id"]
    asked(keys, "revoke", second, *url)
    asked(tenants, "limit", "t", "max_queued", "5", *url)
    asked(keys, "limit", "t", "max_queued", *url)
    asked(keys, "enrol", "--tenant", "t", *url)
    asked(tenants, "export", "t", str(tmp_path / "t.tar.gz"), *url)
    database = Database(where)
    with database.write() as session:
        for tenant in ("t", "u", "u"):
            open_session(session, "a/b c", "Ada", [], tenant, 60.0)
    database.close()
    assert asked(keys, "sign-out", "a/b c", *url)["sessions"] == 3
    assert "no key" in failed(keys, "revoke", second, *url)  # and no line
    lines = asked(audit, *url)["lines"][::-1]
    assert [(line["action"], line["target"], line["status"]) for line in lines] == [
        ("tenants.create", "/v1/tenants/t", 201),
        ("keys.create", f"/v1/keys/{first}", 201),
        ("keys.rotate", f"/v1/keys/{first}", 201),
        ("keys.revoke", f"/v1/keys/{second}", 200),
        ("tenants.limit", "/v1/tenants/t", 200),
        ("tenants.limit", "/v1/tenants/t", 200),
        ("agents.token", "/v1/agents/tokens", 201),
        ("tenants.export", "/v1/tenants/t/export", 200),
        *[("sessions.delete", "sessions of a/b c", 200)] * 2,
    ]
    assert {line["tenant"] for line in lines[:-2]} == {"t"}
    assert {line["tenant"] for line in lines[-2:]} == {"t", "u"}
    assert {line["actor"] for line in lines} == {f"shell:o%20p%0A{'x' * 56}"}
    assert {line["key"] for line in lines} == {None}


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert shell_actor() == f"shell:{os.getuid()}"
