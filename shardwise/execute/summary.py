"""What a rank's program does, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.execute.builder import Built


@dataclass(frozen=True)
class Summary:
    """`collectives`: how many of each kind the plan's steps name, with their bytes, per pass.

    `fallbacks`: operators that gather their inputs and run whole, with the reason: right, but not
    what the plan prices. `unpriced`: tensors that are moved though the cost model takes them to
    be there.
    """

    operators: int
    moves: int
    collectives: Mapping[str, int]
    bytes: Mapping[str, float]
    fallbacks: Mapping[str, str]
    unpriced: tuple[str, ...]


def summarise(built: Built, plan: Mapping[str, Any]) -> Summary:
    """The summary of a built program."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for step in _steps(plan):
        count[step["operation"]] += 1
        size[step["operation"]] += step["size_bytes"]
    operators = [i for i in built.instructions if i.tensors]
    found = {i.name: getattr(i.run, "fallback", None) for i in operators}
    return Summary(
        len(operators),
        len(built.instructions) - len(operators),
        dict(count),
        dict(size),
        {name: reason for name, reason in found.items() if reason},
        tuple(dict.fromkeys(built.unpriced)),
    )


def _steps(plan: Mapping[str, Any]) -> list[Any]:
    found = []
    for edge in plan["edges"]:
        for _ in edge["tensors"]:
            found += [*edge["forward"], *edge["backward"], *edge.get("again", ())]
    for group in plan["groups"]:
        for op in group["operators"]:
            for move in op.get("moves", ()):
                found += [*move["forward"], *move["backward"]]
            for load in op.get("loads", ()):
                found += load["steps"]
    return found
