"""What a rank's program does, in numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.documents import Plan
from shardwise.documents.common import Step
from shardwise.execute.builder import Built


@dataclass(frozen=True)
class Summary:
    """`collectives`: how many of each kind the plan's steps name, with their bytes, per pass.

    `fallbacks`: operators that gather their inputs and run whole, with the reason: correct, but not
    what the plan prices. `unpriced`: tensors that are moved although the cost model assumes them in
    place.
    """

    operators: int
    moves: int
    collectives: Mapping[str, int]
    bytes: Mapping[str, float]
    fallbacks: Mapping[str, str]
    unpriced: tuple[str, ...]


def summarise(built: Built, plan: Plan) -> Summary:
    """Returns the summary of a built program."""
    count: Counter[str] = Counter()
    size: dict[str, float] = defaultdict(float)
    for step in _steps(plan):
        count[step.operation] += 1
        size[step.operation] += step.size_bytes
    operators = [i for i in built.instructions if i.tensors]
    reasons = {i.name: getattr(i.run, "fallback", None) for i in operators}
    return Summary(
        len(operators),
        len(built.instructions) - len(operators),
        dict(count),
        dict(size),
        {name: reason for name, reason in reasons.items() if reason},
        tuple(dict.fromkeys(built.unpriced)),
    )


def _steps(plan: Plan) -> list[Step]:
    steps: list[Step] = []
    for edge in plan.edges:
        for _ in edge.tensors:
            steps += [*edge.forward, *edge.backward, *edge.again]
    for group in plan.groups:
        for op in group.operators:
            for move in op.moves:
                steps += [*move.forward, *move.backward]
            for load in op.loads:
                steps += load.steps
    return steps
