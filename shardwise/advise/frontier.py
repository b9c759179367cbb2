"""The frontier of a graph on n GPUs, as the document `shardwise.frontier/1`."""

from __future__ import annotations

import resource
from math import isfinite
from typing import Any

from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.search import Search, Subject, search
from shardwise.advise.tofu import TofuSolution
from shardwise.advise.turning_point import turning_point
from shardwise.graph import Graph
from shardwise.hardware import Hardware

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
    found = search(Subject.of(graph), hardware, gpus, options or Options(), progress or quiet)
    return frontier_document(found)


def frontier_document(found: Search) -> dict[str, Any]:
    """The document of a solved search."""
    limit = found.limit_bytes
    memory, time = found.memory_bytes, found.time_s
    points = []
    for i in range(len(memory)):
        compute = found.compute_s(i)
        points.append(
            {
                "memory_bytes": round(float(memory[i])),
                "time_s": float(time[i]),
                "plan_id": found.plan_id(i),
                "compute_s": compute,
                "communication_s": max(float(time[i]) - compute, 0.0),
                "replayed_time_s": None,
                "replayed_peak_bytes": None,
                "feasible": bool(memory[i] <= limit),
            }
        )
    return {
        "schema": FRONTIER_SCHEMA,
        **heading(found),
        "points": points,
        "turning_point": turning_point(memory, time),
        "certificate": certificate(found),
        "search": search_report(found),
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
        "micro_batches": found.problem.context.micro_batches,
        "device_memory_bytes": hardware.devices[0].memory_bytes,
        "memory_limit_bytes": found.limit_bytes,
        "provenance": provenance(hardware),
        "undescribed_operators": undescribed,
        "replicated_operators": [
            {"name": op.name, "kind": op.kind} for op in subject.coarsened.constants
        ],
        "warnings": warnings,
    }


def provenance(hardware: Hardware) -> dict[str, str]:
    """What the numbers stand on."""
    return {
        "profile": hardware.provenance,
        "compute": "modelled: roofline with the profile's stated efficiency",
        "communication": "measured tables" if hardware.collectives else "modelled from data sheets",
        "memory": "sum of kept tensors and parameter state; transient buffers are not in it",
    }


def certificate(found: Search) -> dict[str, Any]:
    """How far from the true frontier of the searched space the answer can be at most."""
    solution = found.solution
    document: dict[str, Any] = {
        "exact": bool(solution.exact),
        "epsilon": float(solution.epsilon) if isfinite(solution.epsilon) else None,
        "status": solution.status,
    }
    if solution.time_lower_bound_s is not None:
        document["time_lower_bound_s"] = (
            float(solution.time_lower_bound_s) + found.problem.fixed_time_s
        )
    return document


def search_report(found: Search) -> dict[str, Any]:
    """What the search took."""
    costs = found.problem.costs
    peer = {"tofu": found.solution.report()} if isinstance(found.solution, TofuSolution) else {}
    return {
        "seconds": float(found.solution.seconds),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "method": found.solution.method,
        "operators": len(found.subject.graph.operators),
        "groups": len(costs),
        "edges": len(found.problem.edges),
        "configurations_max": max((len(c.time_s) for c in costs), default=0),
        "configurations_mean": sum(len(c.time_s) for c in costs) / max(len(costs), 1),
        **peer,
    }
