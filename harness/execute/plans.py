"""Plans of strategies that no search picked, for tests and benchmarks that run them."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.advise.frontier import mesh_description
from shardwise.advise.strategy import Strategy
from shardwise.cost.assemble import SearchProblem
from shardwise.documents import Plan
from shardwise.documents.common import Certificate, Provenance, SearchReport
from shardwise.documents.plan import Prediction
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
) -> Plan:
    """Returns a plan that can be run; it predicts and certifies nothing."""
    context, graph = problem.context, subject.graph
    strategy = Strategy(problem, choices, edge_choices)
    return Plan(
        id=name,
        graph=subject.id,
        graph_name=graph.name,
        batch_size=graph.batch_size,
        hardware=hardware.name,
        hardware_id=hardware.id,
        gpus=mesh.gpus,
        nodes=mesh.nodes,
        mesh=mesh_description(context.mesh),
        optimizer=context.options.optimizer,
        precision=context.options.precision,
        overlap=context.options.overlap,
        device_memory_bytes=hardware.devices[0].memory_bytes,
        memory_limit_bytes=hardware.devices[0].memory_bytes,
        provenance=Provenance(hardware.provenance, "none", "none", "none"),
        undescribed_operators=[],
        replicated_operators=[],
        warnings=[],
        micro_batches=context.micro_batches,
        objective="none",
        predicted=Prediction(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, None, 0.0, 0.0, None, None),
        groups=strategy.groups([None] * len(problem.costs)),
        edges=strategy.edges(),
        order=[op.name for op in graph.operators],
        certificate=Certificate(False, None, "heuristic"),
        search=SearchReport(0.0, 0, "none", 0, 0, 0, 0, 0.0),
    )
