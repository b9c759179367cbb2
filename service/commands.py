"""The commands `serve`, `migrate` and `keys`, which `shardwise` finds by entry point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from service.backup import read_backup, write_backup
from service.command_options import setting_option, settings_from, settings_options
from service.logs import set_up_logs
from service.schema import current_revision, require_schema
from service.schema import migrate as bring_up
from service.serve import serve as run
from service.settings import parse_size
from service.store.database import Database
from service.store.enrolment import make_token
from service.store.ids import iso
from service.store.keys import LOCAL_TENANT, SCOPES, create_key, list_keys, revoke_key, set_limit
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note, say, table
from shardwise.errors import BadInput


@click.command()
@setting_option("host")
@setting_option("port", type=click.IntRange(0, 65535))
@click.option("--migrate", "may_migrate", is_flag=True, help="Bring PostgreSQL's schema up.")
@settings_options
@json_option
def serve(may_migrate: bool, as_json: bool, **flags: Any) -> None:
    """Run the service; without a Redis, with its own broker and worker."""

    settings = settings_from(**flags)

    def announce(url: str) -> None:
        if as_json:
            emit({"schema": "shardwise.serving/1", "url": url})
        else:
            say(f"serving on {url}")

    run(settings, may_migrate=may_migrate, announce=announce)


@click.command()
@settings_options
@json_option
def migrate(as_json: bool, **flags: Any) -> None:
    """Bring the database's schema to this release's."""

    settings = settings_from(**flags)
    set_up_logs(settings.log_level, settings.log_format)
    database = Database(settings.database)
    bring_up(database)
    revision = current_revision(database)
    database.close()
    if as_json:
        emit({"schema": "shardwise.migrated/1", "revision": revision})
    else:
        note("the schema is up to date")


@click.command()
@click.argument("file")
@settings_options
@json_option
def backup(file: str, as_json: bool, **flags: Any) -> None:
    """Write all that is stored to FILE; the service may run on."""
    with _opened(**flags) as database:
        counts = write_backup(database, Path(file))
    _counted("backup", counts, file, "in", as_json)


@click.command()
@click.argument("file")
@settings_options
@json_option
def restore(file: str, as_json: bool, **flags: Any) -> None:
    """Bring a backup into an empty database, of either kind; no service may use it yet."""
    with _opened(**flags) as database:
        counts = read_backup(database, Path(file))
    _counted("restored", counts, file, "from", as_json)


def _counted(kind: str, counts: dict[str, int], file: str, where: str, as_json: bool) -> None:
    if as_json:
        emit({"schema": f"shardwise.{kind}/1", "file": file, "rows": counts})
    else:
        note(f"{sum(counts.values())} rows of {len(counts)} tables {where} {file}")


@click.group()
def keys() -> None:
    """Make, list and revoke the service's keys."""


@keys.command("create")
@click.option("--tenant", required=True, help="Whose key it is.")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=("read", "submit"),
    show_default=True, help="What it allows.",
)  # fmt: skip
@click.option("--name", default="", help="What it is for.")
@click.option("--rate", type=click.FloatRange(min=0), help="Requests a second.")
@settings_options
@json_option
def create(
    tenant: str,
    scopes: tuple[str, ...],
    name: str,
    rate: float | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """A new key; it is shown this once."""

    database = _database(**flags)
    with database.write() as session:
        key = create_key(session, tenant, scopes, name, rate)
    if as_json:
        emit({"schema": "shardwise.key/1", "key": key, "tenant": tenant, "scopes": list(scopes)})
    else:
        say(key)
        note("keep it: it is stored as a hash only")


@keys.command("enrol")
@click.option("--tenant", default=LOCAL_TENANT, show_default=True, help="Whose agent it will be.")
@click.option("--name", default="", help="What the agent is called, if it does not say.")
@click.option(
    "--expires", "expires_s", type=float, default=3600.0, show_default=True, help="Seconds."
)
@click.option("--uses", type=int, default=1, show_default=True, help="How many agents it enrols.")
@settings_options
@json_option
def enrol(tenant: str, name: str, expires_s: float, uses: int, as_json: bool, **flags: Any) -> None:
    """A token with which an agent, or as many as --uses, may enrol; it is shown this once."""

    with _database(**flags).write() as session:
        token, expires_at = make_token(session, tenant, name, expires_s, uses=uses)
    if as_json:
        emit(
            {
                "schema": "shardwise.enrolment-token/1",
                "token": token,
                "tenant": tenant,
                "name": name,
                "uses": uses,
                "expires_at": iso(expires_at),
            }
        )
    else:
        say(token)
        note(f"it enrols {'1 agent' if uses == 1 else f'{uses} agents'}, until {iso(expires_at)}")


@keys.command("list")
@settings_options
@json_option
def list_(as_json: bool, **flags: Any) -> None:
    """All keys, without their secrets."""

    with _database(**flags).read() as session:
        found = list_keys(session)
    rows = [
        {
            "id": key.id,
            "tenant": key.tenant_id,
            "name": key.name,
            "scopes": key.scopes.split(","),
            "rate_per_s": key.rate_per_s,
            "created_at": iso(key.created_at),
            "revoked_at": iso(key.revoked_at),
        }
        for key in found
    ]
    if as_json:
        emit({"schema": "shardwise.keys/1", "keys": rows})
        return
    table(
        "keys",
        ("id", "tenant", "name", "scopes", "created", "revoked"),
        [
            (k.id, k.tenant_id, k.name, k.scopes, iso(k.created_at), iso(k.revoked_at) or "-")
            for k in found
        ],
    )


@keys.command("revoke")
@click.argument("key_id")
@settings_options
@json_option
def revoke(key_id: str, as_json: bool, **flags: Any) -> None:
    """Make a key worthless; a running service notices within seconds."""

    with _database(**flags).write() as session:
        revoke_key(session, key_id)
    if as_json:
        emit({"schema": "shardwise.key-revoked/1", "id": key_id})
    else:
        note(f"revoked {key_id}")


@keys.command("limit")
@click.argument("tenant")
@click.argument("limit")
@click.argument("value", required=False)
@settings_options
@json_option
def limit(tenant: str, limit: str, value: str | None, as_json: bool, **flags: Any) -> None:
    """Give a tenant its own value of a limit; without VALUE, the settings' again."""

    try:
        number = None if value is None else float(parse_size(value))
    except ValueError:
        raise BadInput(f"{value!r}", field="value", expected="a number or a size") from None
    with _database(**flags).write() as session:
        set_limit(session, tenant, limit, number)
    if as_json:
        emit({"schema": "shardwise.limit/1", "tenant": tenant, "limit": limit, "value": number})
    else:
        note(f"{tenant}: {limit} is {'the settings' if value is None else value}")


@contextmanager
def _opened(**flags: Any) -> Iterator[Database]:
    database = _database(**flags)
    try:
        yield database
    finally:
        database.close()


def _database(**flags: Any) -> Database:

    settings = settings_from(**flags)
    database = Database(settings.database)
    if not settings.database_url:
        bring_up(database)
    require_schema(database)
    return database
