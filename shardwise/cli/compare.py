"""compare: other systems' strategies next to ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from shardwise.cli.advisor import question_options, service
from shardwise.cli.arguments import (
    GPUS,
    graph_of_question,
    json_option,
    options_from,
    output_option,
    search_options,
    sizes_options,
)
from shardwise.cli.output import emit, keep, note, progress, say, say_searched, table, warn
from shardwise.cli.stages import SCHEDULES, Stages, schedules_option, stages_option
from shardwise.cli.tables import program_line
from shardwise.documents.comparison import (
    RECIPE,
    ComparedMethod,
    ComparedPoint,
    Comparison,
    ranked,
    shown,
    strategy_of,
)
from shardwise.outfiles import check_output
from shardwise.pictures.compare import compare_picture
from shardwise.pictures.figure import check_suffix
from shardwise.texts import counted, gib, seconds

MOST_PEAKS = 4


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--gpus", required=True, help=GPUS)
@click.option("--plot", help="Write a picture: .html, .svg or .png.")
@click.option(
    "--proposals",
    type=click.IntRange(1),
    help="Of FlexFlow's random search. Default: 50,000, of several kinds of devices 5,000. Post "
    "has as many samples, at most 1,200.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of random searches.")
@partial(
    stages_option,
    text="Numbers of pipeline stages to compare too, such as 1,4,8, or auto (docs/compare.md).",
)
@partial(schedules_option, text=f"Of our pipelines. {SCHEDULES}")
@search_options
@question_options
@output_option
@json_option
@sizes_options
def compare(
    graph: str,
    hardware: str,
    gpus: str,
    plot: str | None,
    proposals: int | None,
    seed: int,
    server: str | None,
    key_file: str | None,
    priority: int,
    stages: str,
    schedules: str,
    output: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Other systems' strategies and ours on one cost model."""
    from shardwise.hardware import devices_of, load_hardware

    check_output(output)
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    asked = Stages.of(stages, schedules)
    options = options_from(search)
    with (
        _comparer(server, key_file, priority) as run,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        devices = devices_of(gpus, profile)
        asked.check(options, "compare", devices)
        document = run(
            graph_of_question(graph, server, listener),
            profile,
            devices,
            options,
            listener,
            proposals=proposals,
            seed=seed,
            **asked.arguments(),
        )
    keep(document, output, quiet=as_json)
    if plot:
        compare_picture(document).write(plot)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        _tables(document)


@contextmanager
def _comparer(
    server: str | None, key_file: str | None, priority: int
) -> Iterator[Callable[..., Comparison]]:
    """Yields the comparer: the service's client, or without `server` the library."""
    if server:
        with service(server, key_file, priority) as client:
            yield client.compare
        return
    from shardwise.peers import compare as run

    yield run


def _tables(document: Comparison) -> None:
    say_searched(document.not_searched)
    if document.overlap:
        _ranking(document)
    else:
        _sums(document)
    for method in document.methods:
        if method.reason and not method.method.startswith(RECIPE):
            say(f"{method.title}: no answer: {method.reason}")
        if method.method.startswith(RECIPE):
            note(f"note: {method.title}: {'; '.join([method.found_by, *method.notes])}")
            continue
        for text in method.notes:
            note(f"note: {method.title}: {text}")
    program_line(document.program)
    ratio = document.data_parallel_over_mini_time
    known = ratio.get("all" if document.overlap else "splits")
    if known is not None:
        say(f"data parallelism takes {known:.3g} times as long as our fastest that fits")


def _ranking(document: Comparison) -> None:
    """Prints the best of each system, those that fit first, the fastest first."""
    table(
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of {document.hardware}: "
        "the best of each system by its replayed step",
        ("system", "step", "slower", "peak GiB", "exposed", "fits", "strategy"),
        [
            *(_ranked_row(method, point) for method, point in ranked(document)),
            *(
                (method.title, "-", "-", "-", "-", "-", method.reason)
                for method in document.methods
                if not method.points and method.method.startswith(RECIPE)
            ),
        ],
    )
    certificate = document.certificate
    if certificate and certificate.epsilon is not None:
        gap = max(certificate.epsilon, 0.0)
        piped = " without a pipeline" if _has_pipelines(document) else ""
        say(f"Proven: no strategy{piped} that fits saves more than {gap:.1%} of our step{piped}.")
    _stages(document)
    _places(document)


def _has_pipelines(document: Comparison) -> bool:
    return any(method.method == "shardwise-pipelines" for method in document.methods)


def _stages(document: Comparison) -> None:
    """Prints the pipelines of every system: the best of each number of stages."""
    rows = [
        (
            method.title if number == 0 else "",
            strategy_of(point),
            point.pipeline.schedule,
            seconds(point.replayed_time_s or None),
            f"{point.pipeline.idle:.1%}",
            _peaks(point.pipeline.peak_bytes),
            "yes" if point.feasible else "no",
        )
        for method in document.methods
        for number, point in enumerate(p for p in method.points if p.pipeline)
        if point.pipeline
    ]
    if rows:
        table(
            f"pipelines; peak GiB of each stage, of {gib(round(document.memory_limit_bytes))}",
            ("system", "strategy", "schedule", "step", "idle", "peaks GiB", "fits"),
            rows,
        )


def _peaks(peak_bytes: list[int]) -> str:
    """Returns the peaks of stages; if there are many, the first, the largest and the last."""
    if len(peak_bytes) <= MOST_PEAKS:
        return " ".join(map(gib, peak_bytes))
    return f"{gib(peak_bytes[0])} … {gib(peak_bytes[-1])}, at most {gib(max(peak_bytes))}"


def _places(document: Comparison) -> None:
    """Prints the steps' values at each place, on several kinds of devices."""
    rows = [
        (
            method.title if number == 0 else "",
            place.name,
            place.kind,
            seconds(place.compute_s),
            seconds(place.communication_s),
            gib(place.peak_bytes),
            gib(round(place.memory_limit_bytes)),
        )
        for method, point in ranked(document)
        for number, place in enumerate(point.places or ())
    ]
    if rows:
        table(
            "what each of these steps takes at every place, on one device",
            ("system", "place", "kind", "compute", "comm.", "peak GiB", "limit GiB"),
            rows,
        )


def _ranked_row(method: ComparedMethod, point: ComparedPoint) -> tuple[object, ...]:
    ours = method.method == "shardwise" and not point.slower_by
    slower = point.slower_by
    return (
        method.title,
        seconds(point.replayed_time_s or None),
        f"{slower:+.1%}" if isinstance(slower, float) and not ours else "-",
        gib(point.replayed_peak_bytes or None),
        "-" if point.pipeline else seconds(point.exposed_communication_s or 0.0),
        "yes" if point.feasible else "no",
        strategy_of(point) or "-",
    )


def _sums(document: Comparison) -> None:
    rows = [_row(method, *one) for method in document.methods for one in shown(method)]
    table(
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of "
        f"{document.hardware} by sums (peak and step: replayed; ours: our fastest in no more "
        "memory)",
        ("strategy", "sum GiB", "peak GiB", "time", "step", "comm.", "fits", "ours"),
        rows,
    )


def _row(method: ComparedMethod, label: str, point: ComparedPoint) -> tuple[object, ...]:
    return (
        ": ".join(filter(None, (method.title, label))),
        gib(point.memory_bytes),
        gib(point.replayed_peak_bytes or None),
        seconds(point.time_s),
        seconds(point.replayed_time_s or None),
        seconds(point.communication_s),
        "yes" if point.feasible else "no",
        seconds(point.our_time_s),
    )
