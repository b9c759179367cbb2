"""A plan: one strategy, spelled out far enough to execute it without the solver.

`shardwise.plan/1`: the mesh; per operator its split and the layouts of its inputs and outputs;
per edge the sequence of collectives, forward and backward, and the copy that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shardwise import validation
from shardwise.advise.chosen import Chosen, fastest, leanest, time_gap, together, too_large
from shardwise.advise.fitting import search_fitting
from shardwise.advise.frontier import certificate, heading, search_report
from shardwise.advise.next_best import NextBest, next_best
from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.search import Infeasible, Search, Subject, search_all
from shardwise.advise.strategy import Strategy
from shardwise.advise.turning_point import turning_point
from shardwise.errors import BadInput, NotFound
from shardwise.files import read_bounded
from shardwise.graph import Graph
from shardwise.hardware import Hardware

PLAN_SCHEMA = "shardwise.plan/1"
OBJECTIVES = ("mini-time", "mini-memory", "turning-point", "mini-cost")
POINT = "point"
"""What stands for the objective of a plan that was asked for by its id."""


def plan(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    *,
    objective: str = "mini-time",
    point: str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The strategy that `objective` picks among those whose replayed step fits the memory limit.

    `mini-time`: the shortest iteration time. `mini-memory`: the lowest peak. `turning-point`:
    the knee of the frontier (the fastest that fits, when the knee does not). `mini-cost`: with a
    fixed number of GPUs the price of a step grows with its time alone, so it picks as
    `mini-time` does. With `point`, the `plan_id` of a point of the frontier, it is that point
    whatever the objective, and whether or not it fits. Raises `Infeasible` when nothing fits,
    `NotFound` when the frontier of these options has no such point, `BadInput` for an unknown
    objective.
    """
    if objective not in OBJECTIVES:
        raise BadInput(
            f"unknown objective {objective!r}", field="objective", expected=", ".join(OBJECTIVES)
        )
    near_limit = objective in ("mini-time", "mini-cost") and point is None
    look = search_fitting if near_limit else search_all
    searches = look(Subject.of(graph), hardware, gpus, options or Options(), progress or quiet)
    if point is not None:
        return plan_document(searches, _of_id(searches, point), POINT)
    return plan_document(searches, choose(searches, objective), objective)


def _of_id(searches: Sequence[Search], plan_id: str) -> Chosen:
    for chosen in together(searches):
        if chosen.found.plan_id(chosen.point) == plan_id:
            return chosen
    raise NotFound(f"the frontier of these options has no point {plan_id[:80]}")


def choose(searches: Sequence[Search], objective: str) -> Chosen:
    """The point that the objective picks; raises `Infeasible` when none fits."""
    quickest = fastest(searches)
    if quickest is None:
        raise Infeasible(f"no strategy fits on {searches[0].mesh.gpus} GPUs: {too_large(searches)}")
    if objective == "mini-memory":
        return leanest(searches)
    points = together(searches)
    if objective == "turning-point":
        knee = turning_point(
            np.array([p.memory_bytes for p in points]), np.array([p.time_s for p in points])
        )
        if knee is not None and points[knee].fits:
            return points[knee]
    return quickest


def plan_document(searches: Sequence[Search], chosen: Chosen, objective: str) -> dict[str, Any]:
    """The document of one point of the searches of a question."""
    found, point = chosen.found, chosen.point
    strategy = Strategy(
        found.problem, found.solution.choices[point], found.solution.edge_choices[point]
    )
    compute = found.compute_s(point)
    time = float(found.time_s[point])
    return {
        "schema": PLAN_SCHEMA,
        "id": found.plan_id(point),
        **heading(found),
        "micro_batches": found.micro_batches,
        "objective": objective,
        "predicted": {
            "memory_bytes": round(float(found.memory_bytes[point])),
            "peak_bytes": round(chosen.peak_bytes),
            "fixed_memory_bytes": found.problem.fixed_memory_bytes,
            "time_s": time,
            "replayed_time_s": chosen.replayed_time_s,
            "exposed_communication_s": float(found.replayed.exposed_s[point]),
            "compute_s": compute,
            "compute_shares": found.compute_shares(point).document(),
            "communication_s": max(time - compute, 0.0),
            "fixed_time_s": found.problem.fixed_time_s,
            "samples_per_s": None
            if found.subject.graph.batch_size is None
            else found.subject.graph.batch_size / chosen.ranking_s,
            "gap": time_gap(searches, time),
        },
        "groups": _groups(found, point, strategy),
        "edges": strategy.edges(),
        "order": [op.name for op in found.subject.graph.operators],
        "certificate": certificate(searches),
        "search": search_report(searches),
    }


def _groups(found: Search, point: int, strategy: Strategy) -> list[dict[str, Any]]:
    """The groups of a strategy, each with the choice that would have been next best."""
    return [
        {**group, "next_best": _next_best(strategy, index, other)}
        for index, (group, other) in enumerate(
            zip(strategy.groups(), next_best(found, point), strict=True)
        )
    ]


def _next_best(strategy: Strategy, index: int, other: NextBest | None) -> dict[str, Any] | None:
    if other is None:
        return None
    return {
        **strategy.configuration(index, other.choice),
        "added_time_s": other.time_s,
        "added_memory_bytes": other.memory_bytes,
    }


def read_plan(path: str | Path) -> dict[str, Any]:
    """A plan file, checked as far as `explain` relies on it; `BadInput` names file and field."""
    try:
        document = msgspec.json.decode(read_bounded(path, f"a {PLAN_SCHEMA} file"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", file=str(path), expected=PLAN_SCHEMA) from None
    if not isinstance(document, dict):
        raise BadInput("not an object", file=str(path), expected=PLAN_SCHEMA)
    if document.get("schema") != PLAN_SCHEMA:
        raise BadInput(
            f"unknown schema {document.get('schema')!r}",
            file=str(path),
            field="schema",
            expected=PLAN_SCHEMA,
        )
    try:
        validation.convert(document, PlanShape)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.") or None
        raise BadInput(message, file=str(path), field=field) from None
    return document


class _GroupShape(msgspec.Struct):
    name: str
    split: dict[str, str | None]
    parameter_bytes: float
    activation_bytes: float
    compute_s: float
    communication_s: float
    operators: list[dict[str, Any]]
    zero: int = 0
    zero_axes: list[str] = []
    recompute: bool = False


class _EdgeShape(msgspec.Struct):
    source: str
    target: str
    tensors: list[str]
    kept: str
    memory_bytes: float
    time_s: float
    forward: list[dict[str, Any]]
    backward: list[dict[str, Any]]


class PlanShape(msgspec.Struct):
    """The fields of a plan that a reader relies on."""

    id: str
    graph_name: str
    hardware: str
    gpus: int
    mesh: dict[str, list[dict[str, Any]]]
    predicted: dict[str, Any]
    groups: list[_GroupShape]
    edges: list[_EdgeShape]
