"""explain --like: what a trainer's configuration takes, and what to change in it for how much."""

from __future__ import annotations

from typing import Any

from shardwise.cli.arguments import load_graph, options_from
from shardwise.cli.output import emit, note, progress, say, table, warn
from shardwise.documents.parallelism import text_of
from shardwise.documents.pricing import Alternative, Pricing
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.texts import gib, seconds

MOST_ALTERNATIVES = 16


def explain_like(
    graph: str, like: str, hardware: str, gpus: str, as_json: bool, search: dict[str, Any]
) -> None:
    """Prints the price of a configuration file for a graph; raises as `price` does."""
    from shardwise.hardware import load_hardware
    from shardwise.trainers.plan import one_kind
    from shardwise.trainers.price import price
    from shardwise.trainers.read import read_configuration

    options = options_from({**search, "objective": "mini-time"})
    profile = load_hardware(hardware)
    devices = one_kind(gpus, profile)
    configuration = read_configuration(like, devices)
    with progress(search["quiet"] or as_json) as listener:
        read = load_graph(graph)
        check_step(read, configuration.batch, configuration.sequence_length, like)
        document = price(
            read,
            profile,
            devices,
            configuration.parallelism,
            options,
            trainer=configuration.trainer,
            unread=configuration.unread,
            progress=listener,
        )
    if as_json:
        emit(document)
    else:
        warn(document.plan.warnings)
        pricing_page(document)


def check_step(graph: Graph, batch: int | None, sequence: int | None, file: str) -> None:
    """Raises `BadInput` where a configuration is of another batch or sequence than the graph."""
    from shardwise.graph.step import step_of

    step = step_of(graph)
    for name, wanted, known, flag in (
        ("global batch", batch, step.batch, "--batch"),
        ("sequence length", sequence, step.seq, "--seq"),
    ):
        if wanted is not None and known is not None and wanted != known:
            raise BadInput(
                f"its {name} is {wanted:,}, that of the graph {known:,}",
                file=file,
                expected=f"a graph captured with {flag} {wanted}",
            )


def pricing_page(document: Pricing) -> None:
    """Prints the strategy's step, whether it fits, and what to change for how much."""
    plan, given = document.plan, document.parallelism
    predicted = plan.predicted
    say(f"{document.trainer}: {text_of(given)}")
    fits = "fits" if document.fits else "does not fit"
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
    rows = document.alternatives[:MOST_ALTERNATIVES]
    if rows:
        say("")
        table(
            f"one change at a time, {len(rows)} of {len(document.alternatives)}",
            ("change", "step", "saves", "peak GiB", "fits"),
            [_row(one) for one in rows],
        )
    for line in document.unread:
        note(f"note: not read: {line}")


def _row(one: Alternative) -> tuple[str, ...]:
    return (
        one.text,
        seconds(one.replayed_time_s),
        f"{one.saves:+.1%}",
        gib(one.peak_bytes),
        "yes" if one.fits else "no",
    )
