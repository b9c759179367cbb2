"""The frontier of a graph on n GPUs, as the document `shardwise.frontier/1`."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from shardwise.advise.chosen import together
from shardwise.advise.communication_basis import MEASURED, communication_basis
from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.outline import outlines
from shardwise.advise.search import Search, Subject, search_all
from shardwise.advise.tofu import TofuSolution
from shardwise.advise.turning_point import turning_point
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Mesh

FRONTIER_SCHEMA = "shardwise.frontier/1"


def frontier(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    options: Options | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Every strategy that no other beats in both memory and time (TensorOpt Definition 1).

    Returns the `shardwise.frontier/1` document. Raises `BadInput` for a GPU count below 1 and
    `Infeasible` when the hardware cannot have that many devices.
    """
    searches = search_all(
        Subject.of(graph), hardware, gpus, options or Options(), progress or quiet
    )
    return frontier_document(searches)


def frontier_document(searches: Sequence[Search]) -> dict[str, Any]:
    """The document of the searches of a question, one for each number of micro-batches."""
    chosen = together(searches)
    made_of = {id(found): outlines(found) for found in searches}
    points = []
    for point in chosen:
        compute = point.found.compute_s(point.point)
        points.append(
            {
                "memory_bytes": round(point.memory_bytes),
                "time_s": point.time_s,
                "plan_id": point.found.plan_id(point.point),
                "micro_batches": point.found.micro_batches,
                "compute_s": compute,
                "communication_s": max(point.time_s - compute, 0.0),
                "replayed_time_s": point.replayed_time_s,
                "replayed_peak_bytes": round(point.peak_bytes),
                "feasible": point.fits,
                **made_of[id(point.found)][point.point],
            }
        )
    memory = np.array([point.memory_bytes for point in chosen])
    time = np.array([point.time_s for point in chosen])
    return {
        "schema": FRONTIER_SCHEMA,
        **heading(searches[0]),
        "points": points,
        "turning_point": turning_point(memory, time),
        "certificate": certificate(searches),
        "search": search_report(searches),
    }


def heading(found: Search) -> dict[str, Any]:
    """What every answer says about itself: the question, the mesh, what its numbers stand on."""
    subject, hardware = found.subject, found.hardware
    undescribed = [{"name": op.name, "kind": op.kind} for op in subject.coarsened.undescribed]
    warnings = []
    if undescribed:
        kinds = ", ".join(sorted({op["kind"] for op in undescribed}))
        warnings.append(f"operators without a description are replicated: {kinds}")
    if len(hardware.devices) > 1:
        warnings.append(f"of several device kinds only {hardware.devices[0].kind} is used")
    if not hardware.collectives:
        warnings.append(
            f"communication times of {hardware.name} are modelled from data sheets, not measured"
        )
    elif (basis := communication_basis(hardware, found.mesh)) != MEASURED:
        warnings.append(f"communication times of {hardware.name}: {basis}")
    return {
        "graph": subject.id,
        "graph_name": subject.graph.name,
        "batch_size": subject.graph.batch_size,
        "hardware": hardware.name,
        "hardware_id": hardware.id,
        "gpus": found.mesh.gpus,
        "nodes": found.mesh.nodes,
        "mesh": {
            "axes": [
                {"name": axis.name, "size": axis.size, "level": axis.level}
                for axis in found.problem.context.mesh.axes
            ]
        },
        "optimizer": found.options.optimizer,
        "precision": found.options.precision,
        "overlap": found.options.overlap,
        "device_memory_bytes": hardware.devices[0].memory_bytes,
        "memory_limit_bytes": found.limit_bytes,
        "provenance": provenance(hardware, found.mesh),
        "undescribed_operators": undescribed,
        "replicated_operators": [
            {"name": op.name, "kind": op.kind} for op in subject.coarsened.constants
        ],
        "warnings": warnings,
    }


def provenance(hardware: Hardware, mesh: Mesh) -> dict[str, str]:
    """What the numbers stand on."""
    return {
        "profile": hardware.provenance,
        "compute": "modelled: roofline with the profile's stated efficiency",
        "communication": communication_basis(hardware, mesh),
        "memory": "sum of kept tensors and parameter state; the peak is of the replayed step",
    }


def certificate(searches: Sequence[Search]) -> dict[str, Any]:
    """How far from the true frontier of the searched space the answer can be at most.

    The union of frontiers is as good as the worst of them.
    """
    worst = max(searches, key=lambda found: _STATUSES.index(found.solution.status))
    epsilon = max(float(found.solution.epsilon) for found in searches)
    document: dict[str, Any] = {
        "exact": all(found.solution.exact for found in searches),
        "epsilon": epsilon if isfinite(epsilon) else None,
        "status": worst.solution.status,
    }
    bounds = [
        float(bound) + found.problem.fixed_time_s
        for found in searches
        if (bound := found.solution.time_lower_bound_s) is not None
    ]
    if len(bounds) == len(searches):
        document["time_lower_bound_s"] = min(bounds)
    return document


_STATUSES = ("exact", "within_epsilon", "heuristic", "budget", "cancelled")


def search_report(searches: Sequence[Search]) -> dict[str, Any]:
    """What the searches took; sizes are those of the first."""
    first = searches[0]
    costs = first.problem.costs
    peer = {"tofu": first.solution.report()} if isinstance(first.solution, TofuSolution) else {}
    return {
        "seconds": sum(float(found.solution.seconds) for found in searches),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "method": first.solution.method,
        "operators": len(first.subject.graph.operators),
        "groups": len(costs),
        "edges": len(first.problem.edges),
        "configurations_max": max((len(c.time_s) for c in costs), default=0),
        "configurations_mean": sum(len(c.time_s) for c in costs) / max(len(costs), 1),
        **peer,
    }
