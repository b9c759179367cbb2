"""solve: the bare solver on a cost-annotated graph."""

from __future__ import annotations

from typing import Any

import click

from shardwise import validation
from shardwise.cli.arguments import json_option, quiet_option
from shardwise.cli.output import emit, progress, proven, say, stop_if_cancelled, table
from shardwise.cost.options import SOLVER_METHODS
from shardwise.documents.common import Certificate

MOST_ROWS = 24


@click.command()
@click.argument("problem")
@click.option(
    "--epsilon", type=float, default=0.0, show_default=True, help="Certified error; 0: exact."
)
@click.option(
    "--method", type=click.Choice(SOLVER_METHODS), default="auto", show_default=True,
    help="How it is searched (docs/methods.md).",
)  # fmt: skip
@click.option("--time-limit", type=float, help="Seconds.")
@quiet_option
@json_option
def solve(
    problem: str,
    epsilon: float,
    method: str,
    time_limit: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Track the frontier of a problem file."""
    from shardwise.search.problem import read_problem, solve_problem

    read = read_problem(problem)
    with progress(quiet or as_json) as listener:
        document = solve_problem(
            read, method=method, epsilon=epsilon, time_limit_s=time_limit, progress=listener
        )
    if as_json:
        emit(document)
    else:
        _points(document)
    stop_if_cancelled(_certificate(document))


def _points(document: dict[str, Any]) -> None:
    points = document["points"]
    table(
        f"{len(points)} points",
        ("point", "memory (bytes)", "time (s)"),
        [(i, f"{p['memory_bytes']:,.10g}", f"{p['time_s']:.8g}") for i, p in enumerate(points)][
            :MOST_ROWS
        ],
    )
    if len(points) > MOST_ROWS:
        say(f"… {len(points) - MOST_ROWS} more: see --json")
    say(proven(_certificate(document)))


def _certificate(document: dict[str, Any]) -> Certificate:
    return validation.convert(document["certificate"], Certificate)
