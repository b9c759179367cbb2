"""The bare solver on a file: a cost-annotated graph in, its frontier out.

A problem (`shardwise.problem/1`) holds operators with the memory (bytes) and time (seconds) of each
choice, and edges with the alternatives for every pair of choices. It knows no model or hardware. A
strategy takes one choice per operator and one alternative per edge; its cost is the sum over all of
them (TensorOpt Eq. 3).
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from shardwise import _core, validation
from shardwise.cost.options import SOLVER_METHODS, Progress
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.search.solver_errors import solver_errors

SCHEMA = "shardwise.problem/1"
FRONTIER_SCHEMA = "shardwise.frontier/1"


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Memory in bytes and time in seconds of one choice or alternative."""

    memory_bytes: float
    time_s: float


class ProblemOperator(msgspec.Struct, frozen=True):
    """An operator and its choices."""

    name: str
    choices: list[Cost]


class ProblemEdge(msgspec.Struct, frozen=True):
    """`choices[i][j]`: the alternatives when source takes choice i and target takes choice j."""

    source: str
    target: str
    choices: list[list[list[Cost]]]


class _Document(msgspec.Struct, frozen=True):
    operators: list[ProblemOperator]
    edges: list[ProblemEdge] = []


class _Header(msgspec.Struct, frozen=True):
    schema: str


@dataclass(frozen=True)
class ProblemFile:
    """A problem that has been checked: names are unique and every cost is finite and >= 0."""

    operators: tuple[ProblemOperator, ...]
    edges: tuple[ProblemEdge, ...]


def read_problem(path: str | os.PathLike[str]) -> ProblemFile:
    """Reads and checks a problem file.

    Raises `BadInput` with the file, the field and what was expected. Files above the limit of
    `SHARDWISE_MAX_FILE_BYTES` are refused.
    """
    file = os.fspath(path)
    return problem_from_json(read_bounded(path, f"a {SCHEMA} file"), file)


def problem_from_json(data: bytes, file: str | None = None) -> ProblemFile:
    """Decodes and checks the JSON of a problem; `file` is named in errors."""
    try:
        return _check(_decode(data))
    except BadInput as error:
        raise (error.in_file(file) if file and not error.file else error) from None


def _decode(data: bytes) -> _Document:
    try:
        _check_schema(validation.decode(data, _Header).schema)
        return validation.decode(data, _Document)
    except validation.NotJson:
        # Python's reader names line and column. It also takes NaN and 1e999, which are not
        # JSON, but the user needs to know which field holds one.
        document = _decode_leniently(data)
        _check_schema(document.get("schema"))
        return validation.convert(document, _Document)


def _decode_leniently(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except UnicodeDecodeError as error:
        raise BadInput(
            f"byte {error.start} is not UTF-8 text", expected=f"{SCHEMA} in JSON"
        ) from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"malformed JSON in line {error.lineno}, column {error.colno}: {error.msg.lower()}",
            expected=SCHEMA,
        ) from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"not readable as JSON: {error}", expected=SCHEMA) from None
    if not isinstance(document, dict):
        raise BadInput("the document is not an object", expected=SCHEMA)
    _check_text(document)
    return document


def _check_text(document: dict[str, Any]) -> None:
    """Raises `BadInput` for half of a surrogate pair, which escapes in JSON can spell."""
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        field, value = left.pop()
        texts = [value] if isinstance(value, str) else value if isinstance(value, dict) else []
        for text in texts:
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise BadInput(
                    f"{text!a} is not a string",
                    field=field.removeprefix(".") or None,
                    expected="whole Unicode characters",
                )
        if isinstance(value, dict):
            left += [(f"{field}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{field}[{i}]", inner) for i, inner in enumerate(value)]


def _check_schema(schema: object) -> None:
    if schema != SCHEMA:
        raise BadInput(f"unknown schema {schema!r}", field="schema", expected=SCHEMA)


def _check(document: _Document) -> ProblemFile:
    choices: dict[str, int] = {}
    for i, operator in enumerate(document.operators):
        field = f"operators[{i}]"
        if operator.name in choices:
            raise BadInput(
                f"two operators are called {operator.name!r}",
                field=f"{field}.name",
                expected="unique names",
            )
        if not operator.choices:
            raise BadInput("no choices", field=f"{field}.choices", expected="at least one")
        choices[operator.name] = len(operator.choices)
        for k, cost in enumerate(operator.choices):
            _check_cost(cost, f"{field}.choices[{k}]")
    for e, edge in enumerate(document.edges):
        _check_edge(edge, f"edges[{e}]", choices)
    _check_sums(document)
    return ProblemFile(tuple(document.operators), tuple(document.edges))


def _check_sums(document: _Document) -> None:
    """Raises `BadInput` if the most expensive choices add up to more than a float holds."""
    everything = [operator.choices for operator in document.operators]
    everything += [list(chain.from_iterable(chain(*edge.choices))) for edge in document.edges]
    for name in ("memory_bytes", "time_s"):
        if math.isinf(sum(max(getattr(cost, name) for cost in costs) for costs in everything)):
            raise BadInput(f"{name} adds up to infinity", expected="sums below 1.8e308")


def _check_edge(edge: ProblemEdge, field: str, choices: dict[str, int]) -> None:
    for end, name in (("source", edge.source), ("target", edge.target)):
        if name not in choices:
            raise BadInput(
                f"there is no operator {name!r}",
                field=f"{field}.{end}",
                expected="the name of an operator",
            )
    if edge.source == edge.target:
        raise BadInput(
            f"the edge joins {edge.source!r} to itself",
            field=f"{field}.target",
            expected="another operator",
        )
    rows, columns = choices[edge.source], choices[edge.target]
    _check_length(edge.choices, rows, f"{field}.choices", edge.source)
    for i, row in enumerate(edge.choices):
        _check_length(row, columns, f"{field}.choices[{i}]", edge.target)
        for j, alternatives in enumerate(row):
            if not alternatives:
                raise BadInput(
                    "no alternatives",
                    field=f"{field}.choices[{i}][{j}]",
                    expected="at least one",
                )
            for a, cost in enumerate(alternatives):
                _check_cost(cost, f"{field}.choices[{i}][{j}][{a}]")


def _check_length(given: list[Any], needed: int, field: str, operator: str) -> None:
    if len(given) != needed:
        raise BadInput(
            f"{len(given)} entries",
            field=field,
            expected=f"{needed}, one per choice of {operator!r}",
        )


def _check_cost(cost: Cost, field: str) -> None:
    for name, value in (("memory_bytes", cost.memory_bytes), ("time_s", cost.time_s)):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(
                f"{value} is not a cost",
                field=f"{field}.{name}",
                expected="a finite number that is not negative",
            )


def build(problem: ProblemFile) -> _core.Problem:
    """Returns the solver's form.

    Equal costs and tables get one id, so that equal layers are recognised.
    """
    core = _core.Problem()
    costs: dict[bytes, int] = {}
    tables: dict[tuple[int, bytes, bytes], int] = {}
    numbers: dict[str, int] = {}
    for operator in problem.operators:
        memory, time = _arrays(operator.choices)
        key = memory.tobytes() + time.tobytes()
        if key not in costs:
            costs[key] = core.add_costs(memory, time)
        numbers[operator.name] = core.add_operator(operator.name, costs[key])
    for edge in problem.edges:
        rows, columns = len(edge.choices), len(edge.choices[0])
        count = np.array([[len(cell) for cell in row] for row in edge.choices], dtype=np.uint32)
        memory, time = _arrays([cost for cell in _cells(edge) for cost in cell])
        shape = (rows, count.tobytes(), memory.tobytes() + time.tobytes())
        if shape not in tables:
            tables[shape] = core.add_ragged_table(memory, time, count)
        core.add_edge(
            numbers[edge.source],
            numbers[edge.target],
            tables[shape],
            np.arange(rows, dtype=np.uint32),
            np.arange(columns, dtype=np.uint32),
        )
    return core


def _cells(edge: ProblemEdge) -> Iterator[list[Cost]]:
    for row in edge.choices:
        yield from row


def _arrays(
    costs: list[Cost],
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]
]:
    count = len(costs)
    return (
        np.fromiter((cost.memory_bytes for cost in costs), np.float64, count),
        np.fromiter((cost.time_s for cost in costs), np.float64, count),
    )


def solve_problem(
    problem: ProblemFile,
    *,
    method: str = "auto",
    epsilon: float = 0.0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the frontier of a problem as a `shardwise.frontier/1` document.

    `certificate.epsilon` is null when nothing is proven (the paper's heuristic elimination was
    used, or the search was stopped early). Raises `BadInput` for an unknown method or an epsilon
    or limit out of range, `SolverError` when a limit is met before there is any answer.
    """
    _check_settings(method, epsilon, time_limit_s)
    with solver_errors():
        solution = _core.solve(
            build(problem),
            method=method,
            epsilon=epsilon,
            time_limit_s=time_limit_s,
            progress=progress,
        )
    return _document(problem, solution)


def _check_settings(method: str, epsilon: float, time_limit_s: float | None) -> None:
    if method not in SOLVER_METHODS:
        raise BadInput(
            f"unknown method {method!r}", field="method", expected=", ".join(SOLVER_METHODS)
        )
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise BadInput(
            f"{epsilon} is out of range", field="epsilon", expected="a number of at least 0"
        )
    if time_limit_s is not None and not (math.isfinite(time_limit_s) and time_limit_s > 0):
        raise BadInput(
            f"{time_limit_s} is out of range", field="time_limit_s", expected="seconds above 0"
        )


def _document(problem: ProblemFile, solution: _core.Solution) -> dict[str, Any]:
    names = [operator.name for operator in problem.operators]
    points = [
        {
            "memory_bytes": _plain(memory),
            "time_s": time,
            "choices": dict(zip(names, choices, strict=True)),
            "edge_choices": alternatives,
        }
        for memory, time, choices, alternatives in zip(
            solution.memory_bytes.tolist(),
            solution.time_s.tolist(),
            solution.choices.tolist(),
            solution.edge_choices.tolist(),
            strict=True,
        )
    ]
    epsilon = float(solution.epsilon)
    return {
        "schema": FRONTIER_SCHEMA,
        "points": points,
        "certificate": {
            "exact": solution.exact,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "status": solution.status,
        },
        "search": {
            "seconds": solution.seconds,
            "peak_rss_bytes": peak_rss_bytes(),
            "method": solution.method,
            "status": solution.status,
        },
    }


def _plain(memory: float) -> int | float:
    """Returns a whole number of bytes as an int."""
    return int(memory) if memory.is_integer() else memory


def peak_rss_bytes() -> int:
    """Returns the most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # POSIX leaves the unit open: macOS counts bytes, Linux KiB.
    return peak if sys.platform == "darwin" else peak * 1024
