"""TensorOpt Table 3: seconds to track a frontier on 16 GPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from paper.models import subject
from paper.result import Claim, Result, Table
from paper.setting import GPUS, PAPER, cluster
from shardwise.errors import SolverError
from shardwise.search.search import search

LIMIT_S = 60.0
THEIRS = {
    "wide-resnet": (1292.0, 19666.0, 17432.0),
    "rnn": (0.28, 1.78, 0.40),
    "transformer": (201.0, 3030.0, 1535.0),
}


@dataclass(frozen=True)
class Way:
    """One way to search, and the paper's column that it is compared with."""

    title: str
    method: str
    threads: int
    column: int | None


WAYS = (
    Way("certified, 1 %", "auto", 0, 0),
    Way("certified, 1 %, one thread", "auto", 1, 2),
    Way("exact, LDP", "ldp", 0, 0),
    Way("exact, elimination", "elimination", 0, 1),
    Way("heuristic elimination", "heuristic", 0, 0),
)


def timed(model: str, way: Way) -> dict[str, Any]:
    """Seconds of a whole answer from a read graph; without one, the limit that it ran into."""
    options = replace(PAPER, method=way.method, threads=way.threads, time_limit_s=LIMIT_S)
    ready = subject(model)
    started = time.perf_counter()
    try:
        result = search(ready, cluster(), GPUS, options)
    except SolverError as reason:
        return {"seconds": time.perf_counter() - started, "status": str(reason)}
    return {
        "seconds": time.perf_counter() - started,
        "status": result.solution.status,
        "points": len(result.time_s),
        "certified": result.solution.exact or float(result.solution.epsilon) <= PAPER.epsilon,
    }


def make() -> Result:
    result = Result("table3", "TensorOpt Table 3: running time of the search on 16 GPUs (s)")
    figures = {way.title: {model: timed(model, way) for model in THEIRS} for way in WAYS}
    result.data = {"ours": figures, "limit_s": LIMIT_S}
    rows: list[tuple[str, ...]] = []
    names = ("FT-LDP", "FT-Elimination", "FT-LDP, one thread")
    for column, name in enumerate(names):
        rows.append((f"*{name}, paper*", *(f"{THEIRS[m][column]:,g}" for m in THEIRS)))
    for title, by_model in figures.items():
        rows.append((title, *(_cell(by_model[m]) for m in THEIRS)))
    result.tables.append(Table(("", *THEIRS), rows))
    ours = figures[WAYS[0].title]
    result.claims = [
        Claim(
            "minutes for very complex models are acceptable",
            all(f["certified"] and f["seconds"] < 60 for f in ours.values()),
            ", ".join(f"{m} {f['seconds']:.2g} s" for m, f in ours.items()) + ", within 1 %",
        )
    ]
    return result


def _cell(figure: dict[str, Any]) -> str:
    if "points" not in figure:
        return f"stopped at {figure['seconds']:.0f}"
    certified = "" if figure["certified"] else ", nothing certified"
    return f"{figure['seconds']:.2g} ({figure['points']} points{certified})"
