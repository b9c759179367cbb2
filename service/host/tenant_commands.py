"""The commands `tenants` and `audit`, which `shardwise` finds by entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.base.archive import tar_gz
from service.base.durations import is_duration, moment_of, seconds_of
from service.host.command_options import opened, settings_options
from service.host.limit_command import limit_command
from service.host.shell_audit import record_by_shell
from service.store.audit import AuditFilter, audit_document, list_audit
from service.store.database import clock
from service.store.keys import LOCAL_TENANT, make_tenant
from service.store.pages import Place
from service.store.tables import Key, Tenant
from service.store.tenant_admin import find_tenant, tenant_document, usage_of
from service.store.tenant_deletion import begin_deletion
from service.store.tenant_export import tenant_files
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note, table
from shardwise.errors import BadInput
from shardwise.files import private_file

AT_ONCE = 500


@click.group()
def tenants() -> None:
    """List, make, limit, export and delete tenants."""


@tenants.command("list")
@settings_options
@json_option
def list_(as_json: bool, **flags: Any) -> None:
    """List all tenants, with what they use."""
    with opened(**flags) as database, database.read() as session:
        rows = session.scalars(select(Tenant).order_by(Tenant.created_at, Tenant.id)).all()
        documents = [{**tenant_document(row), "usage": usage_of(session, row.id)} for row in rows]
    if as_json:
        emit({"schema": "shardwise.tenants/1", "tenants": documents})
        return
    shown = ("keys", "graphs", "stored_bytes", "jobs", "launches", "agents")
    table(
        "tenants",
        ("tenant", "state", *shown),
        [(t["id"], t["state"], *(str(t["usage"][name]) for name in shown)) for t in documents],
    )


@tenants.command("create")
@click.argument("tenant")
@settings_options
@json_option
def create(tenant: str, as_json: bool, **flags: Any) -> None:
    """Make a tenant, unless it exists; `keys create` makes one too."""
    with opened(**flags) as database, database.write() as session:
        make_tenant(session, tenant)
        record_by_shell(session, tenant, "tenants.create", f"/v1/tenants/{tenant}", 201)
        document = tenant_document(find_tenant(session, tenant))
    if as_json:
        emit(document)
    else:
        note(f"{tenant} exists")


tenants.add_command(limit_command)


@tenants.command("export")
@click.argument("tenant")
@click.argument("file")
@settings_options
@json_option
def export(tenant: str, file: str, as_json: bool, **flags: Any) -> None:
    """Write all that a tenant has to FILE, a tar.gz of JSON; the service may keep running."""
    with opened(**flags) as database:
        with database.write() as session:
            find_tenant(session, tenant)
            record_by_shell(session, tenant, "tenants.export", f"/v1/tenants/{tenant}/export")
            at = clock(session)
        with private_file(Path(file)) as out:
            size = sum(out.write(piece) for piece in tar_gz(tenant_files(database, tenant), at))
    if as_json:
        emit({"schema": "shardwise.exported/1", "tenant": tenant, "file": file, "bytes": size})
    else:
        note(f"{size} bytes of {tenant} in {file}")


@tenants.command("delete")
@click.argument("tenant")
@click.option("--yes", "confirmed", help="The tenant's name, to confirm.", metavar="TENANT")
@settings_options
@json_option
def delete(tenant: str, confirmed: str | None, as_json: bool, **flags: Any) -> None:
    """Delete a tenant with all that it has; a worker removes it within minutes."""
    if confirmed != tenant:
        raise BadInput("not confirmed", field="--yes", expected=f"--yes {tenant}")
    with opened(**flags) as database, database.write() as session:
        row = find_tenant(session, tenant)
        if tenant == LOCAL_TENANT:
            raise BadInput(
                f"{tenant} is the tenant of services without keys",
                field="tenant",
                expected="another name",
            )
        others = select(func.count()).where(Key.tenant_id != tenant, Key.agent_id.is_(None))
        if not session.scalar(others):
            raise BadInput(
                "no other tenant has a key, and without keys a service is open to its host",
                field="tenant",
                expected="first `shardwise keys create` for another tenant",
            )
        begin_deletion(session, row, LOCAL_TENANT)
        # Not in the tenant's own audit, which goes with it.
        record_by_shell(session, LOCAL_TENANT, "tenants.delete", f"/v1/tenants/{tenant}", 202)
        document = tenant_document(row)
    if as_json:
        emit(document)
    else:
        note(f"{tenant} is disabled; a worker removes what it has")


@click.command()
@click.option("--tenant", help="Only of this tenant; by default of all.")
@click.option("--since", help="Only from then on: a duration (7d, 12h) or a date.")
@click.option("--until", help="Only before then: a duration or a date.")
@click.option("--action", help="Only this action (`keys.create`), or its first word (`keys`).")
@settings_options
@json_option
def audit(
    tenant: str | None,
    since: str | None,
    until: str | None,
    action: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show who changed what, newest first, as lines of JSON (with --json as one document)."""
    lines = []
    with opened(**flags) as database:
        with database.read() as session:
            wanted = AuditFilter(
                action, since=_ago(session, since, "since"), until=_ago(session, until, "until")
            )
        place: Place | None = None
        while True:
            with database.read() as session:
                rows = list_audit(session, tenant, wanted, place, AT_ONCE)
            for row in rows[:AT_ONCE]:
                if as_json:
                    lines.append(audit_document(row))
                else:
                    emit(audit_document(row))
            if len(rows) <= AT_ONCE:
                break
            place = (rows[AT_ONCE - 1].at, rows[AT_ONCE - 1].id)
    if as_json:
        emit({"schema": "shardwise.audit-lines/1", "lines": lines})


def _ago(session: Session, text: str | None, field: str) -> float | None:
    """Returns a duration before now, by the database's clock, or a date, in seconds since 1970."""
    if text is None:
        return None
    return clock(session) - seconds_of(text, field) if is_duration(text) else moment_of(text, field)
