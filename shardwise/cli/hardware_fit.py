"""hardware fit: HeteroG's linear fits in place of interpolation, and how far both are off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note, say, table
from shardwise.outfiles import check_output, write_json
from shardwise.texts import counted

if TYPE_CHECKING:
    from shardwise.hardware.held_out import Comparison, HeldOut

SCHEMA = "shardwise.hardware-fit/1"
TITLE = "relative errors (median, p90)"
COLUMNS = ("held out", "interpolation", "p90", "linear", "p90")


@click.command()
@click.argument("name", metavar="PROFILE")
@click.option("-o", "--output", help="The fitted profile's file. Without it only errors are shown.")
@json_option
def fit(name: str, output: str | None, as_json: bool) -> None:
    """A profile with linear fits in place of interpolation, and the errors of both.

    Each operator's time becomes a line over the batch, each collective's one over bytes
    (HeteroG §3.3; all_reduce the larger of two). Errors are relative, each measured time predicted
    from the others.
    """
    from shardwise.hardware import (
        hardware_document,
        held_out_errors,
        linear_fit,
        load_hardware,
    )

    check_output(output)
    profile = load_hardware(name)
    fitted = linear_fit(profile)
    errors = held_out_errors(profile)
    if output is not None:
        write_json(hardware_document(fitted), output)
    if as_json:
        document = {"schema": SCHEMA, "name": profile.name, "of": profile.id}
        emit(document | msgspec.to_builtins(errors) | {"hardware": hardware_document(fitted)})
        return
    _show(profile.name, errors)
    if output is not None:
        say(f"wrote {output}")


def _show(name: str, errors: HeldOut) -> None:
    from shardwise.hardware.lines import LEAST

    if errors.all_operators is not None:
        several = len({row.device for row in errors.operators}) > 1
        rows = [
            (
                f"{row.kind} {row.direction}" + (f" on {row.device}" if several else ""),
                *_cells(row.errors),
            )
            for row in errors.operators
        ]
        rows.append(("all operators", *_cells(errors.all_operators)))
        table(f"operators of {name}: {TITLE}", ("operator", *COLUMNS), rows)
    if errors.all_collectives is not None:
        rows = [(row.operation, *_cells(row.errors)) for row in errors.collectives]
        rows.append(("all collectives", *_cells(errors.all_collectives)))
        table(f"collectives of {name}: {TITLE}", ("operation", *COLUMNS), rows)
    for count, noun, over in (
        (errors.calls_without_line, "call", "batches"),
        (errors.tables_without_line, "collective table", "sizes"),
    ):
        if count:
            what = counted(count, noun)
            note(f"note: {what} without a line: measured at fewer than {LEAST} {over}")


def _cells(errors: Comparison) -> tuple[str, ...]:
    quantiles = (
        errors.interpolation.median, errors.interpolation.p90, errors.linear.median,
        errors.linear.p90,
    )  # fmt: skip
    return (str(errors.held_out), *(f"{value:.1%}" for value in quantiles))
