"""A plan: one strategy, spelled out far enough to execute it without the solver.

`shardwise.plan/1`: the mesh; per operator its split and the layouts of its inputs and outputs;
per edge the sequence of collectives, forward and backward, and the copy that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shardwise.advise.assemble import SearchEdge
from shardwise.advise.breakdown import operator_costs
from shardwise.advise.chosen import Chosen, fastest, leanest, time_gap, together, too_large
from shardwise.advise.crossings import ALTERNATIVES
from shardwise.advise.fitting import search_fitting
from shardwise.advise.frontier import certificate, heading, search_report
from shardwise.advise.group_costs import GroupCosts
from shardwise.advise.layout import describe
from shardwise.advise.next_best import NextBest, next_best
from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.pattern import GroupPattern
from shardwise.advise.reschedule import Step
from shardwise.advise.search import Infeasible, Search, Subject, search_all
from shardwise.advise.shares import Shares
from shardwise.advise.turning_point import turning_point
from shardwise.errors import BadInput, NotFound
from shardwise.files import read_bounded
from shardwise.graph import DTYPE_BYTES, Graph
from shardwise.graph.coarsen import Member
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
    names = tuple(axis.name for axis in found.problem.context.mesh.axes)
    edges = [_edge_document(found, edge, point, e) for e, edge in enumerate(found.problem.edges)]
    compute = found.compute_s(point)
    time = float(found.time_s[point])
    others = next_best(found, point)
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
        "groups": [
            _group_document(found, index, point, names, others[index])
            for index in range(len(found.problem.costs))
        ],
        "edges": edges,
        "order": [op.name for op in found.subject.graph.operators],
        "certificate": certificate(searches),
        "search": search_report(searches),
    }


def _group_document(
    found: Search, index: int, point: int, names: tuple[str, ...], other: NextBest | None
) -> dict[str, Any]:
    pattern, cost = found.problem.patterns[index], found.problem.costs[index]
    choice = int(found.solution.choices[point, index])
    shares = operator_costs(found.problem, index, choice)
    return {
        "name": pattern.group.name,
        "choice": choice,
        **_configuration(pattern, cost, choice, names),
        "parameter_bytes": float(cost.parameter_bytes[choice]),
        "activation_bytes": float(cost.activation_bytes[choice]),
        "compute_s": float(cost.compute_s[choice]),
        "compute_shares": Shares.of_columns(cost.compute_by_source_s[choice]).document(),
        "communication_s": float(cost.communication_s[choice]),
        "next_best": None
        if other is None
        else {
            **_configuration(pattern, cost, other.choice, names),
            "added_time_s": other.time_s,
            "added_memory_bytes": other.memory_bytes,
        },
        "operators": [
            {**_operator_document(member, cost.assignment[choice]), **asdict(share)}
            for member, share in zip(pattern.members, shares, strict=True)
        ],
    }


def _configuration(
    pattern: GroupPattern, cost: GroupCosts, k: int, names: tuple[str, ...]
) -> dict[str, Any]:
    """What a group chooses."""
    variables = pattern.group.variables
    return {
        "split": {
            axis: (variables[v] if v >= 0 else None)
            for axis, v in zip(names, cost.assignment[k].tolist(), strict=True)
        },
        "zero": int(cost.zero[k]),
        "zero_axes": [axis for a, axis in enumerate(names) if int(cost.zero_axes[k]) >> a & 1],
        "recompute": bool(cost.recompute[k]),
    }


def _operator_document(member: Member, assignment: np.ndarray[Any, Any]) -> dict[str, Any]:
    op, sem = member.operator, member.semantics
    by_variable = dict(zip(member.variables, range(len(member.variables)), strict=True))
    split = [by_variable.get(int(v)) for v in assignment]

    def layout(accesses: dict[int, Any], *, output: bool) -> list[str]:
        row = []
        for v in split:
            if v is None:
                row.append(-1)
            elif v in accesses:
                row.append(accesses[v].dim)
            else:
                row.append(-2 if output and sem.variables[v].is_reduction else -1)
        return describe(tuple(row), ())

    return {
        "name": op.name,
        "kind": op.kind,
        "split": [None if v is None else sem.variables[v].name for v in split],
        "inputs": {name: layout(sem.inputs[i], output=False) for i, name in enumerate(op.inputs)},
        "outputs": {name: layout(sem.outputs[o], output=True) for o, name in enumerate(op.outputs)},
    }


def _edge_document(found: Search, edge: SearchEdge, point: int, e: int) -> dict[str, Any]:
    problem = found.problem
    at_source = int(found.solution.choices[point, edge.source])
    at_target = int(found.solution.choices[point, edge.target])
    row, column = edge.table.rows[at_source], edge.table.columns[at_target]
    alternative = int(found.solution.edge_choices[point, e])
    tensor = problem.context.graph.tensors[edge.tensors[0]]
    source, target = problem.patterns[edge.source], problem.patterns[edge.target]
    out = problem.costs[edge.source].exits[source.exits.index(tensor.name)]
    into = problem.costs[edge.target].entries[target.entries.index(tensor.name)]
    paths = problem.context.rescheduler(tensor.shape, DTYPE_BYTES[tensor.dtype])

    def steps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
        ends = paths.register(np.stack([a, b]))
        return [_step(found, step) for step in paths.path(int(ends[0]), int(ends[1]))]

    backward = problem.context.patterns.carries_gradient(tensor.name)
    return {
        "source": source.group.name,
        "target": target.group.name,
        "tensors": list(edge.tensors),
        "layout_at_source": describe(out.forward[at_source], ()),
        "layout_at_target": describe(into.forward[at_target], ()),
        "kept": ALTERNATIVES[int(edge.table.kept[row, column, alternative])],
        "memory_bytes": float(edge.table.memory_bytes[row, column, alternative]),
        "time_s": float(edge.table.time_s[row, column, alternative]),
        "forward": steps(out.forward[at_source], into.forward[at_target]),
        "backward": steps(into.gradient[at_target], out.gradient[at_source]) if backward else [],
    }


def _step(found: Search, step: Step) -> dict[str, Any]:
    axes = found.problem.context.mesh.axes
    return {
        "operation": step.operation,
        "axes": [axis.name for a, axis in enumerate(axes) if step.axes >> a & 1],
        "size_bytes": step.size_bytes,
        "time_s": step.time_s,
        "result": describe(step.result, ()),
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
        msgspec.convert(document, PlanShape)
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
