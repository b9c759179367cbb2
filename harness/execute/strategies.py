"""Random strategies as plan documents: what the search could choose, without searching.

A strategy is a random configuration of every group (split, ZeRO stage, recomputation) and a random
alternative of every edge (which copy is kept), spelled out as a plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.answers import document
from harness.execute.orders import PROGRAM, in_order
from harness.execute.plans import unsearched_plan
from shardwise.cost.assemble import SearchProblem, assemble
from shardwise.cost.crossings import AFTER, BOTH
from shardwise.cost.options import Options, quiet
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.graph import Graph
from shardwise.hardware import Mesh, load_hardware
from shardwise.replay.replay import Replayer
from shardwise.search.search import Subject

HARDWARE = "dgx-a100-80gb"
ZERO = ((0,), (1,), (2,), (3,), (0, 1, 2, 3))


def costed(
    subject: Subject,
    gpus: int,
    zero: tuple[int, ...],
    recompute: str,
    micro_batches: int,
    precision: str,
    pins: Sequence[str] = (),
) -> SearchProblem:
    """Returns the search problem of a subject on devices of `HARDWARE` under these options."""
    options = Options(
        overlap=False,
        zero=zero,
        recompute=recompute,
        micro_batches=(micro_batches,),
        precision=precision,
        pins=tuple(parse_pin(rule) for rule in pins),
        step=StepSettings("cpu", "for-loop", 64),
    )
    hardware = load_hardware(HARDWARE)
    return assemble(
        subject.variant(options, micro_batches),
        hardware,
        Mesh.build(hardware, gpus),
        options,
        quiet,
        micro_batches,
    )


@dataclass
class Strategies:
    """Random plans of one graph; `problems` are costed once for each kind of options."""

    graph: Graph
    micro_batches: tuple[int, ...] = (1, 2)
    precision: str = "captured"
    pins: tuple[str, ...] = ()
    problems: dict[Any, SearchProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._subject = Subject.of(self.graph)

    def plan(
        self,
        gpus: int,
        seed: int,
        *,
        zero: tuple[int, ...] | None = None,
        recompute: str = "auto",
        micro_batches: int | None = None,
        reuse: bool = True,
        order: str = PROGRAM,
    ) -> dict[str, Any]:
        """Returns one seed's plan; seeds take turns in ZeRO stages and numbers of micro-batches.

        Without `reuse` backward rebuilds no copy of a tensor that crosses groups. Operators run in
        the program's order or another (`orders.py`).
        """
        zero = ZERO[seed % len(ZERO)] if zero is None else zero
        if micro_batches is None:
            micro_batches = self.micro_batches[-1] if seed % 3 == 2 and self._halves() else 1
        problem = self.problem(gpus, zero, recompute, micro_batches)
        choices, edges = _drawn(problem, gpus, seed)
        if not reuse:
            edges = _without_reuse(problem, choices, edges)
        plan = self._document(problem, gpus, seed, choices, edges)
        return in_order(plan, problem, choices, edges, order, seed)

    def with_peak(self, gpus: int, seed: int, recompute: str) -> tuple[dict[str, Any], float]:
        """Returns a plan of any ZeRO stages, and a device's peak memory as replayed, in bytes."""
        problem = self.problem(gpus, ZERO[-1], recompute, 1)
        choices, edges = _drawn(problem, gpus, seed)
        replayer = Replayer(problem, problem.context.options.step)
        replayed = replayer.replay(np.array([choices]), np.array([edges]))
        return self._document(problem, gpus, seed, choices, edges), float(replayed.peak_bytes[0])

    def chosen(self, gpus: int, problem: SearchProblem, choices: list[int]) -> dict[str, Any]:
        """Returns the plan of given configurations, each edge with its first alternative."""
        return self._document(problem, gpus, 0, choices, [0] * len(problem.edges))

    def _halves(self) -> bool:
        return (self.graph.batch_size or 1) % 2 == 0

    def problem(
        self, gpus: int, zero: tuple[int, ...], recompute: str, micro_batches: int = 1
    ) -> SearchProblem:
        """Returns the search problem of these options, costed once."""
        key = (gpus, zero, recompute, micro_batches)
        if key not in self.problems:
            self.problems[key] = costed(
                self._subject, gpus, zero, recompute, micro_batches, self.precision, self.pins
            )
        return self.problems[key]

    def _document(
        self, problem: SearchProblem, gpus: int, seed: int, choices: list[int], edges: list[int]
    ) -> dict[str, Any]:
        hardware = load_hardware(HARDWARE)
        mesh = Mesh.build(hardware, gpus)
        return document(
            unsearched_plan(
                self._subject, hardware, mesh, problem, choices, edges, f"random:{seed}"
            )
        )


def _drawn(problem: SearchProblem, gpus: int, seed: int) -> tuple[list[int], list[int]]:
    """Draws a configuration of every group and an alternative of every edge."""
    random = np.random.default_rng((seed, gpus))
    choices = [int(random.integers(len(cost.time_s))) for cost in problem.costs]
    edges = []
    for edge in problem.edges:
        cell = edge.table.cell(choices[edge.source], choices[edge.target])
        edges.append(int(random.integers(int(edge.table.count[cell]))))
    return choices, edges


def _without_reuse(problem: SearchProblem, choices: list[int], edges: list[int]) -> list[int]:
    """Returns the alternatives in which backward rebuilds nothing."""
    kept = []
    for edge, drawn in zip(problem.edges, edges, strict=True):
        row, column = edge.table.cell(choices[edge.source], choices[edge.target])
        alternatives = edge.table.kept[row, column, : int(edge.table.count[row, column])].tolist()
        wanted = next((kind for kind in (BOTH, AFTER) if kind in alternatives), None)
        kept.append(drawn if wanted is None else alternatives.index(wanted))
    return kept
