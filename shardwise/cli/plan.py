"""plan: the strategy that an objective picks, or a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from shardwise.cli.pipeline_page import pipeline_page
from shardwise.cli.plan_page import Asked, how_to_fit, plan_page
from shardwise.cli.spaces import space_option
from shardwise.cli.stages import SCHEDULES, Stages, schedules_option, stages_option
from shardwise.documents import Pipeline, Plan
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Bundle, Hardware
from shardwise.outfiles import check_output
from shardwise.pictures.bars import plan_picture
from shardwise.pictures.figure import check_suffix
from shardwise.pictures.pipeline import pipeline_picture
from shardwise.trainers.spaces import ANY


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
    plot: str | None,
    server: str | None,
    key_file: str | None,
    priority: int,
    as_json: bool,
    **search: Any,
) -> None:
    """The strategy that an objective picks, spelled out to be executed."""
    from shardwise.advise import Infeasible
    from shardwise.advise import explain as why
    from shardwise.advise.remedies import BY_OPTIONS
    from shardwise.hardware import devices_of, load_hardware

    check_output(output)
    if plot:
        check_suffix(plot)
        check_output(plot, "plot")
    asked_stages = Stages.of(stages, schedules)
    piped = asked_stages.piped
    asked_stages.check(
        objective=objective, space=space if server else ANY, order=order, point=point
    )
    if server and order is not None:
        raise BadInput(
            "a service chooses the order itself", field="--order", expected="no --server"
        )
    options = options_from({**search, "objective": objective})
    asked = Asked(graph, hardware, gpus, options.epsilon, output)
    with (
        advisor(server, key_file, priority) as advise,
        progress(search["quiet"] or as_json, stoppable=not server) as listener,
    ):
        profile = load_hardware(hardware)
        ask: Callable[..., Pipeline | Plan] = advise.plan
        if space != ANY and not piped:
            from shardwise.trainers.plan import check_point, check_question, plan_for

            check_point(point)
            # In the same words with a server.
            check_question(gpus, profile, space, objective, options)
            here = partial(plan_for, trainer=space, given=given_options(search))
            ask = partial(advise.plan, space=space) if server else here
        if piped:
            ask = _pipelines(advise.pipeline_or_plan, asked_stages.arguments)
            if space != ANY:
                from shardwise.trainers.plan_pipeline import pipeline_for

                ask = _pipelines(
                    partial(pipeline_for, trainer=space, given=given_options(search)),
                    {
                        "stages": asked_stages.counts,
                        "schedules": asked_stages.schedules
                        if given_options(("schedules",))
                        else None,
                    },
                )
        about = partial(
            ask,
            objective="mini-time" if objective == SUM else objective,
            progress=listener,
            **({} if order is None else {"order": order}),
            **({} if point is None else {"point": point}),
        )
        devices = devices_of(gpus, profile)
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
    keep(document, output, quiet=as_json)
    if plot:
        picture = (
            plan_picture(document, why(document))
            if isinstance(document, Plan)
            else pipeline_picture(document)
        )
        picture.write(plot)
    if as_json:
        emit(document)
    elif isinstance(document, Pipeline):
        warn(document.warnings)
        pipeline_page(document)
    else:
        warn(document.warnings)
        plan_page(document, why(document), asked)
    if not isinstance(document, Pipeline):
        stop_if_cancelled(document.certificate)


def _pipelines(
    search: Callable[..., Pipeline | Plan], stages: Mapping[str, Any]
) -> Callable[..., Pipeline | Plan]:
    """Returns what asks for a pipeline in the arguments of a plan."""

    def ask(graph: Graph, profile: Hardware, gpus: int | Bundle, **given: Any) -> Pipeline | Plan:
        del given["objective"]
        return search(graph, profile, gpus, **stages, **given)

    return ask
