"""Migrations on both databases: up, compared with the tables, down; unknown schemas refused."""

from __future__ import annotations

import gc
import json
import zlib
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from harness.service.service_harness import App, new_database
from service.store import leases
from service.store.database import Database
from service.store.schema import alembic_config, current_revision, migrate, require_schema
from shardwise.errors import BadInput


def test_up_check_down_up(database: Database) -> None:
    config = alembic_config(database)
    with pytest.raises(BadInput, match="the schema is missing"):
        require_schema(database)
    migrate(database)
    require_schema(database)
    command.check(config)  # raises when the tables differ from what the migrations make
    migrate(database)
    command.downgrade(config, "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    migrate(database)
    require_schema(database)


def test_tokens_that_were_used_stay_so(database: Database) -> None:
    """Over 0004, which counts uses, and back, where there are none."""
    config = alembic_config(database)
    command.upgrade(config, "0003")
    columns = "token_hash, tenant_id, name, created_at, expires_at, used_at"
    with database.write() as session:
        session.execute(text("INSERT INTO tenants (id, created_at, limits) VALUES ('t', 1, '{}')"))
        for row in ("('a', 't', '', 1, 9e9, NULL)", "('b', 't', '', 1, 9e9, 5)"):
            session.execute(text(f"INSERT INTO enrolments ({columns}) VALUES {row}"))
    uses = text("SELECT uses, used, used_at FROM enrolments ORDER BY token_hash")
    migrate(database)
    with database.write() as session:
        assert session.execute(uses).all() == [(1, 0, None), (1, 1, 5.0)]
        session.execute(text("UPDATE enrolments SET uses = 3, used = 1 WHERE token_hash = 'a'"))
    command.downgrade(config, "0003")
    with database.read() as session:
        left = session.scalars(text("SELECT used_at IS NULL FROM enrolments")).all()
    assert not any(left), "a token that was used at all is used up: never too many"


def test_sizes_are_known_and_questions_written_out_again(database: Database) -> None:
    """Over 0006, after which questions may refer to a blob, and back, where all are whole."""
    config = alembic_config(database)
    command.upgrade(config, "0004")
    question = {"kind": "frontier", "hardware": {"name": "h", "levels": [1, 2]}, "gpus": 1}
    job = "state, stage, progress, cancel_requested, attempts, rung_at, created_at, request_id"
    with database.write() as session:

        def run(statement: str, **values: object) -> None:
            session.execute(text(statement), values)

        run("INSERT INTO tenants (id, created_at, limits) VALUES ('t', 1, '{}')")
        run(
            "INSERT INTO results (tenant_id, content_id, kind, graph_id, created_at, content, etag)"
            " VALUES ('t', 'c', 'frontier', 'g', 1, :content, '')",
            content=b"\x00" * 77,
        )
        run(
            "INSERT INTO hardware (tenant_id, hardware_id, created_at, name, document)"
            " VALUES ('t', 'h', 1, 'h', :document)",
            document=json.dumps({"name": "h" * 50}),
        )
        run(
            "INSERT INTO launches (id, tenant_id, kind, state, reason, request, plan, summary,"
            " attempt, created_at, log_lines, log_bytes, log_dropped, request_id)"
            " VALUES ('l', 't', 'run', 'done', '', '{}', :plan, '{}', 0, 1, 0, 0, 0, 'r')",
            plan=b"p" * 30,
        )
        run(
            "INSERT INTO assignments (id, tenant_id, launch_id, attempt, agent_id, agent_name,"
            " node_rank, slots, state, reason, stopping, heard, created_at)"
            " VALUES ('a', 't', 'l', 1, 'x', 'x', 0, 1, 'done', '', :no, :no, 1)",
            no=False,
        )
        run(
            f"INSERT INTO jobs (id, tenant_id, kind, content_id, graph_id, question, {job})"
            " VALUES ('j', 't', 'frontier', 'c', 'g', :question, 'queued', '', 0, :no, 0, 1, 1,"
            " 'r')",
            question=json.dumps(question),
            no=False,
        )
    migrate(database)
    blob = zlib.compress(json.dumps({"name": "large"}).encode())
    with database.write() as session:
        for table, size in (("results", 77), ("hardware", 62), ("launches", 32)):
            assert session.scalars(text(f"SELECT size_bytes FROM {table}")).all() == [size]
        claim = leases.claim_next(session, 30.0, 3)
        assert claim is not None and claim.question == question, "a whole question stays one"
        session.execute(
            text("INSERT INTO question_blobs VALUES ('b', :content)"), {"content": blob}
        )
        session.execute(
            text("UPDATE jobs SET question = :question, blob_id = 'b'"),
            {"question": json.dumps({**question, "hardware": {"name": "large", "blob": "b"}})},
        )
    command.downgrade(config, "0004")
    with database.read() as session:
        (stored,) = session.scalars(text("SELECT question FROM jobs")).all()
        stored = json.loads(stored) if isinstance(stored, str) else stored
        assert stored == {**question, "hardware": {"name": "large"}}
        assert session.scalars(text("SELECT id FROM assignments")).all() == ["a"]
    migrate(database)
    require_schema(database)
    command.check(config)


def test_a_newer_schema_is_refused(database: Database) -> None:
    migrate(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        session.execute(text("UPDATE schema_floor SET revision = '9998'"))
    assert current_revision(database) == "9999"
    for act in (migrate, require_schema):
        with pytest.raises(BadInput, match="revision 9999, which this release does not know"):
            act(database)


def test_a_newer_schema_on_which_this_release_works_is_left_alone(database: Database) -> None:
    migrate(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for act in (migrate, require_schema):
        act(database)
    assert current_revision(database) == "9999"


def test_production_does_not_migrate_unasked(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    with new_database(postgres_url) as url:
        variables = {"database_url": url, "redis_url": redis_url, "port": "0"}
        for name in ("serve", "worker"):
            app = App(tmp_path, name, **variables)
            assert app.process.wait(30) == 2
            assert "the schema is missing" in app.log.read_text()
            app.stop()
        app = App(tmp_path, "migrate", **variables)
        assert app.process.wait(30) == 0
        app.stop()


def test_looking_at_the_schema_keeps_nothing(database: Database) -> None:
    """Probes and workers look every few seconds, for months."""
    migrate(database)
    require_schema(database)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        require_schema(database)
    gc.collect()
    assert len(gc.get_objects()) - before < 500
