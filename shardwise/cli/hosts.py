"""hosts: which hosts a plan on several kinds needs, also as a scheduler asks for them."""

from __future__ import annotations

import sys

import click
import msgspec

from shardwise.advise.plan import read_plan
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, table
from shardwise.errors import BadInput
from shardwise.schedulers.mixed import FORMS, export_hosts, required_hosts


@click.command()
@click.argument("plan_file")
@click.option("--format", "form", help=f"As a scheduler asks for them: {' or '.join(FORMS)}.")
@click.option(
    "--gpu-type",
    multiple=True,
    help="What the scheduler calls a kind: KIND=NAME; again for other kinds.",
)
@json_option
def hosts(plan_file: str, form: str | None, gpu_type: tuple[str, ...], as_json: bool) -> None:
    """The hosts that PLAN_FILE needs, in the order of its ranks."""
    plan = msgspec.to_builtins(read_plan(plan_file))
    if form is None:
        needed = required_hosts(plan)
        if as_json:
            emit(msgspec.to_builtins(needed))
            return
        rows = [(str(n), host.kind, str(host.ranks)) for n, host in enumerate(needed)]
        table(f"hosts of {plan['graph_name']}", ("node", "kind", "ranks"), rows)
        return
    names = {}
    for text in gpu_type:
        kind, equals, name = text.partition("=")
        if not (kind and equals and name):
            raise BadInput(f"got {text[:40]!r}", field="gpu-type", expected="KIND=NAME")
        names[kind] = name
    sys.stdout.write(export_hosts(plan, form, names))
