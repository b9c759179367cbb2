"""Orders of execution for plans that no search picked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.graph.order import OperatorOrder, pairs
from shardwise.replay.scheduling import order_for, program_order

PROGRAM, RANDOM = "program", "random"


def in_order(
    plan: dict[str, Any],
    problem: SearchProblem,
    choices: Sequence[int],
    edges: Sequence[int],
    order: str,
    seed: int,
) -> dict[str, Any]:
    """Returns a plan's document in an order: the program's, one of `replay/scheduling.py`, or a
    random one."""
    if order == PROGRAM:
        return plan
    if order == RANDOM:
        found = random_order(problem, np.random.default_rng(seed))
    else:
        strategy = np.array(choices, dtype=np.uint32), np.array(edges, dtype=np.uint32)
        step = problem.context.options.step
        places = len(getattr(problem, "places", "1"))
        found = order_for(problem, step, *strategy, order, np.full(places, inf))  # type: ignore[arg-type]
    schedule = {
        "kind": "rank",
        "backward": list(found.backward),
        "program_time_s": 0.0,
        "program_peak_bytes": 0,
    }
    return {**plan, "order": list(found.forward), "schedule": schedule}


def random_order(problem: SearchProblem, draw: np.random.Generator) -> OperatorOrder:
    """Returns any order in which a problem's graph can be run."""
    graph, known = problem.context.graph, program_order(problem)
    forward = _drawn([op.name for op in graph.operators], pairs(graph), draw)
    flows = set(known.backward)
    back = [
        (op.name, graph.producer[name].name)
        for op in graph.operators
        for name in op.inputs
        if name in graph.producer and op.name in flows and graph.producer[name].name in flows
    ]
    return OperatorOrder(forward, _drawn(list(known.backward), back, draw))


def _drawn(
    names: Sequence[str], before: Iterable[tuple[str, str]], draw: np.random.Generator
) -> tuple[str, ...]:
    waits: dict[str, set[str]] = {name: set() for name in names}
    for first, second in before:
        waits[second].add(first)
    order: list[str] = []
    left = list(names)
    while left:
        ready = [name for name in left if not waits[name] - set(order)]
        one = ready[int(draw.integers(len(ready)))]
        order.append(one)
        left.remove(one)
    return tuple(order)
