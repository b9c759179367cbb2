"""frontier: the named strategies, for a decision."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.cli.output import say, table
from shardwise.documents import Frontier
from shardwise.documents.frontier import WITHIN, NamedStrategy
from shardwise.texts import counted, gib, seconds


def named_table(document: Frontier, named: Sequence[NamedStrategy]) -> None:
    """Prints the strategies that fit, with the price of each."""
    table(
        f"{document.graph_name} on {counted(document.gpus, 'GPU')} of {document.hardware}: "
        f"strategies that fit, within {WITHIN:.0%} of the fastest "
        f"({counted(len(document.points), 'point')} with --all)",
        ("strategy", "step", "peak GiB", "gives up"),
        [
            (one.label, seconds(one.replayed_time_s), gib(one.replayed_peak_bytes), _given_up(one))
            for one in named
        ],
    )
    if document.turning_point is not None:
        knee = document.points[document.turning_point]
        say(
            f"turning point of all: {seconds(knee.replayed_time_s)}, "
            f"{gib(knee.replayed_peak_bytes)} GiB: {knee.label or '-'}"
        )


def _given_up(one: NamedStrategy) -> str:
    parts = [f"{one.slower:.1%} of the step"] if round(one.slower, 3) > 0 else []
    if one.more_bytes / 2**30 >= 0.05:
        parts.append(f"{gib(one.more_bytes)} GiB")
    return ", ".join(parts) or "nothing"
