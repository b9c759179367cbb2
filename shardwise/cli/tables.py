"""Curves and quotes as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.cli.output import note, say, say_searched, table
from shardwise.cost.options import NEVER
from shardwise.cost.shares import SOURCES, shares_text
from shardwise.documents import Curve, CurvePoint, FrontierPoint, Quote
from shardwise.documents.curve import (
    DoesNotFit,
    fastest_peak_bytes,
    fastest_s,
    fastest_samples_per_s,
    fits,
    missing_texts,
)
from shardwise.documents.pipeline_point import pipeline_text
from shardwise.documents.quote import (
    NO_PROFILE,
    Combinations,
    NotOffered,
    OfferRow,
    prices_dated,
    step_s,
)
from shardwise.texts import counted, gib, seconds

MOST_OFFERS = 24
MOST_NAMES = 3
"""Maximum instances named in a line of one reason."""


def curve_table(document: Curve, recompute: str) -> None:
    """Prints the counts that do not fit as ranges, and a row for each of the others.

    `recompute` says whether forward might run again in backward.
    """
    say_searched(document.not_searched)
    fitting = [point for point in document.points if fits(point)]
    if document.bundles is not UNSET:
        _bundles_table(document, fitting, recompute)
        return
    times = ("step",) if document.overlap else ("time", "overlapped")
    rows, piped = [], any(point.pipeline is not UNSET for point in fitting)
    for point in fitting:
        best, rate = point.best_gpus, fastest_samples_per_s(point)
        rows.append(
            (
                point.gpus,
                point.nodes,
                *(() if document.overlap else (seconds(point.time_s),)),
                seconds(fastest_s(point, overlap=True)),
                "-" if rate is None else f"{rate:,.1f}",
                gib(fastest_peak_bytes(point)),
                gap_text(point.gap if point.pipeline is UNSET else None),
                _scaling_text(point),
                *((_pipeline_text(point),) if piped else ()),
                "" if point.idle is UNSET else f"{point.idle} idle: {best} are faster",
            )
        )
    ranges_table(document.does_not_fit, recompute)
    _missing_lines(document)
    if rows:
        program_line(document.program)
        table(
            f"{document.graph_name} on {document.hardware}",
            (
                "GPUs",
                "nodes",
                *times,
                "samples/s",
                "peak GiB",
                "gap",
                "of linear",
                *(("pipeline, micro-batches",) if piped else ()),
                "reason",
            ),
            rows,
        )
        _compute_line([point for point in fitting if point.feasible])


def point_line(curve: Curve) -> str:
    """Returns the text of a curve's only count or bundle: `8 GPUs: 8.317 s a step, FSDP 8`.

    Empty for a curve without points.
    """
    if not curve.points:
        return ""
    point = curve.points[0]
    devices = point.bundle or counted(point.gpus, "GPU")
    step_s = fastest_s(point, overlap=True)
    if step_s is None:
        return f"{devices}: nothing fits"
    strategy = _pipeline_text(point) or point.label or ""
    idle = "" if point.idle is UNSET else f", {point.idle} of them idle"
    return f"{devices}: {seconds(step_s)} a step{idle}{f', {strategy}' if strategy else ''}"


def _scaling_text(point: CurvePoint) -> str:
    """Returns a count's share of linear speed-up."""
    return f"{point.efficiency:.0%}" if isinstance(point.efficiency, float) else "-"


def _missing_lines(document: Curve) -> None:
    """Prints the missing counts of a curve that met a limit, a line for each reason."""
    for text in missing_texts(document):
        say(f"not known: {text}")


def _pipeline_text(of: CurvePoint | OfferRow) -> str:
    """Returns the faster pipeline in words; empty if there is none."""
    return "" if of.pipeline is UNSET else pipeline_text(of.pipeline)


def _bundles_table(document: Curve, fitting: Sequence[CurvePoint], recompute: str) -> None:
    ranges_table(document.does_not_fit, recompute)
    _missing_lines(document)
    rows, piped = [], any(point.pipeline is not UNSET for point in fitting)
    for point in fitting:
        rate, alone = fastest_samples_per_s(point), point.pipeline is UNSET and point.alone
        rows.append(
            (
                point.bundle,
                point.gpus,
                seconds(fastest_s(point, overlap=True)),
                "-" if rate is None else f"{rate:,.1f}",
                peaks_text(point),
                gap_text(point.gap if point.pipeline is UNSET else None),
                "-" if point.usd_per_hour is UNSET else f"{point.usd_per_hour:.2f}",
                *((_pipeline_text(point),) if piped else ()),
                f"{alone} alone" if alone else "",
            )
        )
    if rows:
        table(
            f"{document.graph_name} on {document.hardware}",
            (
                "bundle",
                "GPUs",
                "step",
                "samples/s",
                "peak GiB",
                "gap",
                "USD/h",
                *(("pipeline, micro-batches",) if piped else ()),
                "faster",
            ),
            rows,
        )
        _compute_line([point for point in fitting if point.feasible])


def peaks_text(point: CurvePoint) -> str:
    """Returns the peaks of several places in GiB, or that of one GPU, or of the faster pipeline."""
    if point.places is UNSET or point.pipeline is not UNSET:
        return gib(fastest_peak_bytes(point))
    return ", ".join(f"{place.place} {gib(place.peak_bytes)}" for place in point.places)


def gap_text(gap: float | UnsetType | None) -> str:
    """Returns a relative gap for a table."""
    return f"{gap:.1%}" if isinstance(gap, float) else "-"


def ranges_table(ranges: Sequence[DoesNotFit], recompute: str) -> None:
    """Prints a line for each range of counts that do not fit, and options that would take less
    memory."""
    from shardwise.answers.ranges import range_text

    for run in ranges:
        say(range_text(run))
    _recompute_hint(ranges, recompute)


def _recompute_hint(ranges: Sequence[DoesNotFit], recompute: str) -> None:
    if recompute == NEVER and any(run.least_bytes is not None for run in ranges):
        say("Running forward again in backward keeps less: --recompute auto.")


def _compute_line(points: Sequence[CurvePoint | OfferRow]) -> None:
    """Prints the line of `compute_basis`; nothing if only pipelines are shown."""
    if points:
        say(compute_basis(points))


def program_line(program: str | UnsetType) -> None:
    """Prints the program of a step, if a document states it."""
    if program:
        say(f"Program: {program}.")


def compute_basis(points: Sequence[FrontierPoint | CurvePoint | OfferRow]) -> str:
    """Returns a line with the measured share of these points' compute times."""
    known = [p.compute_shares for p in points if p.compute_shares is not None]
    if not known:
        return "Compute times: none."
    if all(shares.modelled == 1.0 for shares in known):
        return "Compute times: modelled (roofline)."
    least = min(known, key=lambda shares: shares.measured)
    return f"Compute times: at least {shares_text(least)}."


def curve_csv(curve: Curve) -> str:
    """Returns the points with a column for each member.

    Shares of the compute time have one each, and so have members of pipelines.
    """
    points = [_flat(msgspec.to_builtins(point)) for point in curve.points]
    columns = list(dict.fromkeys(key for point in points for key in point))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return text.getvalue()


def _flat(point: dict[str, Any]) -> dict[str, Any]:
    shares, pipeline = point.get("compute_shares"), point.get("pipeline", {})
    columns = {f"compute_{name}": shares and shares[name] for name in SOURCES}
    for name, value in pipeline.items():
        columns[f"pipeline_{name}"] = "; ".join(value) if isinstance(value, list) else value
    nested = ("compute_shares", "pipeline")
    return {key: value for key, value in point.items() if key not in nested} | columns


def quote_table(document: Quote, recompute: str) -> None:
    """Prints the offers, and those left out with the reason.

    `recompute` says whether forward might run again in backward.
    """
    say_searched(document.not_searched)
    if document.minimum_gpus is not None:
        fewest = counted(document.minimum_gpus, "GPU")
        say(f"{document.graph_name}: fits on {fewest} at the fewest.")
    if document.stale:
        note("some prices are older than 90 days: see price_as_of in --json")
    piped = any(row.pipeline is not UNSET for row in document.offers[:MOST_OFFERS])
    rows = [
        (
            f"{row.provider} {row.instance_type}" + (" (spot)" if row.spot else ""),
            row.instances,
            _gpus(row),
            row.region,
            f"{row.usd_per_hour:.2f}",
            seconds(step_s(row, document.overlap)),
            _money(row),
            *((_pipeline_text(row),) if piped else ()),
        )
        for row in document.offers[:MOST_OFFERS]
    ]
    if rows:
        program_line(document.program)
        what = "USD total" if document.steps else "USD/1M samples"
        table(
            "offers, cheapest first",
            (
                "instance",
                "n",
                "GPUs",
                "region",
                "USD/h",
                "step",
                what,
                *(("pipeline, micro-batches",) if piped else ()),
            ),
            rows,
        )
    if rows:
        say(prices_dated(document.offers))
        _compute_line([row for row in document.offers if row.pipeline is UNSET])
    if document.combinations is not UNSET:
        _combinations(document.combinations)
    _not_offered(document.not_offered)
    ranges = [run for row in document.not_offered for run in row.does_not_fit or ()]
    _recompute_hint(ranges, recompute)


def _not_offered(rows: Sequence[NotOffered]) -> None:
    """Prints what is not offered, instances with the same reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        names = by_reason.setdefault(row.reason, [])
        names.append(f"{row.provider} {row.instance_type}")
    without = {
        reason.removeprefix(NO_PROFILE): names
        for reason, names in by_reason.items()
        if reason.startswith(NO_PROFILE)
    }
    for reason, names in by_reason.items():
        if not reason.startswith(NO_PROFILE):
            say(f"not offered: {_first(list(dict.fromkeys(names)))}: {reason}")
    if without:
        instances = counted(sum(len(names) for names in without.values()), "offer")
        say(f"not offered: {NO_PROFILE}{', '.join(sorted(without))} ({instances})")


def _first(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _gpus(row: OfferRow) -> str:
    """Returns the numbers and kinds of an offer's GPUs."""
    if row.parts is UNSET:
        return f"{row.gpus} {row.gpu_kind}"
    return " + ".join(f"{part.gpus} {part.gpu_kind}" for part in row.parts)


def _combinations(document: Combinations) -> None:
    """Prints the combined offers that were tried, with their outcomes."""
    considered = counted(document.considered, "combination")
    say(f"{considered} could be better than one kind, {len(document.tried)} were searched.")
    for one in document.tried:
        say(f"tried: {one.instances} at {one.usd_per_hour:.2f} USD/h: {one.outcome}")


def _money(row: OfferRow) -> str:
    value = row.usd_per_million_samples if row.usd_total is UNSET else row.usd_total
    late = "" if row.meets_deadline is not False else " (late)"
    return "-" if value is UNSET else f"{value:,.2f}{late}"
