"""The report as a page: rows in tables, whose columns say their unit by the end of their name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .parts import Outcome, Row

TABLES = {
    "step": "Training steps on one device: medians of ten after three, launched without waiting in "
    "between, with Adam on float32 copies of 16-bit parameters one by one (`update`). Compiling is "
    "part of `warm up` alone. `measured profile` predicts with what this run measured.",
    "plan": "Plans on one rank, run as `shardwise run` runs them; predicted with the measured "
    "profile.",
    "floor": "The host's time for one pass of an operator (the backward of a product has two): "
    "forward and backward of layers so small that the device waits. Profiles have the median as "
    "`host.operator_s`.",
    "launch": "The smallest operator, one by one and in a CUDA graph; waiting for nothing.",
    "copy": "Copies.",
    "product": "Matrix products alone, back to back; utilisation is the share of the roofline. "
    "`profile utilisation` is at the clocks of its table, before `sustained_clock`.",
    "sustained": "A large product in a short burst, and after seconds of load; the ratio is the "
    "profile's `sustained_clock`.",
    "attention": "Causal attention alone; utilisation is the share of the peak, of the half that "
    "the mask leaves.",
    "operators": "Operators of a step by kind: by the profile, and with the tables measured here.",
    "power": "Power and clocks.",
    "parts": "The parts of the run.",
}


@dataclass
class Report:
    """A run as far as it has come: how it was asked for, on what, and what its parts told."""

    run: Row
    machine: Row
    seconds: float = 0.0
    before: Row = field(default_factory=dict)
    after: Row = field(default_factory=dict)
    parts: list[Outcome] = field(default_factory=list)

    def tables(self) -> dict[str, list[Row]]:
        """Returns the rows of all parts by kind, in the order of the page."""
        found = {
            kind: [row for part in self.parts for row in part.rows.get(kind, [])] for kind in TABLES
        }
        power = [("before", self.before), *((p.name, p.power) for p in self.parts)]
        power.append(("after", self.after))
        found["power"] = [{"while": name, **row} for name, row in power if row]
        found["parts"] = [
            {"part": p.name, "seconds": round(p.ended - p.began), "error": p.error or None}
            for p in self.parts
        ]
        return found


def markdown(report: Report) -> str:
    """Returns the page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# {report.machine['name']} against the predictions\n"
    yield f"Errors are predicted over measured, minus 1. The run took {report.seconds:.0f} s."
    if report.run["quick"]:
        yield "Its sizes are tiny and say nothing about training."
    facts = {**report.run, **report.machine}
    yield from ("", *(f"- {name}: {_cell(name, value)}" for name, value in facts.items()))
    for kind, rows in report.tables().items():
        yield f"\n## {kind.capitalize()}\n\n{TABLES[kind]}\n"
        yield from _table(rows) if rows else ["Nothing was measured."]
        yield from _errors(rows) if kind != "operators" else ()
    left = [f"- {part.name}: {what}" for part in report.parts for what in part.left_out]
    yield from ("\n## Left out\n", *(left or ["Nothing."]))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    names = list(
        dict.fromkeys(name for row in rows for name in row if name not in ("began", "ended"))
    )
    heads = [name.removesuffix("_s").removesuffix("_per").replace("_", " ") for name in names]
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(_cell(name, row.get(name)) for name in names)} |"


def _errors(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the size of the errors of each kind of rows: how steps ran, of what products are."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name.endswith("error") and isinstance(value, float):
                which = row.get("how") or row.get("of") or "all"
                errors[f"{name.replace('_', ' ')}, {which}"].append(abs(value))
    yield from [""] if errors else []
    for name, found in errors.items():
        middle, high = np.percentile(found, (50, 90))
        yield f"- {name}: {middle:.1%} in the median of {len(found)}, {high:.1%} at p90"


def _cell(name: str, value: Any) -> str:
    """Returns a value in the unit that its name ends with."""
    if value is None or isinstance(value, str | bool):
        return "–" if value is None else str(value)
    if name.endswith("per_s"):
        return f"{value / 1e9:.4g} GB/s"
    if name.endswith("_s"):
        scale, unit = (1e6, "µs") if value < 1e-3 else (1e3, "ms") if value < 10.0 else (1.0, "s")
        return f"{value * scale:.4g} {unit}"
    if name.endswith("bytes"):
        return f"{value / 2**30:.2f} GiB" if value > 2**27 else f"{value / 2**20:.2f} MiB"
    if name.endswith("error"):
        return f"{value:+.1%}"
    if name.endswith(("utilisation", "share")):
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
