"""calibrate."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.arguments import (
    REPLAYED,
    json_option,
    load_graph,
    options_from,
    other_search_options,
    sizes_options,
)
from shardwise.cli.output import emit, progress, say
from shardwise.outfiles import check_output, write_json
from shardwise.texts import seconds


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--gpus", required=True, type=click.IntRange(1), help="GPUs that ran the step.")
@click.option("--step", "step_s", required=True, type=float, help="Seconds that the step took.")
@click.option("-o", "--output", required=True, help="The profile file to write.")
@other_search_options
@json_option
@sizes_options
def calibrate(
    graph: str,
    hardware: str,
    gpus: int,
    step_s: float,
    output: str,
    as_json: bool,
    **search: Any,
) -> None:
    """Fit a profile to a step that you have measured.

    The strategy is the fastest under the options, so pin what you ran: --pin, --zero, --recompute,
    --micro-batches, --framework. What is fitted is the clock that large products sustain (without
    tables of products the share of the peak that they reach), or where the step waits for its
    host, the host's times.
    """
    from shardwise.answers.calibrate import calibrate as fit
    from shardwise.hardware import hardware_document, load_hardware

    check_output(output)
    options = options_from({**search, "objective": REPLAYED})
    with progress(search["quiet"] or as_json, stoppable=False) as listener:
        found = fit(
            load_graph(graph),
            load_hardware(hardware),
            gpus,
            step_s,
            options=options,
            progress=listener,
        )
    write_json(hardware_document(found.hardware), output)
    if as_json:
        emit(hardware_document(found.hardware))
        return
    say(
        f"{found.figure}: {found.before:.4g} → {found.after:.4g}; a step of {seconds(step_s)} was "
        f"predicted as {seconds(found.before_s)}, now as {seconds(found.after_s)}"
    )
    say(f"wrote {output}")
