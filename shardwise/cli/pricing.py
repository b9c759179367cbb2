"""explain --like: what a trainer's configuration takes, and what to change in it for how much."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from shardwise.cli.advisor import service
from shardwise.cli.arguments import graph_of_question, load_graph, options_from
from shardwise.cli.output import emit, note, progress, say, say_searched, table, warn
from shardwise.cli.stages_table import stages_table
from shardwise.documents.parallelism import text_of
from shardwise.documents.pipeline_pricing import PipelineAlternative, PipelinePricing
from shardwise.documents.pricing import Alternative, Pricing
from shardwise.documents.questions import MOST_CONFIGURATION_BYTES
from shardwise.texts import gib, seconds, verdict

if TYPE_CHECKING:
    from shardwise.cost.options import Options, Progress
    from shardwise.graph import Graph
    from shardwise.hardware import Hardware
    from shardwise.trainers.configuration import Configuration

MOST_ALTERNATIVES = 16


def explain_like(
    graph: str | None,
    like: str,
    hardware: str,
    gpus: str,
    server: str | None,
    key_file: str | None,
    as_json: bool,
    search: dict[str, Any],
    given: Collection[str],
) -> None:
    """Prints the price of a configuration file for a graph; raises as `price` does.

    Without a graph, captures the model that the file names. `given` are the options given
    explicitly, which override the file.
    """
    from shardwise.hardware import devices_of, load_hardware
    from shardwise.question.question import Question
    from shardwise.question.refusals import check

    options = options_from({**search, "objective": "mini-time"})
    profile = load_hardware(hardware)
    taken = devices_of(gpus, profile)
    check(Question.of(options, "pricing", taken))
    devices = taken.gpus
    price = partial(_price_there, server, key_file) if server else partial(_price_here, given)
    with progress(search["quiet"] or as_json, stoppable=not server) as listener:
        document = price(graph, profile, devices, like, options, listener)
    if as_json:
        emit(document)
    elif isinstance(document, PipelinePricing):
        warn(document.pipeline.warnings)
        pipeline_pricing_page(document)
    else:
        warn(document.plan.warnings)
        pricing_page(document)


def _price_here(
    given: Collection[str],
    graph: str | None,
    hardware: Hardware,
    gpus: int,
    like: str,
    options: Options,
    listener: Progress,
) -> Pricing | PipelinePricing:
    from shardwise.trainers.pipelines import price_pipeline
    from shardwise.trainers.price import price_configuration
    from shardwise.trainers.read import read_configuration

    configuration = read_configuration(like, gpus)
    price = price_configuration if configuration.stages == 1 else price_pipeline
    return price(
        _captured(configuration, like, listener) if graph is None else load_graph(graph),
        hardware, gpus, configuration, options, file=like, given=given, progress=listener,
    )  # fmt: skip


def _captured(configuration: Configuration, like: str, listener: Progress) -> Graph:
    """Returns the graph of the model named by a file, and prints its name."""
    from shardwise.capture.named_model import graph_of_configuration, source_of

    graph = graph_of_configuration(configuration, like, listener)
    note(
        f"note: no graph given: captured {source_of(configuration.named, like)} with --batch "
        f"{configuration.batch} --seq {configuration.sequence_length}, as {like} says"
    )
    return graph


def _price_there(
    server: str,
    key_file: str | None,
    graph: str | None,
    hardware: Hardware,
    gpus: int,
    like: str,
    options: Options,
    listener: Progress,
) -> Pricing:
    from shardwise.trainers.read import configuration_of, configuration_text

    text = configuration_text(like, MOST_CONFIGURATION_BYTES)
    if graph is None:
        subject: Graph | str = _captured(
            configuration_of(text, gpus, like, here=True), like, listener
        )
    else:
        subject = graph_of_question(graph, server, listener)
    with service(server, key_file) as client:
        priced: Pricing = client.pricing(
            subject, hardware, gpus, text, file=Path(like).name,
            options=options, progress=listener,
        )  # fmt: skip
    return priced


def pricing_page(document: Pricing) -> None:
    """Prints the strategy's step, whether it fits, and what to change for how much."""
    plan, given = document.plan, document.parallelism
    predicted = plan.predicted
    say_searched(plan.not_searched)
    say(f"{document.trainer}: {text_of(given)}")
    fits = _stated(document)
    say(
        f"{plan.graph_name} on {plan.gpus} GPUs of {plan.hardware}: "
        f"{seconds(predicted.replayed_time_s)} a step, peak {gib(predicted.peak_bytes)} GiB per "
        f"GPU of {gib(round(plan.memory_limit_bytes))} GiB: {fits}."
    )
    best = document.best
    if best is not None:
        say(
            f"Best of {document.trainer}: {text_of(best.parallelism)}: "
            f"{seconds(best.replayed_time_s)} ({best.saves:+.1%} saved), "
            f"{gib(best.peak_bytes)} GiB."
        )
    elif document.fits:
        say(f"No other strategy of {document.trainer} that fits is faster.")
    _rest(document)


def pipeline_pricing_page(document: PipelinePricing) -> None:
    """Prints a pipeline's step, its stages, whether it fits, and what to change for how much."""
    pipeline, predicted = document.pipeline, document.pipeline.predicted
    say(f"{document.trainer}: {_piped(document)}")
    fits = _stated(document)
    say(
        f"{pipeline.graph_name} on {pipeline.gpus} GPUs of {pipeline.hardware}: "
        f"{seconds(predicted.step_s)} a step, GPUs idle {predicted.idle:.1%} of it, peak "
        f"{gib(predicted.peak_bytes)} GiB per GPU in stage {predicted.peak_stage} of "
        f"{gib(round(pipeline.memory_limit_bytes))} GiB: {fits}."
    )
    best = document.best
    if best is not None:
        say(
            f"Best of those below or several of their changes: {_piped(best)}: "
            f"{seconds(best.step_s)} ({best.saves:+.1%} saved), {gib(best.peak_bytes)} GiB."
        )
    elif document.fits:
        say(f"No other pipeline of {document.trainer} that was priced and fits is faster.")
    stages_table(pipeline)
    _rest(document)


def _stated(document: Pricing | PipelinePricing) -> str:
    """Prints what the file states about the step, and what is priced differently. Returns in words
    whether it fits."""
    if document.stated is not UNSET:
        say(f"From the file: {', '.join(document.stated)}.")
    left_out = [] if document.left_out is UNSET else document.left_out
    for line in left_out:
        say(f"Not priced: {line}.")
    return verdict(document.fits, left_out)


def _piped(one: PipelinePricing | PipelineAlternative) -> str:
    each = "" if one.stages_per_rank is UNSET else f" × {one.stages_per_rank} stages a rank"
    return f"pp {one.stages}{each} × {text_of(one.parallelism)}, {one.schedule}"


def _rest(document: Pricing | PipelinePricing) -> None:
    """Prints suggested changes, and unread settings."""
    rows = document.alternatives[:MOST_ALTERNATIVES]
    if rows:
        say("")
        table(
            f"one change at a time, {len(rows)} of {len(document.alternatives)}",
            ("change", "step", "saves", "peak GiB", "fits"),
            [_row(one) for one in rows],
        )
    said = () if document.left_out is UNSET else document.left_out
    for line in (one for one in document.unread if one not in said):
        note(f"note: not read: {line}")


def _row(one: Alternative | PipelineAlternative) -> tuple[str, ...]:
    step_s = one.step_s if isinstance(one, PipelineAlternative) else one.replayed_time_s
    return (
        one.text,
        seconds(step_s),
        f"{one.saves:+.1%}",
        gib(one.peak_bytes),
        "yes" if one.fits else "no",
    )
