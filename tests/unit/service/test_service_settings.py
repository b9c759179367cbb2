"""Settings: precedence, units, refusals, and that the documented list is the code's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from service.base import limits
from service.base.redact import redacted
from service.base.settings import Settings, environment_of, load_settings
from service.store.keys import LIMITS
from shardwise.errors import BadInput

ROOT = Path(__file__).parents[3]


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('port = 1\nhost = "::1"\nmax_queued = 7\nmax_body_bytes = "1MiB"\n')
    environment = {"SHARDWISE_PORT": "2", "SHARDWISE_HOST": "127.0.0.2"}
    loaded = load_settings({"port": 3, "host": None}, environment, str(file))
    assert (loaded.port, loaded.host, loaded.max_queued) == (3, "127.0.0.2", 7)
    assert loaded.max_body_bytes == 2**20
    assert loaded.lease_s == Settings().lease_s


def test_platforms_own_variables() -> None:
    environment = {"DATABASE_URL": "postgres://u@h/d", "REDIS_URL": "redis://h"}
    loaded = load_settings({}, environment)
    assert loaded.database == "postgresql+psycopg://u@h/d"
    assert not loaded.embedded
    ours = {**environment, "SHARDWISE_REDIS_URL": "redis://ours"}
    assert load_settings({}, ours).redis_url == "redis://ours"


def test_another_process_gets_the_same() -> None:
    original = Settings(port=5, max_body_bytes=10, queue="q", lease_s=9.5)
    assert load_settings({}, environment_of(original)) == original


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"SHARDWISE_PORT": "x"}, "SHARDWISE_PORT"),
        ({"SHARDWISE_PORT": "70000"}, "port"),
        ({"SHARDWISE_LEASE_S": "nan"}, "lease_s"),
        ({"SHARDWISE_LEASE_S": "-1"}, "lease_s"),
        ({"SHARDWISE_MAX_BODY_BYTES": "1 MB x"}, "SHARDWISE_MAX_BODY_BYTES"),
        ({"SHARDWISE_LOG_LEVEL": "loud"}, "log_level"),
        ({"SHARDWISE_HEARTBEAT_S": "20"}, "heartbeat_s"),
        ({"DATABASE_URL": "mysql://x"}, "database_url"),
        ({"DATABASE_URL": "hunter2"}, "database_url"),
        ({"DATABASE_URL": "postgresql://u:hunter2@h:port/d"}, "database_url"),
        ({"DATABASE_URL": "postgresql://u:/hunter2@h/d"}, "database_url"),
        ({"DATABASE_URL": "sqlite://u:hunter2@h/d"}, "database_url"),
        ({"REDIS_URL": "hunter2"}, "redis_url"),
        ({"REDIS_URL": "redis://u:hunter2@h:port/0"}, "redis_url"),
    ],
)
def test_what_is_refused(environment: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_settings({}, environment)
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"/v1/graphs/sw_{'a' * 16}_{'b' * 43}?x", f"/v1/graphs/sw_{'a' * 16}_***?x"),
        (f"a swe_{'b-_' * 14}c.", "a swe_***."),
        ("to redis://u:p%40ss@h:1/0 and redis://:p@h", "to redis://u:***@h:1/0 and redis://:***@h"),
        ("sw_ swept postgresql://user@db/x a@b", "sw_ swept postgresql://user@db/x a@b"),
    ],
)
def test_secrets_in_texts(text: str, expected: str) -> None:
    assert redacted(text) == expected


def test_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    for text, field in (("colour = 1", "colour"), ("port = true", f"{file}: port"), ("x", None)):
        file.write_text(text)
        with pytest.raises(BadInput) as refused:
            load_settings({}, {}, str(file))
        assert refused.value.field == field
    with pytest.raises(BadInput):
        load_settings({}, {"SHARDWISE_CONFIG": str(tmp_path / "none")})


def test_every_limit_is_listed_with_its_scope() -> None:
    """A number among the settings is a limit, whose scope docs/security.md says, or bounds nothing.

    If the tables differ, put `service.base.limits.documentation()` there.
    """
    numbers = {item.name for item in fields(Settings) if type(item.default) in (int, float)}
    shared = {name for limit in limits.SHARED for name in limit.settings}
    own = {name for names in limits.OWN.values() for name in names}
    assert shared | own | limits.NO_LIMITS == numbers
    assert not (shared | own) & limits.NO_LIMITS
    in_the_database = {*limits.OWN["a tenant, in the database"], *limits.OWN["a job"], "weight"}
    assert set(LIMITS) <= in_the_database
    assert limits.documentation() in (ROOT / "docs" / "security.md").read_text()
