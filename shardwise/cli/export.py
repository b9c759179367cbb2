"""export: what starts the hosts of a plan or a pipeline, or the configuration of the trainer that
runs it."""

from __future__ import annotations

import sys

import click

from shardwise.cli.advisor import given_plan, server_options
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note
from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.files import write_whole
from shardwise.outfiles import check_output
from shardwise.schedulers.formats import FORMS, JSON, PLAN_FORMS, export_plan
from shardwise.trainers.formats import TRAINERS, write_for


@click.command()
@click.argument("plan")
@click.option(
    "--format", "form", type=click.Choice(PLAN_FORMS), help="The scheduler that reads it."
)
@click.option(
    "--to", "trainer", type=click.Choice(list(TRAINERS)), help="The trainer that runs the plan."
)
@click.option("-o", "--output", help="The file to write. Without it the text is printed.")
@click.option(
    "--gpu-type",
    help="What the scheduler calls the GPUs; of several kinds by group, such as "
    "v100=V100,p100=P100.",
)
@server_options
@json_option
def export(
    plan: str,
    form: str | None,
    trainer: str | None,
    output: str | None,
    gpu_type: str | None,
    server: str | None,
    key_file: str | None,
    as_json: bool,
) -> None:
    """Write what starts a plan's hosts, or a trainer's configuration.

    PLAN: a file of a plan or a pipeline, or with --server an id.
    """
    if (form is None) == (trainer is None):
        raise BadInput("give one of --format and --to", field="to", expected="one of them")
    check_output(output)
    document = given_plan(plan, server, key_file)
    if trainer is not None:
        _to_trainer(document, trainer, output, as_json)
    elif form is not None:
        _to_scheduler(document, form, gpu_type, output, as_json)


def _to_scheduler(
    plan: Plan, form: str, gpu_type: str | None, output: str | None, as_json: bool
) -> None:
    text = export_plan(plan, form, gpu_type=gpu_type)
    if output is not None:
        write_whole(output, text.encode())
    elif as_json and FORMS[form].media_type != JSON:
        emit({"script": text})
    else:
        sys.stdout.write(text)


def _to_trainer(plan: Plan, trainer: str, output: str | None, as_json: bool) -> None:
    """Writes or prints a trainer's configuration, and notes what it cannot say."""
    written = write_for(plan, trainer)
    if output is not None:
        write_whole(output, written.text.encode())
    if as_json:
        emit({"trainer": trainer, "text": written.text, "unsaid": written.unsaid})
        return
    if output is None:
        sys.stdout.write(written.text)
    for sentence in written.unsaid:
        note(f"not in the file: {sentence}")
