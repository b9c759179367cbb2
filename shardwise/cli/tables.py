"""Curves and quotes as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.cli.output import counted, gib, note, say, seconds, table
from shardwise.cost.options import NEVER
from shardwise.cost.shares import SOURCES, shares_text
from shardwise.documents import Curve, CurvePoint, FrontierPoint, Quote
from shardwise.documents.curve import DoesNotFit
from shardwise.documents.quote import OfferRow, step_s

MOST_OFFERS = 24


def curve_table(document: Curve, recompute: str) -> None:
    """Prints the counts that do not fit as ranges, and a row for each of the others.

    `recompute` says whether forward might run again in backward.
    """
    fitting = [point for point in document.points if point.feasible]
    times = ("step",) if document.overlap else ("time", "overlapped")
    rows = []
    for point in fitting:
        best = point.best_gpus
        rows.append(
            (
                point.gpus,
                point.nodes,
                *(() if document.overlap else (seconds(point.time_s),)),
                seconds(point.replayed_time_s),
                "-" if point.samples_per_s is None else f"{point.samples_per_s:,.1f}",
                gib(point.peak_bytes),
                gap_text(point.gap),
                "" if best == point.gpus else f"{best} are faster",
            )
        )
    ranges_table(document.does_not_fit, recompute)
    if rows:
        table(
            f"{document.graph_name} on {document.hardware}",
            ("GPUs", "nodes", *times, "samples/s", "peak GiB", "gap", "reason"),
            rows,
        )
        say(compute_basis(fitting))


def gap_text(gap: float | UnsetType | None) -> str:
    """Returns a relative gap for a table."""
    return f"{gap:.1%}" if isinstance(gap, float) else "-"


def ranges_table(ranges: Sequence[DoesNotFit], recompute: str) -> None:
    """Prints a line for each range of counts that do not fit, and what would keep less memory."""
    from shardwise.advise.ranges import range_text

    for run in ranges:
        say(range_text(run))
    _recompute_hint(ranges, recompute)


def _recompute_hint(ranges: Sequence[DoesNotFit], recompute: str) -> None:
    if recompute == NEVER and any(run.least_bytes is not None for run in ranges):
        say("Running forward again in backward keeps less: --recompute auto.")


def compute_basis(points: Sequence[FrontierPoint | CurvePoint | OfferRow]) -> str:
    """Returns a line that says how much of these points' compute times was measured."""
    known = [p.compute_shares for p in points if p.compute_shares is not None]
    if not known:
        return "Compute times: none."
    if all(shares.modelled == 1.0 for shares in known):
        return "Compute times: modelled (roofline)."
    least = min(known, key=lambda shares: shares.measured)
    return f"Compute times: at least {shares_text(least)}."


def curve_csv(curve: Curve) -> str:
    """Returns the points with a column for each member.

    Shares of the compute time have one each.
    """
    points = [_flat(msgspec.to_builtins(point)) for point in curve.points]
    columns = list(dict.fromkeys(key for point in points for key in point))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return text.getvalue()


def _flat(point: dict[str, Any]) -> dict[str, Any]:
    shares = point.get("compute_shares")
    columns = {f"compute_{name}": shares and shares[name] for name in SOURCES}
    return {key: value for key, value in point.items() if key != "compute_shares"} | columns


def quote_table(document: Quote, recompute: str) -> None:
    """Prints the offers, and what is not offered and why.

    `recompute` says whether forward might run again in backward.
    """
    if document.minimum_gpus is not None:
        fewest = counted(document.minimum_gpus, "GPU")
        say(f"{document.graph_name}: fits on {fewest} at the fewest.")
    if document.stale:
        note("some prices are older than 90 days: see price_as_of in --json")
    rows = [
        (
            f"{row.provider} {row.instance_type}" + (" (spot)" if row.spot else ""),
            row.instances,
            f"{row.gpus} {row.gpu_kind}",
            row.region,
            f"{row.usd_per_hour:.2f}",
            seconds(step_s(row, document.overlap)),
            _money(row),
        )
        for row in document.offers[:MOST_OFFERS]
    ]
    if rows:
        what = "USD total" if document.steps else "USD/1M samples"
        table(
            "offers, cheapest first",
            ("instance", "n", "GPUs", "region", "USD/h", "step", what),
            rows,
        )
    if rows:
        say(compute_basis(document.offers))
    for row in document.not_offered:
        say(f"not offered: {row.provider} {row.instance_type}: {row.reason}")
    ranges = [run for row in document.not_offered for run in row.does_not_fit or ()]
    _recompute_hint(ranges, recompute)


def _money(row: OfferRow) -> str:
    value = row.usd_per_million_samples if row.usd_total is UNSET else row.usd_total
    late = "" if row.meets_deadline is not False else " (late)"
    return "-" if value is UNSET else f"{value:,.2f}{late}"
