"""frontier, curve, plan, quote."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import click
from msgspec import UNSET

from shardwise.cli.advisor import advisor, question_options
from shardwise.cli.arguments import (
    GPUS,
    SUM,
    json_option,
    load_graph,
    options_from,
    other_search_options,
    search_options,
)
from shardwise.cli.explain import explanation_page
from shardwise.cli.output import emit, note, progress, proven, say, stop_if_cancelled, table, warn
from shardwise.cli.tables import compute_basis, curve_csv, curve_table, gap_text, quote_table
from shardwise.documents import Frontier, FrontierPoint
from shardwise.documents.common import TofuReport
from shardwise.documents.frontier import exposed_s
from shardwise.errors import BadInput
from shardwise.outfiles import check_output, write_json
from shardwise.pictures.figure import check_suffix
from shardwise.pictures.plots import curve_picture, frontier_picture
from shardwise.schedulers.formats import FORMS, export
from shardwise.texts import counted, gib, seconds
from shardwise.trainers.spaces import ANY, SPACES

MOST_ROWS = 24
CURVE_FORMATS = ("json", "csv", *FORMS)


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--gpus", required=True, help=GPUS)
@click.option("--plot", help="Write a picture: .html, .svg or .png.")
@search_options
@question_options
@json_option
def frontier(
    graph: str,
    hardware: str,
    gpus: str,
    plot: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """Every strategy that no other beats in both memory and time."""
    from shardwise.hardware import devices_of, load_hardware

    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    options = options_from(search)
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        document = advise.frontier(
            load_graph(graph), profile, devices_of(gpus, profile), options, listener
        )
    if plot:
        frontier_picture(document).write(plot)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        _frontier_table(document)
    stop_if_cancelled(document.certificate)


def _frontier_table(document: Frontier) -> None:
    points, knee = document.points, document.turning_point
    shown = _thin(len(points), knee)
    columns = _frontier_columns(document)
    table(
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of {document.hardware} "
        f"({counted(len(points), 'point')}, {len(shown)} shown; → turning point)",
        ("point", *columns),
        [
            (
                ("→ " if i == knee else "  ") + str(i),
                *(cell(points[i]) for cell in columns.values()),
            )
            for i in shown
        ],
    )
    say(compute_basis(points))
    _certificate(document)


def _frontier_columns(document: Frontier) -> dict[str, Callable[[FrontierPoint], str]]:
    """Returns what each column says of a point; the axes of the frontier come first."""
    columns: dict[str, Callable[[FrontierPoint], str]]
    if document.overlap:
        columns = {
            "peak GiB": lambda p: gib(p.replayed_peak_bytes),
            "step": lambda p: seconds(p.replayed_time_s),
            "compute": lambda p: seconds(p.compute_s),
            "exposed": lambda p: seconds(exposed_s(p)),
        }
    else:
        columns = {
            "sum GiB": lambda p: gib(p.memory_bytes),
            "peak GiB": lambda p: gib(p.replayed_peak_bytes),
            "time": lambda p: seconds(p.time_s),
            "overlapped": lambda p: seconds(p.replayed_time_s),
            "compute": lambda p: seconds(p.compute_s),
            "comm.": lambda p: seconds(p.communication_s),
        }
    if any(isinstance(p.gap, float) for p in document.points):
        columns["gap"] = lambda p: gap_text(p.gap)
    columns["fits"] = lambda p: "yes" if p.feasible else "no"
    columns["strategy"] = lambda p: p.label or "-"
    return columns


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--max-gpus", type=click.IntRange(1), help="The largest count.")
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    metavar="BUNDLE",
    help="Of a profile with groups, instead of --max-gpus: devices by group, such as "
    "v100=2,1080ti=4. usual: each group alone, the fastest together, everything.",
)
@click.option(
    "--format", "form", type=click.Choice(CURVE_FORMATS), help="What reads it; else a table."
)
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Of a scheduler's format: the least rate per GPU of the count it names, over the best.",
)
@click.option("--gpu-type", help="Of a scheduler's format: what it calls the GPU.")
@click.option("--plot", help="Write a picture: .html, .svg or .png.")
@search_options
@question_options
@json_option
def curve(
    graph: str,
    hardware: str,
    max_gpus: int | None,
    bundles: tuple[str, ...],
    form: str | None,
    efficiency: float,
    gpu_type: str | None,
    plot: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """The shortest iteration time for every GPU count, or for every bundle of devices."""
    from shardwise.advise.curve import curve_takes_count
    from shardwise.hardware import load_hardware

    if form not in FORMS and (efficiency or gpu_type):
        raise BadInput("is of a scheduler's format", field="format", expected=", ".join(FORMS))
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    options = options_from(search)
    quiet = search["quiet"] or as_json or form is not None
    with (
        advisor(server, key_file, priority) as advise,
        progress(quiet, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        # Before the graph is read, and in the same words with a server.
        curve_takes_count(profile, max_gpus, bundles)
        document = advise.curve(
            load_graph(graph), profile, max_gpus, options, listener, bundles=bundles
        )
    if plot:
        curve_picture(document).write(plot)
    if as_json or form == "json":
        emit(document)
    elif form == "csv":
        sys.stdout.write(curve_csv(document))
    elif form is not None:
        sys.stdout.write(export(document, form, efficiency=efficiency, gpu_type=gpu_type))
    else:
        warn(document.warnings)
        curve_table(document, options.recomputation)
    if not any(point.feasible for point in document.points):
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--gpus", required=True, help=GPUS)
@click.option(
    "--objective",
    type=click.Choice(("mini-time", "mini-memory", "turning-point", "mini-cost", SUM)),
    default="mini-time",
    show_default=True,
    help="Which point of the frontier: the fastest, the smallest, the knee, the cheapest; "
    "sum: the fastest by times added up, nothing overlapped, as in TensorOpt.",
)
@click.option(
    "--order",
    type=click.Choice(("program", "rank", "auto")),
    help="In which order operators run: the program's, by upward rank, or the better one (unless "
    "named the program's on devices of one kind, the better one on several kinds).",
)
@click.option(
    "--space",
    type=click.Choice((ANY, *SPACES)),
    default=ANY,
    show_default=True,
    help="Of which strategies: of any kind, or those that a trainer can run (docs/trainers.md).",
)
@click.option("-o", "--output", help="Write the plan here.")
@other_search_options
@question_options
@json_option
def plan(
    graph: str,
    hardware: str,
    gpus: str,
    objective: str,
    order: str | None,
    space: str,
    output: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """The strategy that an objective picks, spelled out to be executed."""
    from shardwise.advise import explain as why
    from shardwise.hardware import devices_of, load_hardware

    check_output(output)
    if server and space != ANY:
        raise BadInput(
            "a service plans strategies of any kind", field="--space", expected="no --server"
        )
    if server and order is not None:
        raise BadInput(
            "a service chooses the order itself", field="--order", expected="no --server"
        )
    options = options_from({**search, "objective": objective})
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        ask = advise.plan
        if space != ANY:
            from shardwise.trainers.plan import plan_for

            ask = partial(plan_for, trainer=space)
        document = ask(
            load_graph(graph),
            profile,
            devices_of(gpus, profile),
            objective="mini-time" if objective == SUM else objective,
            options=options,
            progress=listener,
            **({} if order is None else {"order": order}),
        )
    if output:
        write_json(document, output)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        explanation_page(why(document))
        if output:
            note(f"wrote {output}")
    stop_if_cancelled(document.certificate)


@click.command()
@click.argument("graph")
@click.option("--offers", help="A CSV file with the SkyPilot catalog's columns.")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), help="Seconds.")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), help="USD.")
@click.option("--steps", type=click.IntRange(1), help="Steps of the whole job.")
@click.option(
    "--max-instances", type=click.IntRange(1), default=16, show_default=True,
    help="The most instances of one offer.",
)  # fmt: skip
@click.option(
    "--combine", type=click.IntRange(1, 3), default=1, show_default=True,
    help="The most kinds of instances that one answer may have together.",
)  # fmt: skip
@click.option("--hardware", help="A profile with groups of devices, whose parts are quoted.")
@click.option(
    "--price", "prices", multiple=True, metavar="GROUP=USD",
    help="With --hardware: USD per hour of one device of a group. [default: by the offers]",
)  # fmt: skip
@search_options
@question_options
@json_option
def quote(
    graph: str,
    offers: str | None,
    deadline: float | None,
    budget: float | None,
    steps: int | None,
    max_instances: int,
    combine: int,
    hardware: str | None,
    prices: tuple[str, ...],
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """The fewest GPUs on which the job fits; offers ranked by price."""
    from shardwise.advise.quote import require_steps
    from shardwise.hardware import load_hardware, read_offers

    require_steps(steps, deadline, budget)
    options = options_from(search)
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        document = advise.quote(
            load_graph(graph),
            read_offers(offers),
            deadline_s=deadline,
            budget_usd=budget,
            steps=steps,
            max_instances=max_instances,
            combine=combine,
            hardware=None if hardware is None else load_hardware(hardware),
            prices=_prices(prices),
            options=options,
            progress=listener,
        )
    if as_json:
        emit(document)
    else:
        quote_table(document, options.recomputation)
    if not document.offers:
        raise click.exceptions.Exit(1)


def _prices(texts: tuple[str, ...]) -> dict[str, float]:
    """Returns prices by group. Raises `BadInput` for a text that is not GROUP=USD."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, usd = text.partition("=")
        try:
            price = float(usd)
        except ValueError:
            price = 0.0
        if name in prices or not 0 < price < inf:
            raise BadInput(
                f"{text[:40]!r}", field="price", expected="GROUP=USD per hour, each group once"
            )
        prices[name] = price
    return prices


def _certificate(document: Frontier) -> None:
    proof, search = document.certificate, document.search
    say(
        f"{proven(proof)}; {search.groups} groups of {search.operators} operators, up to "
        f"{search.configurations_max} configurations, {search.seconds:.2f} s, "
        f"{search.peak_rss_bytes / 2**30:.2f} GiB"
    )
    if search.tofu is not UNSET:
        _tofu(search.tofu, search.groups)


def _tofu(peer: TofuReport, groups: int) -> None:
    moved = [f"{s.bytes / 1e9:.3g} GB among {s.worker_groups}" for s in peer.steps]
    if moved:
        say(f"Tofu's steps move {', '.join(moved)}; it would store {gib(peer.stored_bytes)} GiB")
    if peer.renamed_groups:
        say(
            f"{peer.renamed_groups} of {groups} groups are priced with their axes in canonical "
            "order, not in the order of the steps"
        )


def _thin(count: int, knee: int | None) -> list[int]:
    """Returns evenly spread rows, both ends and the turning point among them."""
    if count <= MOST_ROWS:
        return list(range(count))
    chosen = {round(i * (count - 1) / (MOST_ROWS - 1)) for i in range(MOST_ROWS)}
    if knee is not None:
        chosen.add(knee)
    return sorted(chosen)
