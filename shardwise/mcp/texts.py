"""Answers in a few lines of text, beside the whole document: what an assistant says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from shardwise.answers import explain
from shardwise.answers.ranges import range_text
from shardwise.documents import (
    Comparison,
    Curve,
    Explanation,
    Export,
    Frontier,
    Pipeline,
    PipelineExplanation,
    Plan,
    Pricing,
    Quote,
    WholeExplanation,
    WholePlan,
)
from shardwise.documents.common import Certificate
from shardwise.documents.comparison import ranked, strategy_of
from shardwise.documents.curve import (
    fastest_peak_bytes,
    fastest_s,
    fastest_samples_per_s,
    fits,
    missing_texts,
)
from shardwise.documents.parallelism import text_of as strategy_text
from shardwise.documents.pipeline_point import PipelinePoint, pipeline_text
from shardwise.documents.quote import step_s
from shardwise.documents.stored import HardwarePage
from shardwise.mcp.lists import Graphs, GraphsPage, Profiles
from shardwise.texts import counted, gib_with_unit, seconds, verdict

MOST_LINES = 12
"""Rows of a text; the document has all of them."""


def text_of(document: Any) -> str:
    """Returns the text of a document that a tool returns."""
    lines = [*_TEXTS[type(document)](document)]
    warnings = getattr(document, "warnings", UNSET) or ()
    return "\n".join([*lines, *(f"Note: {warning}" for warning in warnings[:MOST_LINES])])


def _plan(document: Plan) -> list[str]:
    name = "Pipeline" if document.piped else "Plan"
    return [*explain(document).text, f"{name} {document.id}."]


def _explanation(document: Explanation) -> list[str]:
    neighbours = document.neighbours or []
    why = ["Why not:", *(neighbour.text for neighbour in neighbours)] if neighbours else []
    return [*document.text, *why]


def _frontier(document: Frontier) -> list[str]:
    fitting = [point for point in document.points if point.feasible]
    lines = [
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of {document.hardware}: "
        f"{len(document.points)} points, {len(fitting)} of them fit."
    ]
    knee = document.turning_point
    for what, point in (
        ("Least memory", document.points[0] if document.points else None),
        ("Turning point", None if knee is None else document.points[knee]),
        ("Fastest that fits", fitting[-1] if fitting else None),
    ):
        if point is not None:
            step, peak = (
                (point.replayed_time_s, point.replayed_peak_bytes)
                if document.overlap
                else (point.time_s, point.memory_bytes)
            )
            label = f": {point.label}" if point.label is not UNSET else ""
            lines.append(f"{what}: {seconds(step)} a step, {gib_with_unit(peak)}{label}.")
    for one in document.named or ():
        lines.append(
            f"{one.label}: {seconds(one.replayed_time_s)} a step ({one.slower:+.1%}), "
            f"{gib_with_unit(one.replayed_peak_bytes)}."
        )
    if document.pipelines:
        lines.append(f"Pipelines that none of these beats: {len(document.pipelines)}.")
        fastest = document.pipelines[-1]
        lines.append(
            f"The fastest of them: {seconds(fastest.step_s)} a step, "
            f"{gib_with_unit(fastest.peak_bytes)}: {pipeline_text(fastest)} micro-batches."
        )
    elif document.pipelines is not UNSET:
        lines.append("Every pipeline that was asked for is beaten, or does not fit.")
    return [*lines, _proof(document.certificate)]


def _curve(document: Curve) -> list[str]:
    fitting = [point for point in document.points if fits(point)]
    rows = []
    for point in fitting:
        where = point.bundle if point.bundle is not UNSET else counted(point.gpus, "GPU")
        step, samples = fastest_s(point, document.overlap is True), fastest_samples_per_s(point)
        rate = "" if samples is None else f", {samples:,.1f} samples/s"
        peak = gib_with_unit(fastest_peak_bytes(point))
        rows.append(f"{where}: {seconds(step)} a step{rate}, {peak}{_piped(point.pipeline)}")
    misses = [range_text(run) for run in document.does_not_fit or ()]
    misses += [f"not known: {text}" for text in missing_texts(document)]
    name, hardware = document.graph_name or "The job", document.hardware or "this hardware"
    counts = f"fits on {len(fitting)} of {len(document.points)} counts."
    return [f"{name} on {hardware}: {counts}", *_few(misses), *_few(rows)]


def _piped(pipeline: PipelinePoint | UnsetType) -> str:
    """Returns which pipeline is the fastest, as the end of a line; no text where none is."""
    return "" if pipeline is UNSET else f", {pipeline_text(pipeline)} micro-batches"


def _quote(document: Quote) -> list[str]:
    fewest = document.minimum_gpus
    fits = (
        "fits on no offer" if fewest is None else f"fits on {counted(fewest, 'GPU')} at the fewest"
    )
    rows = []
    for row in document.offers:
        total = "" if row.usd_total is UNSET else f", {row.usd_total:,.2f} USD in total"
        late = ", late" if row.meets_deadline is False else ""
        rows.append(
            f"{row.instances} x {row.provider} {row.instance_type} ({row.region}): "
            f"{row.usd_per_hour:.2f} USD/h, {seconds(step_s(row, document.overlap))} a step"
            f"{_piped(row.pipeline)}{total}{late}, price of {row.price_as_of}"
        )
    stale = ["Some prices are older than 90 days."] if document.stale else []
    left_out = [f"Not offered: {row.instance_type}: {row.reason}" for row in document.not_offered]
    return [
        f"{document.graph_name} {fits}.",
        *_few(rows),
        *stale,
        *(left_out[:MOST_LINES] if not rows else ()),
    ]


def _comparison(document: Comparison) -> list[str]:
    rows = []
    for method, point in ranked(document):
        step = point.replayed_time_s or point.time_s
        fits = "" if point.feasible else ", does not fit"
        strategy = strategy_of(point)
        rows.append(
            f"{method.title}: {seconds(step)} a step{fits}{f', {strategy}' if strategy else ''}"
        )
    heading = f"{document.graph_name} on {counted(document.gpus, 'GPU')} of {document.hardware}:"
    proof = [] if document.certificate is UNSET else [_proof(document.certificate)]
    return [heading, *_few(rows), *proof]


def _pricing(document: Pricing) -> list[str]:
    plan, best = document.plan, document.best
    predicted = plan.predicted
    left_out = [] if document.left_out is UNSET else document.left_out
    lines = [
        f"{document.trainer}: {strategy_text(document.parallelism)}",
        f"{plan.graph_name} on {counted(plan.gpus, 'GPU')} of {plan.hardware}: "
        f"{seconds(predicted.replayed_time_s)} a step, peak {gib_with_unit(predicted.peak_bytes)} "
        f"of {gib_with_unit(plan.memory_limit_bytes)}: "
        f"{verdict(document.fits, left_out)}.",
    ]
    if document.stated is not UNSET:
        lines.append(f"From the file: {', '.join(document.stated)}.")
    if best is not None:
        lines.append(
            f"Best of {document.trainer}: {strategy_text(best.parallelism)}: "
            f"{seconds(best.replayed_time_s)} ({best.saves:+.1%} saved)."
        )
    elif document.fits:
        lines.append(f"No other strategy of {document.trainer} that fits is faster.")
    rows = [
        f"{one.text}: {seconds(one.replayed_time_s)} ({one.saves:+.1%} saved), "
        f"{gib_with_unit(one.peak_bytes)}{'' if one.fits else ', does not fit'}"
        for one in document.alternatives
    ]
    return [*lines, *_few(rows), *_few([f"Not read: {line}" for line in document.unread])]


def _export(document: Export) -> list[str]:
    return [
        *document.text.splitlines(),
        *(f"Not in the text: {sentence}" for sentence in document.unsaid),
    ]


def _graphs(document: Graphs) -> list[str]:
    return [
        f"{one.graph}: {one.source}, batch {one.batch}"
        + ("" if one.sequence is None else f", sequence {one.sequence}")
        + f", {one.dtype}"
        for one in document.graphs
    ]


def _graphs_page(document: GraphsPage) -> list[str]:
    lines = [
        f"{one.id}: {one.name}, {one.parameters:,} parameters, {counted(one.operators, 'operator')}"
        for one in document.items
    ]
    more = [] if document.next is None else [f"More with cursor {document.next}."]
    return [*lines, *more, *_graphs(Graphs(document.shipped))]


def _hardware_page(document: HardwarePage) -> list[str]:
    lines = [
        f"{one.name if one.builtin else f'{one.id}: {one.name}'}: {one.gpus_per_node} x "
        f"{one.device} {gib_with_unit(one.memory_bytes)}"
        for one in (*document.items, *document.builtin)
    ]
    return [*lines, *([] if document.next is None else [f"More with cursor {document.next}."])]


def _profiles(document: Profiles) -> list[str]:
    return [
        f"{one.hardware}: "
        + ", ".join(
            f"{of.per_node} x {of.kind} {gib_with_unit(of.memory_bytes)}" for of in one.devices
        )
        for one in document.profiles
    ]


_TEXTS: Mapping[type, Callable[[Any], list[str]]] = {
    Comparison: _comparison,
    Curve: _curve,
    Export: _export,
    Frontier: _frontier,
    Graphs: _graphs,
    GraphsPage: _graphs_page,
    HardwarePage: _hardware_page,
    Pipeline: _plan,
    PipelineExplanation: _explanation,
    Pricing: _pricing,
    Profiles: _profiles,
    Quote: _quote,
    WholeExplanation: _explanation,
    WholePlan: _plan,
}


def _few(lines: Sequence[str]) -> list[str]:
    """Returns at most `MOST_LINES` lines, both ends of a longer list, and how many there are."""
    if len(lines) <= MOST_LINES:
        return [*lines]
    half = MOST_LINES // 2
    return [*lines[:half], f"… {len(lines) - MOST_LINES} more …", *lines[-half:]]


def _proof(certificate: Certificate) -> str:
    if certificate.epsilon is None:
        return "Nothing is proven of what was not found."
    gap = max(certificate.epsilon, 0.0)
    return f"Proven: no strategy of the searched space is better by more than {gap:.1%}."
