"""compare: other systems' strategies next to ours."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.arguments import GPUS, json_option, load_graph, options_from, search_options
from shardwise.cli.output import emit, note, progress, say, table, warn
from shardwise.documents.comparison import (
    ComparedMethod,
    ComparedPoint,
    Comparison,
    ranked,
    strategy_of,
)
from shardwise.outfiles import check_output
from shardwise.pictures.compare import plot_compare
from shardwise.pictures.figure import check_suffix
from shardwise.texts import counted, gib, seconds


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
@search_options
@json_option
def compare(
    graph: str,
    hardware: str,
    gpus: str,
    plot: str | None,
    proposals: int | None,
    seed: int,
    as_json: bool,
    **search: Any,
) -> None:
    """Other systems' strategies and ours on one cost model."""
    from shardwise.hardware import load_hardware
    from shardwise.peers import compare as run

    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    options = options_from(search)
    with progress(search["quiet"] or as_json) as listener:
        document = run(
            load_graph(graph),
            load_hardware(hardware),
            gpus,
            options,
            listener,
            proposals=proposals,
            seed=seed,
        )
    if plot:
        plot_compare(document, plot)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        _tables(document)


def _tables(document: Comparison) -> None:
    if document.overlap:
        _ranking(document)
    else:
        _sums(document)
    for method in document.methods:
        if method.reason:
            say(f"{method.title}: no answer: {method.reason}")
        for text in method.notes:
            note(f"note: {method.title}: {text}")
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
        [_ranked_row(method, point) for method, point in ranked(document)],
    )
    certificate = document.certificate
    if certificate and certificate.epsilon is not None:
        gap = max(certificate.epsilon, 0.0)
        say(f"Proven: no strategy that fits saves more than {gap:.1%} of our step.")
    _places(document)


def _places(document: Comparison) -> None:
    """Prints what the steps take at each place, where devices are of several kinds."""
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
    ours = method.method == "shardwise"
    slower = point.slower_by
    return (
        method.title,
        seconds(point.replayed_time_s or None),
        f"{slower:+.1%}" if isinstance(slower, float) and not ours else "-",
        gib(point.replayed_peak_bytes or None),
        seconds(point.exposed_communication_s or 0.0),
        "yes" if point.feasible else "no",
        strategy_of(point) or "-",
    )


def _sums(document: Comparison) -> None:
    rows = [row for method in document.methods for row in _rows(method)]
    table(
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of "
        f"{document.hardware} (ours: our fastest in no more memory)",
        ("strategy", "GiB/GPU", "time", "compute", "comm.", "fits", "ours"),
        rows,
    )


def _rows(method: ComparedMethod) -> list[tuple[object, ...]]:
    points = method.points
    labels = {i: point.label for i, point in enumerate(points)}
    if method.frontier and points:
        # A frontier is shown by its ends and by what fits.
        ends = {0: "least memory", len(points) - 1: "least time"}
        if method.best is not None:
            ends.setdefault(method.best, "fastest that fits")
        labels = {i: ", ".join(filter(None, (points[i].label, ends[i]))) for i in sorted(ends)}
    return [
        (
            ": ".join(filter(None, (method.title, label))),
            gib(points[i].memory_bytes),
            seconds(points[i].time_s),
            seconds(points[i].compute_s),
            seconds(points[i].communication_s),
            "yes" if points[i].feasible else "no",
            seconds(points[i].our_time_s),
        )
        for i, label in labels.items()
    ]
