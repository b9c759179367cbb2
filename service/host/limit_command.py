"""The command `limit`, of the groups `keys` and `tenants`."""

from __future__ import annotations

from typing import Any

import click

from service.host.command_options import opened, settings_options
from service.host.shell_audit import record_by_shell
from service.store.keys import set_limit
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note
from shardwise.sizes import parse_amount


@click.command("limit")
@click.argument("tenant")
@click.argument("limit")
@click.argument("value", required=False)
@settings_options
@json_option
def limit_command(tenant: str, limit: str, value: str | None, as_json: bool, **flags: Any) -> None:
    """Give a tenant its own value of a limit; without VALUE, the settings apply again."""
    number = None if value is None else parse_amount(value, "value")
    with opened(**flags) as database, database.write() as session:
        set_limit(session, tenant, limit, number)
        record_by_shell(session, tenant, "tenants.limit", f"/v1/tenants/{tenant}")
    if as_json:
        emit({"schema": "shardwise.limit/1", "tenant": tenant, "limit": limit, "value": number})
    else:
        note(f"{tenant}: {limit} is {'the settings' if value is None else value}")
