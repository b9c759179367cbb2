"""Random strategies on a measured profile, each with what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.execute.plans import unsearched_plan
from shardwise.cost.assemble import assemble
from shardwise.cost.options import Options, quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.documents import Plan
from shardwise.graph import Graph
from shardwise.hardware import Mesh, hardware_from_document
from shardwise.measure.operators import Effort, add_operators
from shardwise.replay.replay import Replayer
from shardwise.search.search import Subject


@dataclass(frozen=True)
class Drawn:
    """A strategy with what was predicted of it, seconds and bytes."""

    plan: Plan
    predicted: dict[str, float]


def drawn_strategies(
    graph: Graph, profile: Mapping[str, Any], ranks: int, count: int, operators_s: float
) -> list[Drawn]:
    """Returns random configurations of every group, predicted with operators that are measured
    here for `operators_s` seconds, by as many processes as there are ranks; with 0 seconds by what
    the profile says of the device."""
    options = Options(overlap=False, step=StepSettings("cpu", "for-loop", 64))
    document = dict(profile)
    if operators_s:
        effort = Effort(time_limit_s=operators_s, ranks=ranks, threads=1)
        document, _ = add_operators(
            document, graph, ranks, options=options, of="all", effort=effort
        )
    hardware = hardware_from_document(document)
    subject, mesh = Subject.of(graph), Mesh.build(hardware, ranks)
    problem = assemble(subject.variant(options, 1), hardware, mesh, options, quiet, 1)
    random = np.random.default_rng(ranks)
    choices = np.array([random.integers([len(c.time_s) for c in problem.costs])
                        for _ in range(count)])  # fmt: skip
    edges = np.zeros((count, len(problem.edges)), dtype=np.int64)
    for p in range(count):
        for e, edge in enumerate(problem.edges):
            cell = edge.table.cell(choices[p, edge.source], choices[p, edge.target])
            edges[p, e] = random.integers(int(edge.table.count[cell]))
    replayed = Replayer(problem, options.step).replay(choices, edges)
    drawn = []
    for p in range(count):
        plan = unsearched_plan(
            subject, hardware, mesh, problem, choices[p].tolist(), edges[p].tolist(), f"random:{p}"
        )
        predicted = {
            "iteration": float(replayed.time_s[p]),
            "compute": float(replayed.compute_s[p]),
            "communication": float(replayed.communication_s[p]),
            "peak": float(replayed.peak_bytes[p]),
        }
        drawn.append(Drawn(plan, predicted))
    return drawn
