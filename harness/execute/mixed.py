"""Random strategies on devices of several kinds, as plan documents.

Four ranks are two kinds in a node of two each (blocks of two), or three kinds in nodes of one and
two (blocks of one).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from harness.answers import document
from harness.execute.orders import PROGRAM, in_order
from harness.execute.plans import unsearched_plan
from shardwise.answers.mixed import described_cluster
from shardwise.cost.mixed.assemble import MixedProblem, mixed_costed
from shardwise.cost.options import Options, quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.graph import Graph
from shardwise.hardware import Blocks, Devices, Hardware, hardware_from_document
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.search.search import Subject

BUNDLES = ({"a": 2, "b": 2}, {"a": 1, "b": 1, "c": 2})
"""Devices of each group."""

KINDS = {"a": (40e9, 4e9), "b": (10e9, 3e9), "c": (20e9, 7e9)}
"""Flops a second and bytes of memory."""

ZERO = (0, 1, 2, 3)


def hardware() -> Hardware:
    """Returns a profile of three groups of CPUs that differ in speed and memory."""
    return hardware_from_document(profile())


def profile() -> dict[str, Any]:
    """Returns the profile's document."""
    link = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-5, "efficiency": 1.0}
    return {
        "schema": "shardwise.hardware/1",
        "name": "three kinds",
        "provenance": "made for tests",
        "devices": [
            {
                "kind": name,
                "count": 1,
                "memory_bytes": memory,
                "peak_flops_per_s": {"float32": flops, "float64": flops / 2},
                "memory_bandwidth_bytes_per_s": flops / 4,
                "compute_efficiency": 0.6,
                "memory_efficiency": 0.8,
                "kernel_latency_s": 1e-6,
            }
            for name, (flops, memory) in KINDS.items()
        ],
        "levels": [
            {"name": "inside a node", "size": 2, **link},
            {"name": "between nodes", "size": 3, **link},
        ],
        "groups": [{"name": n, "kind": n, "nodes": 1, "per_node": 2} for n in KINDS],
    }


@dataclass
class MixedStrategies:
    """Random plans of one graph on four ranks; `problems` are costed once."""

    graph: Graph
    micro_batches: tuple[int, ...] = (1, 2)
    precision: str = "captured"
    problems: dict[tuple[int, int], MixedProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._subject, self._hardware = Subject.of(self.graph), hardware()

    def problem(self, bundle: int, micro_batches: int = 1) -> MixedProblem:
        """Returns the search problem of a bundle, by its number in `BUNDLES`."""
        key = bundle, micro_batches
        if key not in self.problems:
            options = Options(
                overlap=False,
                zero=ZERO,
                recompute="auto",
                micro_batches=(micro_batches,),
                precision=self.precision,
                step=StepSettings("cpu", "for-loop", 64),
            )
            taken = Devices.of(self._hardware, BUNDLES[bundle])
            groups = mixed_costed(
                self._subject.variant(options, micro_batches),
                Blocks.of(self._hardware, taken),
                options,
                quiet,
                micro_batches,
            )
            self.problems[key] = groups.joined(quiet)
        return self.problems[key]

    def plan(self, seed: int, order: str = PROGRAM) -> dict[str, Any]:
        """Returns one seed's plan; seeds take turns in bundles and numbers of micro-batches.

        Operators run in the program's order or another (`orders.py`).
        """
        bundle = seed % len(BUNDLES)
        halves = (self.graph.batch_size or 1) % 2 == 0
        problem = self.problem(bundle, self.micro_batches[-1] if seed % 5 == 4 and halves else 1)
        choices, edges = drawn_strategy(problem, seed)
        plan = self.document(problem, choices, edges, f"random:{seed}")
        return in_order(plan, problem, choices, edges, order, seed)

    def peaks(
        self, problem: MixedProblem, choices: list[int], edges: list[int]
    ) -> tuple[float, ...]:
        """Returns each rank's peak memory as replayed, in bytes."""
        cluster = problem.cluster
        limits = np.array([place.hardware.devices[0].memory_bytes for place in cluster.places])
        replayer = MixedReplayer(problem, problem.context.options.step, limits)
        values = replayer.values(np.array([choices]), np.array([edges]))
        of_places = replayer.outcome(values)[0][0]
        size = cluster.blocks.size
        return tuple(float(of_places[place]) for place in cluster.place_of for _ in range(size))

    def document(
        self, problem: MixedProblem, choices: list[int], edges: list[int], name: str
    ) -> dict[str, Any]:
        """Returns the plan of given configurations and alternatives of edges."""
        cluster = problem.cluster
        plan = unsearched_plan(
            self._subject,
            cluster.places[0].hardware,
            cluster.search.mesh,
            problem,
            choices,
            edges,
            name,
        )
        return document(msgspec.structs.replace(plan, cluster=described_cluster(cluster, [])))


def data_parallel(problem: MixedProblem, proportion: int, **wanted: Any) -> list[int]:
    """Returns configurations of data parallelism with one proportion, without recomputation, and
    with gradient sum and ZeRO stage as `wanted`, each where a group has it."""
    choices = []
    for cost, pattern in zip(problem.costs, problem.patterns, strict=True):
        fits = (cost.proportion == proportion) & ~cost.recompute
        fits = fits if fits.any() else ~cost.recompute
        if "batch" in pattern.group.variables:
            batch = pattern.group.variables.index("batch")
            of_batch = fits & (cost.assignment == batch).all(axis=1)
            fits = of_batch if of_batch.any() else fits
        for column, value in wanted.items():
            some = fits & (getattr(cost, column) == value)
            fits = some if some.any() else fits
        choices.append(int(fits.nonzero()[0][0]))
    return choices


def drawn_strategy(problem: MixedProblem, seed: int) -> tuple[list[int], list[int]]:
    """Draws a configuration of every group, its proportion and its gradient sum first, and an
    alternative of every edge."""
    random = np.random.default_rng(seed)
    choices = []
    for cost in problem.costs:
        rows = np.arange(len(cost.time_s))
        for column in (cost.proportion, cost.gradient_sum, cost.zero, cost.recompute):
            value = random.choice(np.unique(column[rows]))
            rows = rows[column[rows] == value]
        choices.append(int(random.choice(rows)))
    edges = []
    for edge in problem.edges:
        cell = edge.table.cell(choices[edge.source], choices[edge.target])
        edges.append(int(random.integers(int(edge.table.count[cell]))))
    return choices, edges
