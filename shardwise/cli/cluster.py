"""simulate-cluster."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.arguments import json_option, load_graph, options_from, search_options
from shardwise.cli.output import emit, note, progress, say, table
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.outfiles import check_output, write_json
from shardwise.pictures.cluster import plot_cluster
from shardwise.pictures.figure import check_suffix
from shardwise.schedulers.counts import Counts
from shardwise.texts import counted
from shardwise.validation import decode_any

GRAPHS = ("shipped:vgg16", "shipped:gpt2", "shipped:transformer")
MOST_OF_ONE = 16


@click.command("simulate-cluster")
@click.option("--gpus", required=True, type=click.IntRange(1), help="GPUs of the cluster.")
@click.option("--jobs", "jobs_file", help="A file of jobs (shardwise.jobs/1).")
@click.option(
    "--generate", type=click.IntRange(1), help="Number of jobs to generate in the shape of a trace."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the generated jobs.")
@click.option(
    "--load",
    type=float,
    default=1.0,
    show_default=True,
    help="GPUs asked for over GPUs of the cluster.",
)
@click.option(
    "--restart", "restart_s", type=float, default=60.0, show_default=True,
    help="Seconds that a job loses when it gets another number of GPUs.",
)  # fmt: skip
@click.option("--curve", "curve_files", multiple=True, help="A curve file; any number.")
@click.option("--graph", "graphs", multiple=True, help="A graph whose curve is computed.")
@click.option("--hardware", default="dgx-a100-80gb", show_default=True, help="Of the graphs.")
@click.option(
    "--max-gpus", type=click.IntRange(1), default=MOST_OF_ONE, show_default=True,
    help="The most GPUs of one job, for the graphs.",
)  # fmt: skip
@click.option("--write-jobs", help="Write the jobs here, for --jobs.")
@click.option("--plot", help="Write a picture: .html, .svg or .png.")
@search_options
@json_option
def simulate_cluster(
    gpus: int,
    jobs_file: str | None,
    generate: int | None,
    seed: int,
    load: float,
    restart_s: float,
    curve_files: tuple[str, ...],
    graphs: tuple[str, ...],
    hardware: str,
    max_gpus: int,
    write_jobs: str | None,
    plot: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """A shared cluster: fixed requests, equal shares, and GPUs given by the jobs' curves."""
    from shardwise.schedulers.cluster.job import jobs_document, read_jobs
    from shardwise.schedulers.cluster.report import compare_policies
    from shardwise.schedulers.cluster.trace import generate as generated

    source = _source(jobs_file, generate)
    if write_jobs and generate is None:
        raise BadInput(
            "applies only to generated jobs", field="write-jobs", expected="--generate N"
        )
    for path, field in ((plot, "plot"), (write_jobs, "write-jobs")):
        check_output(path, field)
    if plot:
        check_suffix(plot)
    if not curve_files and not graphs:
        graphs = GRAPHS
    curves = {}
    for path in curve_files:
        counts = _curve_of(path)
        curves[counts.name] = counts
    for spec in graphs:
        counts = _computed(spec, hardware, min(max_gpus, gpus), search, as_json)
        curves[counts.name] = counts
    about: dict[str, Any] = {"curves": sorted(curves)}
    if isinstance(source, int):
        jobs, names = generated(curves, source, gpus, seed=seed, load=load)
        about |= {"seed": seed, "load": load}
        if write_jobs:
            write_json(jobs_document(jobs, names), write_jobs)
    else:
        try:
            jobs = read_jobs(read_bounded(source, "a file of jobs"), curves)
        except BadInput as error:
            raise error.in_file(source) from None
    document = compare_policies(jobs, gpus, restart_s=restart_s, **about)
    if plot:
        plot_cluster(document, plot)
    if as_json:
        emit(document)
        return
    _table(document)
    if plot:
        note(f"wrote {plot}")


def _source(jobs_file: str | None, generate: int | None) -> str | int:
    """Returns the file of the jobs, or how many are generated."""
    if jobs_file is not None and generate is None:
        return jobs_file
    if generate is not None and jobs_file is None:
        return generate
    raise BadInput("got neither or both", field="jobs", expected="one of --jobs and --generate")


def _curve_of(path: str) -> Counts:
    expected = "what curve --json writes"
    document = decode_any(read_bounded(path, "a curve file"), file=path, expected=expected)
    if not isinstance(document, dict):
        raise BadInput("not a JSON object", file=path, expected=expected)
    try:
        return Counts.of(document)
    except BadInput as error:
        raise error.in_file(path) from None


def _computed(
    spec: str, hardware: str, max_gpus: int, search: dict[str, Any], as_json: bool
) -> Counts:
    from shardwise.answers import curve
    from shardwise.hardware import load_hardware

    with progress(search["quiet"] or as_json) as listener:
        return Counts.of(
            curve(
                load_graph(spec), load_hardware(hardware), max_gpus, options_from(search), listener
            )
        )


def _table(document: dict[str, Any]) -> None:
    rows = [
        (
            row["policy"],
            _hours(row["average_completion_s"]),
            f"{row['speedup']:.2f}",
            _hours(row["median_completion_s"]),
            _hours(row["average_wait_s"]),
            _hours(row["makespan_s"]),
            f"{row['utilisation']:.0%}",
            row["restarts"],
        )
        for row in document["policies"]
    ]
    table(
        f"{counted(document['jobs'], 'job')} on {counted(document['gpus'], 'GPU')}, hours",
        ("policy", "average", "faster", "median", "wait", "makespan", "in use", "restarts"),
        rows,
    )
    say("average: from arrival to end; faster: the average under fixed requests over this one")


def _hours(value: float) -> str:
    return f"{value / 3600:,.2f}"
