"""The commands `serve`, `migrate` and `keys`, which `shardwise` finds by entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from sqlalchemy.orm import Session

from service.base.durations import is_duration, moment_of, seconds_of
from service.base.logs import set_up_logs
from service.host.backup import read_backup, write_backup
from service.host.command_options import opened, setting_option, settings_from, settings_options
from service.host.limit_command import limit_command
from service.host.shell_audit import record_by_shell
from service.store.database import Database, clock
from service.store.enrolment import make_token
from service.store.ids import iso
from service.store.key_admin import (
    end_after,
    find_key,
    is_in_force,
    key_document,
    key_state,
    renewed_until,
    successor,
)
from service.store.keys import LOCAL_TENANT, SCOPES, create_key, list_keys, revoke_key
from service.store.schema import current_revision
from service.store.schema import migrate as bring_up
from service.store.sessions import end_sessions
from service.store.tables import LoginSession
from shardwise.cli.arguments import json_option
from shardwise.cli.commands import not_installed
from shardwise.cli.output import emit, note, say, table
from shardwise.errors import BadInput, NotFound


@click.command()
@setting_option("host")
@setting_option("port", type=click.IntRange(0, 65535))
@setting_option("tls_cert")
@setting_option("tls_key")
@click.option("--migrate", "may_migrate", is_flag=True, help="Bring PostgreSQL's schema up.")
@settings_options
@json_option
def serve(may_migrate: bool, as_json: bool, **flags: Any) -> None:
    """Run the service; without a Redis, with its own broker and worker."""

    # Late: the other commands need no web framework, whose import takes most of their time.
    try:
        from service.host.serve import serve as run
    except ModuleNotFoundError as error:
        raise not_installed("serve", error) from None

    settings = settings_from(**flags)

    def announce(url: str) -> None:
        if as_json:
            emit({"schema": "shardwise.serving/1", "url": url})
        else:
            say(f"shardwise: the page is at {url}/")

    run(settings, may_migrate=may_migrate, announce=announce)


@click.command()
@settings_options
@json_option
def migrate(as_json: bool, **flags: Any) -> None:
    """Migrate the database to the schema of this release."""

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
    """Write all that is stored to FILE; the service may keep running."""
    with opened(**flags) as database:
        counts = write_backup(database, Path(file))
    _counted("backup", counts, file, "in", as_json)


@click.command()
@click.argument("file")
@settings_options
@json_option
def restore(file: str, as_json: bool, **flags: Any) -> None:
    """Load a backup into an empty database, of either kind; no service may use it yet."""
    with opened(**flags) as database:
        counts = read_backup(database, Path(file))
    _counted("restored", counts, file, "from", as_json)


def _counted(kind: str, counts: dict[str, int], file: str, where: str, as_json: bool) -> None:
    if as_json:
        emit({"schema": f"shardwise.{kind}/1", "file": file, "rows": counts})
    else:
        note(f"{sum(counts.values())} rows of {len(counts)} tables {where} {file}")


@click.group()
def keys() -> None:
    """Make, list, rotate and revoke the service's keys."""


@keys.command("create")
@click.option("--tenant", required=True, help="Whose key it is.")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=("read", "submit"),
    show_default=True, help="What it allows.",
)  # fmt: skip
@click.option("--name", default="", help="What it is for.")
@click.option("--rate", type=click.FloatRange(min=0), help="Requests a second.")
@click.option("--expires", help="When it ends: a duration (90d, 12h) or a date; by default never.")
@settings_options
@json_option
def create(
    tenant: str,
    scopes: tuple[str, ...],
    name: str,
    rate: float | None,
    expires: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Make a new key; it is shown only this once."""

    with opened(**flags) as database, database.write() as session:
        expires_at = None if expires is None else _moment(session, expires)
        key = create_key(session, tenant, scopes, name, rate, expires_at=expires_at)
        record_by_shell(session, tenant, "keys.create", f"/v1/keys/{key.split('_')[1]}", 201)
    if as_json:
        emit(
            {
                "schema": "shardwise.key/1",
                "key": key,
                "id": key.split("_")[1],
                "tenant": tenant,
                "scopes": list(scopes),
                "expires_at": iso(expires_at),
            }
        )
    else:
        say(key)
        until = "" if expires_at is None else f", and good until {iso(expires_at)}"
        note(f"keep it: it is stored as a hash only{until}")


@keys.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap", default="1h", show_default=True, help="How long the old key stays valid."
)
@settings_options
@json_option
def rotate(key_id: str, overlap: str, as_json: bool, **flags: Any) -> None:
    """Replace a key in force by a new one with the same name, scopes, rate and lifetime."""

    overlap_s = seconds_of(overlap, "overlap")
    with opened(**flags) as database, database.write() as session:
        old = find_key(session, None, key_id)
        if not is_in_force(session, old):
            raise NotFound(f"there is no key {key_id} in force")
        if (taken := successor(session, old)) is not None:
            raise BadInput(f"it was rotated to {taken}", field="key_id", expected="that one")
        expires_at = renewed_until(session, old)
        scopes = tuple(old.scopes.split(","))
        key = create_key(
            session, old.tenant_id, scopes, old.name, old.rate_per_s,
            expires_at=expires_at, replaces=old.id,
        )  # fmt: skip
        end_after(session, old, overlap_s)
        record_by_shell(session, old.tenant_id, "keys.rotate", f"/v1/keys/{old.id}", 201)
    if as_json:
        emit(
            {
                "schema": "shardwise.key/1",
                "key": key,
                "id": key.split("_")[1],
                "tenant": old.tenant_id,
                "scopes": list(scopes),
                "expires_at": iso(expires_at),
                "replaces": old.id,
            }
        )
    else:
        say(key)
        note(
            f"keep it: it is stored as a hash only; {old.id} ends {overlap} from now at the latest"
        )


def _moment(session: Session, text: str) -> float:
    """Returns a duration from now, by the database's clock, or a date, in seconds since 1970."""
    if is_duration(text):
        return clock(session) + seconds_of(text, "expires")
    return moment_of(text, "expires")


@keys.command("enrol")
@click.option("--tenant", default=LOCAL_TENANT, show_default=True, help="Whose agent it will be.")
@click.option("--name", default="", help="Name of the agent, if it does not give one.")
@click.option(
    "--expires", "expires_s", type=float, default=3600.0, show_default=True, help="Seconds."
)
@click.option("--uses", type=int, default=1, show_default=True, help="How many agents it enrols.")
@settings_options
@json_option
def enrol(tenant: str, name: str, expires_s: float, uses: int, as_json: bool, **flags: Any) -> None:
    """Make a token with which --uses agents (1) may enrol; it is shown only this once."""

    with opened(**flags) as database, database.write() as session:
        token, expires_at = make_token(session, tenant, name, expires_s, uses=uses)
        record_by_shell(session, tenant, "agents.token", "/v1/agents/tokens", 201)
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
    """List all keys, without their secrets."""

    with opened(**flags) as database, database.read() as session:
        rows = list_keys(session)
        at = clock(session)
    if as_json:
        emit({"schema": "shardwise.keys/1", "keys": [key_document(key, at) for key in rows]})
        return
    table(
        "keys",
        ("id", "tenant", "name", "scopes", "state", "created", "last used", "expires"),
        [
            (k.id, k.tenant_id, k.name, k.scopes, key_state(k, at), iso(k.created_at),
             iso(k.last_used_at) or "-", iso(k.expires_at) or "-")
            for k in rows
        ],
    )  # fmt: skip


@keys.command("revoke")
@click.argument("key_id")
@settings_options
@json_option
def revoke(key_id: str, as_json: bool, **flags: Any) -> None:
    """Revoke a key; a running service notices within seconds."""

    with opened(**flags) as database, database.write() as session:
        tenant = revoke_key(session, key_id)
        record_by_shell(session, tenant, "keys.revoke", f"/v1/keys/{key_id}")
    if as_json:
        emit({"schema": "shardwise.key-revoked/1", "id": key_id})
    else:
        note(f"revoked {key_id}")


@keys.command("sign-out")
@click.argument("subject")
@settings_options
@json_option
def sign_out(subject: str, as_json: bool, **flags: Any) -> None:
    """End all logins of a person, by the provider's subject; running services notice in seconds."""

    with opened(**flags) as database, database.write() as session:
        tenants = end_sessions(session, subject)
        for tenant in sorted({*tenants}):
            target = f"{LoginSession.__tablename__} of {subject}"
            record_by_shell(session, tenant, "sessions.delete", target)
    ended = len(tenants)
    if as_json:
        emit({"schema": "shardwise.signed-out/1", "subject": subject, "sessions": ended})
    else:
        sessions = "session" if ended == 1 else "sessions"
        note(f"ended {ended} {sessions} of {subject}")


keys.add_command(limit_command)
