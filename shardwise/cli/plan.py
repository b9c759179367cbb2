"""plan: the strategy that an objective picks, or a pipeline."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from shardwise.cli.advisor import advisor, question_options
from shardwise.cli.arguments import (
    GPUS,
    SUM,
    given_options,
    graph_of_question,
    json_option,
    options_from,
    other_search_options,
    sizes_options,
)
from shardwise.cli.fewer_tokens import fewer_tokens
from shardwise.cli.output import emit, keep, note, progress, stop_if_cancelled, warn
from shardwise.cli.plan_page import Asked, how_to_fit, plan_page
from shardwise.cli.spaces import space_option
from shardwise.cli.stages import SCHEDULES, Stages, schedules_option, stages_option
from shardwise.documents import folded
from shardwise.errors import BadInput
from shardwise.outfiles import check_output
from shardwise.pictures.figure import check_suffix
from shardwise.pictures.step import step_picture
from shardwise.pipeline.asked import ANY, FASTEST


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
@space_option
@click.option(
    "--point",
    metavar="PLAN_ID",
    help="The frontier's point with this id instead of an objective's.",
)
@partial(
    stages_option,
    text="Numbers of pipeline stages, such as 1,4,8, or auto (docs/pipelines.md).",
)
@partial(
    schedules_option, text=f"{SCHEDULES} With --space, unless it is given, all of the trainer."
)
@click.option("-o", "--output", help="Write the plan here.")
@click.option(
    "--unfolded",
    is_flag=True,
    help="Write the file with every layer, as releases before 0.2 read plans.",
)
@click.option("--plot", help="Write a picture of the step: .html, .svg or .png.")
@other_search_options
@question_options
@json_option
@sizes_options
def plan(
    graph: str,
    hardware: str,
    gpus: str,
    objective: str,
    order: str | None,
    space: str,
    point: str | None,
    stages: str,
    schedules: str,
    output: str | None,
    unfolded: bool,
    plot: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """The strategy that an objective picks, spelled out to be executed."""
    from shardwise.answers import Infeasible
    from shardwise.answers import explain as why
    from shardwise.answers.remedies import BY_OPTIONS
    from shardwise.hardware import devices_of, load_hardware

    if unfolded and output is None:
        raise BadInput("applies only to a file", field="unfolded", expected="--output FILE")
    check_output(output)
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    asked_stages = Stages.of(stages, schedules)
    options = options_from({**search, "objective": objective})
    asked = Asked(graph, hardware, gpus, options.epsilon, output)
    question: dict[str, Any] = {
        "objective": FASTEST[0] if objective == SUM else objective,
        "point": point,
        "order": order,
        "space": space,
    }
    named = bool(given_options(("schedules",))) or space == ANY
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        devices = devices_of(gpus, profile)
        asked_stages.check(options, "plan", devices, **question)
        ask = advise.solve if server else partial(advise.solve, given=given_options(search))
        staged = asked_stages.arguments(given=named)
        about = partial(ask, **question, **staged, progress=listener)
        try:
            document = about(
                graph_of_question(graph, server, listener), profile, devices, options=options
            )
        except Infeasible as reason:
            if not as_json:
                how_to_fit(asked)
            if not as_json and not server and BY_OPTIONS not in str(reason):
                shorter = fewer_tokens(
                    graph,
                    options,
                    lambda smaller, coarse: about(smaller, profile, devices, options=coarse),
                )
                if shorter:
                    note(f"note: {shorter}")
            raise
    if output is not None:
        keep(document if unfolded else folded(document), output, quiet=as_json)
    if plot:
        step_picture(document).write(plot)
    if as_json:
        emit(document)
    else:
        warn(document.warnings)
        plan_page(document, why(document), asked)
    stop_if_cancelled(document.certificate)
