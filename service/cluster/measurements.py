"""Measurements that agents report: `shardwise.measurement/1`, checked and bounded."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.validation import convert

SCHEMA = "shardwise.measurement/1"
MAX_ITERATIONS = 1000
MAX_NAME = 200


class Errors(msgspec.Struct):
    """Relative errors, measured over predicted less 1; None where there is nothing to compare."""

    iteration: float | None = None
    compute: float | None = None
    communication: float | None = None
    peak: float | None = None


class Iterations(msgspec.Struct):
    """Seconds of one step."""

    median: float
    p10: float | None = None
    p90: float | None = None
    all: list[float] = []


class Measured(msgspec.Struct):
    """The members that the service reads; others are kept as they come."""

    schema: str
    graph: str
    iteration_s: Iterations
    predicted: dict[str, Any]
    errors: Errors
    plan: str = ""
    graph_name: str = ""
    hardware: str = ""
    hardware_id: str | None = None
    nodes: int | None = None
    gpus: int = 1
    steps: int = 0
    compute_s: float | None = None
    communication_s: float | None = None
    device_kind: str = ""


def check_measurement(document: Any) -> Measured:
    """Returns the measurement. Raises BadInput with the field if it is invalid."""
    if not isinstance(document, dict):
        raise BadInput("not an object", field="document", expected=f"a {SCHEMA} document")
    measured = convert(document, Measured, "document")
    spread = measured.iteration_s
    given = (spread.p10, spread.p90, measured.compute_s, measured.communication_s)
    times = [spread.median, *spread.all, *(t for t in given if t is not None)]
    errors = [error for error in msgspec.structs.astuple(measured.errors) if error is not None]
    for holds, name, problem, expected in (
        (measured.schema == SCHEMA, "schema", f"unknown schema {measured.schema[:60]!r}", SCHEMA),
        (len(measured.graph) <= 71, "graph", "a long id", "the id of a graph"),
        (measured.steps >= 0, "steps", f"{measured.steps}", "a whole number from 0"),
        (len(spread.all) <= MAX_ITERATIONS, "iteration_s.all", "too many",
         f"at most {MAX_ITERATIONS}"),
        (all(isfinite(t) and t >= 0 for t in times), "iteration_s", "a time below 0",
         "finite seconds"),
        (all(isfinite(e) and e >= -1 for e in errors), "errors", "not a relative error",
         "measured over predicted less 1: finite, at least -1"),
        (_agree(spread, measured.steps), "iteration_s",
         "a spread that is not between its own times", "p10, median and p90 of the steps' times"),
        (1 <= measured.gpus <= 10**6, "gpus", f"{measured.gpus}", "a whole number from 1"),
        (len(measured.device_kind) <= 100, "device_kind", "a long name", "at most 100 characters"),
        (len(measured.hardware) <= 500, "hardware", "a long name", "at most 500 characters"),
        (len(measured.hardware_id or "") <= 71, "hardware_id", "a long id", "the id of a profile"),
        (len(measured.graph_name) <= 1000, "graph_name", "a long name", "at most 1000 characters"),
    ):  # fmt: skip
        if not holds:
            raise BadInput(problem, field=f"document.{name}", expected=expected)
    return measured


def _agree(spread: Iterations, steps: int) -> bool:
    """Returns whether a spread can be one of its own times, which are those of the first steps."""
    low = spread.median if spread.p10 is None else spread.p10
    high = spread.median if spread.p90 is None else spread.p90
    if not low <= spread.median <= high:
        return False
    whole = bool(spread.all) and steps <= len(spread.all)
    return not whole or (min(spread.all) <= low and high <= max(spread.all))
