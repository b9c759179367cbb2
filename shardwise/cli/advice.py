"""frontier, curve, quote."""

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
    OFFERS,
    given_options,
    graph_of_question,
    json_option,
    options_from,
    output_option,
    search_options,
    sizes_options,
)
from shardwise.cli.named_table import named_table
from shardwise.cli.output import (
    INTERRUPTED,
    emit,
    keep,
    note,
    progress,
    proven,
    say,
    say_searched,
    stop_if_cancelled,
    table,
    warn,
)
from shardwise.cli.spaces import space_option
from shardwise.cli.stages import Stages, with_stages
from shardwise.cli.tables import (
    compute_basis,
    curve_csv,
    curve_table,
    gap_text,
    point_line,
    program_line,
    quote_table,
)
from shardwise.documents import Curve, Frontier, FrontierPoint
from shardwise.documents.common import TofuReport
from shardwise.documents.curve import batches_from, counts_from, fits
from shardwise.documents.frontier import exposed_s
from shardwise.documents.jobs import curves_of
from shardwise.documents.pipeline_point import pipeline_text
from shardwise.errors import BadInput
from shardwise.outfiles import check_output
from shardwise.pictures.figure import check_suffix
from shardwise.pictures.plots import curve_picture, frontier_picture
from shardwise.pictures.scales import SCALES
from shardwise.pipeline.asked import ANY
from shardwise.schedulers.formats import FORMS, export
from shardwise.step_sizes import StepSizes, sized
from shardwise.texts import counted, gib, seconds

MOST_ROWS = 24
CURVE_FORMATS = ("json", "csv", *FORMS)


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--gpus", required=True, help=GPUS)
@click.option("--plot", help="Write a picture: .html, .svg or .png.")
@click.option("--scale", type=click.Choice(SCALES), help="Axes of --plot. [default: by range]")
@click.option("--all", "every", is_flag=True, help="Every point, not the named strategies alone.")
@with_stages
@search_options
@question_options
@output_option
@json_option
@sizes_options
def frontier(
    graph: str,
    hardware: str,
    gpus: str,
    plot: str | None,
    scale: str | None,
    every: bool,
    server: str | None,
    key_file: str | None,
    priority: int,
    stages: str,
    schedules: str,
    output: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Every strategy that no other beats in both memory and time."""
    from shardwise.hardware import devices_of, load_hardware

    check_output(output)
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    asked = Stages.of(stages, schedules)
    options = options_from(search)
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        devices = devices_of(gpus, profile)
        asked.check(options, "frontier", devices)
        document = advise.frontier(
            graph_of_question(graph, server, listener),
            profile,
            devices,
            options,
            listener,
            **asked.arguments(),
        )
    keep(document, output, quiet=as_json)
    if plot:
        frontier_picture(document, scale).write(plot)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        say_searched(document.not_searched)
        if document.named and not every:
            named_table(document, document.named)
        else:
            _frontier_table(document, every=every)
        _pipelines_table(document)
        program_line(document.program)
        say(compute_basis(document.points))
        _certificate(document)
    stop_if_cancelled(document.certificate)


def _frontier_table(document: Frontier, *, every: bool) -> None:
    points, knee = document.points, document.turning_point
    shown = range(len(points)) if every else _thin(len(points), knee)
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


def _pipelines_table(document: Frontier) -> None:
    """Prints the non-dominated pipelines, if requested."""
    pipelines = document.pipelines
    if pipelines is UNSET:
        return
    if not pipelines:
        say("Every pipeline that was asked for is beaten by one of these, or does not fit.")
        return
    shown = _thin(len(pipelines), None)
    table(
        f"pipelines that none of these beats ({counted(len(pipelines), 'point')}, "
        f"{len(shown)} shown)",
        ("", "peak GiB", "step", "idle", "gap", "pipeline, micro-batches", "strategy"),
        [
            (
                i,
                gib(p.peak_bytes),
                seconds(p.step_s),
                f"{p.idle:.1%}",
                gap_text(p.gap),
                pipeline_text(p),
                "; ".join(dict.fromkeys(p.labels)),
            )
            for i, p in ((i, pipelines[i]) for i in shown)
        ],
    )
    if document.pipelines_gap is not None:
        say(
            "Proven of these: no pipeline that was asked for, within the peak of one, saves more "
            f"than {1 - 1 / (1 + document.pipelines_gap):.1%} of its step."
        )


def _frontier_columns(document: Frontier) -> dict[str, Callable[[FrontierPoint], str]]:
    """Returns each column's text of a point; the frontier's axes come first."""
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
    columns["strategy"] = lambda p: f"{p.label or '-'}{f' ({p.differs})' if p.differs else ''}"
    return columns


@click.command()
@click.argument("graph")
@click.option("--hardware", required=True, help="Built-in name, profile file, NAME*NODES.")
@click.option("--max-gpus", type=click.IntRange(1), help="The largest count.")
@click.option("--counts", help="Instead of --max-gpus: these counts alone, such as 8,16,32,64.")
@click.option("--batches", help="Instead of --batch: a curve for each, such as 64,128,256.")
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    metavar="BUNDLE",
    help="Of a profile with groups, instead of --max-gpus: devices by group, such as "
    "v100=2,1080ti=4. usual: each group alone, the fastest together, everything.",
)
@space_option
@click.option(
    "--count-limit",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of one count; one that takes longer is left out, and named.",
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
@click.option("--scale", type=click.Choice(SCALES), help="Axes of --plot. [default: by range]")
@with_stages
@search_options
@question_options
@output_option
@json_option
@sizes_options
def curve(
    graph: str,
    hardware: str,
    max_gpus: int | None,
    counts: str | None,
    batches: str | None,
    bundles: tuple[str, ...],
    space: str,
    count_limit: float | None,
    form: str | None,
    efficiency: float,
    gpu_type: str | None,
    plot: str | None,
    scale: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    stages: str,
    schedules: str,
    output: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """The shortest iteration time for every GPU count, or for every bundle of devices."""
    from shardwise.answers.curve import STOPPED, places_of_curve
    from shardwise.cli.processes import processes_for
    from shardwise.hardware import load_hardware

    if form not in FORMS and (efficiency or gpu_type):
        raise BadInput("not a scheduler's format", field="format", expected=", ".join(FORMS))
    check_output(output)
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    if server and count_limit is not None:
        raise BadInput("the service decides", field="--count-limit", expected="no --server")
    graphs = [graph]
    if batches is not None:
        if plot or form not in (None, "json"):
            raise BadInput("show one curve", field="--plot, --format", expected="--batch")
        graphs = [sized(graph, StepSizes(n)) for n in batches_from(batches, "--batches")]
    listed = [] if counts is None else counts_from(counts, "--counts")
    named = bool(given_options(("schedules",))) or space == ANY
    asked = Stages.of(stages, schedules)
    options = options_from(search)
    quiet = search["quiet"] or as_json or form is not None
    with (
        advisor(server, key_file, priority) as advise,
        progress(quiet, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        # Before the graph is read, and in the same words with a server.
        places_of_curve(profile, max_gpus, listed, bundles)
        asked.check(options, "curve", several_kinds=bool(profile.groups), space=space)
        ask: Callable[..., Curve] = advise.curve
        own: dict[str, Any] = {
            "count_limit_s": count_limit,
            "processes": processes_for(options.threads),
        }
        if not quiet:
            own["on_point"] = _known
        if not server:
            ask = partial(advise.curve, **own)
        if space != ANY:
            from shardwise.trainers.curve import curve_for

            given = given_options(search)
            ask = partial(curve_for, trainer=space, given=given, **own)
            ask = partial(advise.curve, space=space) if server else ask
        curves = [
            ask(
                graph_of_question(one, server, listener),
                profile,
                max_gpus,
                options,
                listener,
                counts=listed,
                bundles=bundles,
                **asked.arguments(given=named),
            )
            for one in graphs
        ]
    document = curves[0] if batches is None else curves_of(curves)
    keep(document, output, quiet=quiet)
    if plot:
        curve_picture(curves[0], scale).write(plot)
    if as_json or form == "json":
        emit(document)
    elif form == "csv":
        sys.stdout.write(curve_csv(curves[0]))
    elif form is not None:
        sys.stdout.write(export(curves[0], form, efficiency=efficiency, gpu_type=gpu_type))
    else:
        for one in curves:
            warn(one.warnings)
            if batches is not None:
                say(f"batch {one.batch_size}:")
            curve_table(one, options.recomputation)
    if any(missing.reason == STOPPED for one in curves for missing in one.missing or ()):
        raise click.exceptions.Exit(INTERRUPTED)
    if not any(fits(point) for one in curves for point in one.points):
        raise click.exceptions.Exit(1)


def _known(point: Curve) -> None:
    """Prints a count's result on standard error as soon as it is known."""
    line = point_line(point)
    if line:
        note(f"… {line}")


@click.command()
@click.argument("graph")
@click.option("--offers", help=OFFERS)
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
@with_stages
@search_options
@question_options
@output_option
@json_option
@sizes_options
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
    stages: str,
    schedules: str,
    output: str | None,
    as_json: bool,
    **search: Any,
) -> None:
    """The fewest GPUs on which the job fits; offers ranked by price."""
    from shardwise.answers.quote import require_steps
    from shardwise.cli.processes import processes_for
    from shardwise.hardware import load_hardware, read_offers

    check_output(output)
    require_steps(steps, deadline, budget)
    asked = Stages.of(stages, schedules)
    options = options_from(search)
    asked.check(options, "quote", several_kinds=hardware is not None or combine > 1)
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        own = {} if server else {"processes": processes_for(options.threads)}
        document = advise.quote(
            graph_of_question(graph, server, listener),
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
            **asked.arguments(),
            **own,
        )
    keep(document, output, quiet=as_json)
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
                f"got {text[:40]!r}", field="price", expected="GROUP=USD per hour, each group once"
            )
        prices[name] = price
    return prices


def _certificate(document: Frontier) -> None:
    proof, search = document.certificate, document.search
    about = "" if document.pipelines is UNSET else "without a pipeline "
    said = "" if document.not_searched else f"{about}{proven(proof)}; "
    say(
        f"{said}{search.groups} groups of {search.operators} operators, up to "
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
