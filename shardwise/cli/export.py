"""export: what starts a plan's hosts, in a scheduler's form."""

from __future__ import annotations

import sys

import click

from shardwise.cli.advisor import server_options, service
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit
from shardwise.schedulers.formats import FORMS, JSON, PLAN_FORMS, export_plan

PLAN_ID = "sha256:"


@click.command()
@click.argument("plan")
@click.option(
    "--format", "form", required=True, type=click.Choice(PLAN_FORMS), help="What reads it."
)
@click.option(
    "--gpu-type",
    help="What the scheduler calls the GPUs; of several kinds by group, such as "
    "v100=V100,p100=P100.",
)
@server_options
@json_option
def export(
    plan: str,
    form: str,
    gpu_type: str | None,
    server: str | None,
    key_file: str | None,
    as_json: bool,
) -> None:
    """Write what starts a plan's hosts. PLAN: a file, or with --server an id."""
    from shardwise.advise import read_plan

    if server and plan.startswith(PLAN_ID):
        with service(server, key_file) as client:
            document = client.plan_of(plan)
    else:
        document = read_plan(plan)
    text = export_plan(document, form, gpu_type=gpu_type)
    if as_json and FORMS[form].media_type != JSON:
        emit({"script": text})
    else:
        sys.stdout.write(text)
