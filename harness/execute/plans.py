"""Plans of strategies that no search picked, for tests and benchmarks that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.answers.frontier import mesh_description
from shardwise.answers.strategy import Strategy
from shardwise.cost.assemble import SearchProblem
from shardwise.documents import WholePlan
from shardwise.documents.common import Certificate, Provenance, SearchReport
from shardwise.documents.prediction import Prediction
from shardwise.hardware import Hardware, Mesh
from shardwise.search.search import Subject


def unsearched_plan(
    subject: Subject,
    hardware: Hardware,
    mesh: Mesh,
    problem: SearchProblem,
    choices: Sequence[int],
    edge_choices: Sequence[int],
    name: str,
) -> WholePlan:
    """Returns a plan that can be run; it predicts and certifies nothing."""
    context = problem.context
    strategy = Strategy(problem, choices, edge_choices)
    return WholePlan(
        id=name,
        **unsearched(subject, hardware, mesh, problem),
        mesh=mesh_description(context.mesh),
        overlap=context.options.overlap,
        objective="none",
        predicted=Prediction(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, None, 0.0, 0.0, None, None),
        groups=strategy.groups([None] * len(problem.costs)),
        edges=strategy.edges(),
        order=[op.name for op in subject.graph.operators],
    )


def unsearched(
    subject: Subject, hardware: Hardware, mesh: Mesh, problem: SearchProblem
) -> dict[str, Any]:
    """Returns the members of a plan or a pipeline that nothing was searched for: what it is of, and
    that nothing is known of it."""
    context, graph = problem.context, subject.graph
    return {
        "graph": subject.id,
        "graph_name": graph.name,
        "batch_size": graph.batch_size,
        "hardware": hardware.name,
        "hardware_id": hardware.id,
        "gpus": mesh.gpus,
        "nodes": mesh.nodes,
        "optimizer": context.options.optimizer,
        "precision": context.options.precision,
        "device_memory_bytes": hardware.devices[0].memory_bytes,
        "memory_limit_bytes": hardware.devices[0].memory_bytes,
        "provenance": Provenance(hardware.provenance, "none", "none", "none"),
        "undescribed_operators": [],
        "replicated_operators": [],
        "warnings": [],
        "micro_batches": context.micro_batches,
        "certificate": Certificate(False, None, "heuristic"),
        "search": SearchReport(0.0, 0, "none", 0, 0, 0, 0, 0.0),
    }
