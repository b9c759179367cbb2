"""What a rank's program does, in numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.documents import Plan
from shardwise.documents.common import Step
from shardwise.execute.builder import Built
from shardwise.execute.instruction import Instruction
from shardwise.execute.local import LocalOperator
from shardwise.execute.region import Region


@dataclass(frozen=True)
class Summary:
    """`collectives`: how many of each kind the plan's steps name, with their bytes, per pass.

    `fallbacks`: operators that gather their inputs and run whole, with the reason: correct, but not
    what the plan prices. `unpriced`: tensors that are moved although the cost model assumes them in
    place. `regions`: the operators of each program that torch.compile makes; `uncompiled`: why the
    others run eagerly beside them. `obstacle`: why nothing is compiled although the plan was made
    for compiled kernels.
    """

    operators: int
    moves: int
    collectives: Mapping[str, int]
    bytes: Mapping[str, float]
    fallbacks: Mapping[str, str]
    unpriced: tuple[str, ...]
    regions: tuple[tuple[str, ...], ...] = ()
    uncompiled: Mapping[str, str] = field(default_factory=dict)
    obstacle: str | None = None


def summarise(
    builts: Sequence[Built],
    plan: Plan,
    compiled: Sequence[Instruction] | None = None,
    obstacle: str | None = None,
) -> Summary:
    """Returns the summary of built programs; `compiled` is the only one with regions, if any."""
    count: Counter[str] = Counter()
    size: dict[str, float] = defaultdict(float)
    for step in _steps(plan):
        count[step.operation] += 1
        size[step.operation] += step.size_bytes
    instructions = [i for built in builts for i in built.instructions]
    operators = [i for i in instructions if i.tensors]
    reasons = {i.name: getattr(i.run, "fallback", None) for i in operators}
    return Summary(
        len(operators),
        len(instructions) - len(operators),
        dict(count),
        dict(size),
        {name: reason for name, reason in reasons.items() if reason},
        tuple(dict.fromkeys(name for built in builts for name in built.unpriced)),
        tuple(i.run.operators for i in compiled or () if isinstance(i.run, Region)),
        {i.name: _why_eager(i) for i in compiled or () if isinstance(i.run, LocalOperator)},
        obstacle,
    )


def _why_eager(instruction: Instruction) -> str:
    return getattr(instruction.run, "untraced", None) or "there is nothing to fuse it with"


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
