"""explain: how a plan is split and what it costs, or what a trainer's configuration takes."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.advisor import given_plan, server_options
from shardwise.cli.arguments import (
    given_options,
    json_option,
    other_search_options,
    size_options,
)
from shardwise.cli.output import emit, say, table
from shardwise.cost.shares import shares_text
from shardwise.documents import Explanation
from shardwise.errors import BadInput
from shardwise.outfiles import check_output
from shardwise.pictures.figure import check_suffix
from shardwise.pictures.step import step_picture
from shardwise.step_sizes import StepSizes, sized
from shardwise.texts import gib, seconds

MOST_ROWS = 24
MOST_OTHERS = 5


@click.command()
@click.argument("plan", required=False)
@click.option(
    "--like",
    metavar="FILE",
    help="A trainer's configuration: PLAN is then a graph, and the answer is what the "
    "configuration takes and what to change (docs/trainers.md). Without PLAN the model that the "
    "file names is captured.",
)
@click.option("--hardware", help="With --like: built-in name, profile file, NAME*NODES.")
@click.option("--gpus", help="With --like: GPUs of the job.")
@click.option(
    "--plot", help="Of a plan or a pipeline: write a picture of the step, .html, .svg or .png."
)
@size_options
@other_search_options
@server_options
@json_option
def explain(
    plan: str | None,
    batch: int | None,
    seq: int | None,
    like: str | None,
    hardware: str | None,
    gpus: str | None,
    plot: str | None,
    server: str | None,
    key_file: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Which operator is split how, and what it costs.

    PLAN: a file with a plan or a pipeline, or with --server an id; with --like a graph, or nothing.
    """
    from shardwise.answers.explain import explain as explained

    sizes = StepSizes(batch, seq)
    if like is not None:
        if plan is None and sizes.asked:
            raise BadInput("the file has its own", field="--batch, --seq", expected="a graph")
        if hardware is None or gpus is None:
            raise BadInput("needs devices", field="--like", expected="--hardware and --gpus")
        if plot is not None:
            raise BadInput("cannot be combined with --like", field="--plot", expected="a plan")
        from shardwise.cli.pricing import explain_like

        given = given_options(search)
        graph = None if plan is None else sized(plan, sizes)
        explain_like(graph, like, hardware, gpus, server, key_file, as_json, search, given)
        return
    if plan is None:
        raise BadInput("missing", field="PLAN", expected="a plan, or --like FILE")
    if hardware is not None or gpus is not None or sizes.asked:
        raise BadInput(
            "apply only with --like",
            field="--hardware, --gpus, --batch, --seq",
            expected="--like FILE",
        )
    if plot is not None:
        check_suffix(plot)
        check_output(plot, "plot")
    document = given_plan(plan, server, key_file)
    described = explained(document)
    if plot is not None:
        step_picture(document).write(plot)
    if as_json:
        emit(described)
    else:
        explanation_page(described)


def explanation_page(document: Explanation) -> None:
    """Prints a plan's text, what its stages do, its groups by time, next best splits and
    re-scheduling."""
    for line in document.text:
        say(line)
    if document.stages:
        say("")
    for stage in document.stages:
        say(stage.text)
    if document.neighbours:
        say("\nWhy not (the fastest that was found of each, replayed):")
        for neighbour in document.neighbours:
            say(f"  {neighbour.text}")
    say("")
    rows, staged = document.rows, bool(document.stages)
    table(
        f"groups by time, {min(len(rows), MOST_ROWS)} of {len(rows)}",
        (*(["stage"] if staged else []), "group", "×", "split", "GiB", "compute", "from", "comm."),
        [
            (
                *([number] if staged else []),
                g.slowest or g.name,
                g.repeats,
                g.split,
                gib(g.memory_bytes),
                seconds(g.compute_s),
                "-" if g.compute_shares is None else shares_text(g.compute_shares),
                seconds(g.communication_s),
            )
            for number, g in rows[:MOST_ROWS]
        ],
    )
    others = [(g, g.next_best) for _, g in rows if g.next_best is not None]
    if others:
        say("")
        table(
            "next best splits, everything else unchanged",
            ("group", "split", "added time", "added GiB", "why not"),
            [
                (
                    g.slowest or g.name,
                    best.split,
                    seconds(best.added_time_s),
                    gib(best.added_memory_bytes),
                    best.why_not,
                )
                for g, best in others[:MOST_OTHERS]
            ],
        )
    edges = [e for e in document.edges if e.time_s > 0]
    if edges:
        say("")
        table(
            f"re-scheduling by time, {min(len(edges), 10)} of {len(edges)}",
            ("from → to", "×", "forward", "keeps", "time"),
            [
                (
                    f"{e.source} → {e.target}",
                    e.repeats,
                    ", ".join(e.forward) or "-",
                    e.kept,
                    seconds(e.time_s),
                )
                for e in edges[:10]
            ],
        )
