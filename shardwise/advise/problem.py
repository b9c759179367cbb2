"""Problem files, `shardwise.problem/1`: a cost-annotated graph without model or hardware."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shardwise import _core
from shardwise.advise.options import Progress
from shardwise.errors import BadInput, SolverError

PROBLEM_SCHEMA = "shardwise.problem/1"
FRONTIER_SCHEMA = "shardwise.frontier/1"
DEFAULT_MAX_BYTES = 256 * 2**20


class _Cost(msgspec.Struct):
    memory_bytes: float
    time_s: float


class _Operator(msgspec.Struct):
    name: str
    choices: list[_Cost]


class _Edge(msgspec.Struct):
    source: str
    target: str
    choices: list[list[list[_Cost]]]


class _Document(msgspec.Struct):
    schema: str
    operators: list[_Operator]
    edges: list[_Edge] = []


@dataclass(frozen=True)
class ProblemFile:
    """A checked problem and the solver's form of it."""

    operator_names: tuple[str, ...]
    edge_count: int
    core: _core.Problem


def read_problem(path: str | Path) -> ProblemFile:
    """Read and check a problem file; `BadInput` names file and field."""
    file = str(path)
    limit = int(os.environ.get("SHARDWISE_MAX_FILE_BYTES", DEFAULT_MAX_BYTES))
    try:
        size = Path(path).stat().st_size
        if size > limit:
            raise BadInput(f"the file has {size:,} bytes", file=file, expected=f"at most {limit:,}")
        text = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(error.strerror or "cannot be read", file=file) from None
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", file=file) from None
    return problem_from_document(raw, file)


def problem_from_document(raw: Any, file: str | None = None) -> ProblemFile:
    """Check a decoded problem document."""
    if not isinstance(raw, dict):
        raise BadInput("not an object", file=file, expected=f"an object of {PROBLEM_SCHEMA}")
    if raw.get("schema") != PROBLEM_SCHEMA:
        raise BadInput(
            f"unknown schema {raw.get('schema')!r}",
            file=file,
            field="schema",
            expected=PROBLEM_SCHEMA,
        )
    try:
        document = msgspec.convert(raw, _Document)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        raise BadInput(
            message, file=file, field=where.strip("`").removeprefix("$.") or None
        ) from None
    return _build(document, file)


def _build(document: _Document, file: str | None) -> ProblemFile:
    core = _core.Problem()
    index: dict[str, int] = {}
    counts: list[int] = []
    for i, operator in enumerate(document.operators):
        at = f"operators[{i}]"
        if operator.name in index:
            raise BadInput(
                f"the name {operator.name!r} is taken",
                file=file,
                field=f"{at}.name",
                expected="a name of its own",
            )
        if not operator.choices:
            raise BadInput(
                "no choices", file=file, field=f"{at}.choices", expected="at least one choice"
            )
        for k, cost in enumerate(operator.choices):
            _check(cost, file, f"{at}.choices[{k}]")
        costs = core.add_costs(
            np.array([c.memory_bytes for c in operator.choices]),
            np.array([c.time_s for c in operator.choices]),
        )
        index[operator.name] = core.add_operator(operator.name, costs)
        counts.append(len(operator.choices))
    for e, edge in enumerate(document.edges):
        _add_edge(core, index, counts, edge, file, f"edges[{e}]")
    return ProblemFile(tuple(index), len(document.edges), core)


def _add_edge(
    core: _core.Problem,
    index: dict[str, int],
    counts: list[int],
    edge: _Edge,
    file: str | None,
    at: str,
) -> None:
    for end in ("source", "target"):
        if getattr(edge, end) not in index:
            raise BadInput(
                f"no operator is named {getattr(edge, end)!r}",
                file=file,
                field=f"{at}.{end}",
                expected="the name of an operator",
            )
    if edge.source == edge.target:
        raise BadInput(
            "an edge from an operator to itself",
            file=file,
            field=f"{at}.target",
            expected="another operator than the source",
        )
    source, target = index[edge.source], index[edge.target]
    rows, columns = counts[source], counts[target]
    if len(edge.choices) != rows:
        raise BadInput(
            f"{len(edge.choices)} rows",
            file=file,
            field=f"{at}.choices",
            expected=f"{rows}, one per choice of {edge.source}",
        )
    most = 1
    for i, row in enumerate(edge.choices):
        if len(row) != columns:
            raise BadInput(
                f"{len(row)} columns",
                file=file,
                field=f"{at}.choices[{i}]",
                expected=f"{columns}, one per choice of {edge.target}",
            )
        for j, cell in enumerate(row):
            if not 1 <= len(cell) <= 255:
                raise BadInput(
                    f"{len(cell)} alternatives",
                    file=file,
                    field=f"{at}.choices[{i}][{j}]",
                    expected="1 to 255",
                )
            most = max(most, len(cell))
            for a, cost in enumerate(cell):
                _check(cost, file, f"{at}.choices[{i}][{j}][{a}]")
    memory, time = np.zeros((rows, columns, most)), np.zeros((rows, columns, most))
    count = np.zeros((rows, columns), dtype=np.uint8)
    for i, row in enumerate(edge.choices):
        for j, cell in enumerate(row):
            count[i, j] = len(cell)
            for a, cost in enumerate(cell):
                memory[i, j, a], time[i, j, a] = cost.memory_bytes, cost.time_s
    table = core.add_table(memory, time, count)
    core.add_edge(
        source,
        target,
        table,
        np.arange(rows, dtype=np.uint32),
        np.arange(columns, dtype=np.uint32),
    )


def _check(cost: _Cost, file: str | None, at: str) -> None:
    for name in ("memory_bytes", "time_s"):
        value = getattr(cost, name)
        if not isfinite(value) or value < 0:
            raise BadInput(
                f"{value} is no cost",
                file=file,
                field=f"{at}.{name}",
                expected="a finite number that is not negative",
            )


def solve_problem(
    problem: ProblemFile,
    *,
    method: str = "auto",
    epsilon: float = 0.0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The frontier of a problem, as the document `shardwise.frontier/1`.

    Raises `SolverError` when the method gives up before any answer (too wide, too many
    strategies for brute force, out of time), `BadInput` for settings out of range.
    """
    if not (isfinite(epsilon) and epsilon >= 0):
        raise BadInput(f"{epsilon}", field="epsilon", expected="a finite number from 0")
    if time_limit_s is not None and not (isfinite(time_limit_s) and time_limit_s > 0):
        raise BadInput(f"{time_limit_s}", field="time-limit", expected="seconds above 0")
    try:
        solution = _core.solve(
            problem.core,
            method=method,
            epsilon=epsilon,
            time_limit_s=time_limit_s,
            progress=progress,
        )
    except (RuntimeError, TimeoutError) as error:
        raise SolverError(str(error)) from None
    names = problem.operator_names
    points = [
        {
            "memory_bytes": _plain(memory),
            "time_s": float(time),
            "choices": dict(zip(names, (int(c) for c in choices), strict=True)),
            "edge_choices": [int(a) for a in alternatives],
        }
        for memory, time, choices, alternatives in zip(
            solution.memory_bytes,
            solution.time_s,
            solution.choices,
            solution.edge_choices,
            strict=True,
        )
    ]
    proven = isfinite(solution.epsilon)
    return {
        "schema": FRONTIER_SCHEMA,
        "points": points,
        "certificate": {
            "exact": bool(solution.exact),
            "epsilon": float(solution.epsilon) if proven else None,
            "status": solution.status,
        },
        "search": {
            "seconds": float(solution.seconds),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "method": solution.method,
        },
    }


def _plain(value: float) -> int | float:
    """A whole number of bytes as such."""
    return int(value) if float(value).is_integer() else float(value)
