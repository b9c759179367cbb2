"""HeteroG Table 6: how long a strategy for a model that was not seen takes to find.

Ours is found in CPU seconds of one core: the search over all devices, which ends at a limit of its
own (`heterog_runs.py`), and those of each group alone.
"""

from __future__ import annotations

from paper.heterog_published import MINUTES
from paper.heterog_times import Line, lines
from paper.result import Claim, Result, Table

CLUSTERS = (8, 12)
LESS = 0.1
"""The share of the paper's time within which ours is to be."""


def make() -> Result:
    result = Result("heterog_table6", "HeteroG Table 6: time to find a strategy")
    found = {}
    for gpus in CLUSTERS:
        of_models = lines(gpus)
        if all(line.is_searched for line in of_models):
            found[gpus] = {line.model: line for line in of_models}
    rows = []
    for model, printed in MINUTES.items():
        cells: list[str] = []
        for gpus, (scratch, tuned) in zip(found, printed, strict=False):
            ours = seconds(found[gpus][model])
            times = f"{60.0 * tuned / ours:.0f} times"
            cells += [f"{scratch:g}, {tuned:g} min", f"**{ours:.0f} s**", times]
        rows.append((model, *cells))
    headers = (
        text
        for gpus in found
        for text in (f"{gpus} GPUs: from scratch, tuned", "ours, CPU", "tuned ÷ ours")
    )
    result.tables = [Table(("model", *headers), rows)]
    result.claims = [_sooner(gpus, found[gpus], at) for at, gpus in enumerate(found)]
    if len(found) == len(CLUSTERS):
        result.claims.append(_more_devices(found))
    result.data = {str(g): {m: seconds(line) for m, line in of.items()} for g, of in found.items()}
    return result


def seconds(line: Line) -> float:
    """CPU seconds in which our answer was found."""
    return float(line.ours["cpu_seconds"])


def _sooner(gpus: int, found: dict[str, Line], at: int) -> Claim:
    tuned = {model: 60.0 * minutes[at][1] for model, minutes in MINUTES.items()}
    slowest = max(found.values(), key=seconds)
    return Claim(
        f"{gpus} GPUs: {min(tuned.values()) / 60:.0f} to {max(tuned.values()) / 60:.0f} minutes "
        f"with a trained network; ours takes less than {LESS:.0%} of that for every model",
        all(seconds(line) < LESS * tuned[model] for model, line in found.items()),
        f"at most {seconds(slowest):.0f} s ({slowest.model})",
    )


def _more_devices(found: dict[int, dict[str, Line]]) -> Claim:
    growth = [seconds(found[12][model]) / seconds(found[8][model]) for model in MINUTES]
    theirs = [twelve[1] / eight[1] for eight, twelve in MINUTES.values()]
    return Claim(
        f"12 GPUs take at most {max(theirs):.2f} times as long as 8",
        max(growth) <= max(theirs),
        f"{min(growth):.2f} to {max(growth):.2f} times",
    )
