"""The answer of a peer: its points, and how they were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from shardwise.peers.evaluate import Point


@dataclass(frozen=True)
class Answer:
    """One strategy family on our cost model.

    `method` is its id in documents, `title` its name for people, `found_by` how it was found in a
    sentence. A `frontier` ascends in memory; otherwise `points` are strategies side by side.
    `epsilon` says how near the best of its own space the points are at most (None: nothing is
    proven). Without points, `reason` says why.
    """

    method: str
    title: str
    found_by: str
    points: tuple[Point, ...] = ()
    frontier: bool = False
    epsilon: float | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def proven(epsilon: float) -> float | None:
    """Returns a certificate as documents have it: None where nothing is proven."""
    return epsilon if isfinite(epsilon) else None


def pareto(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other beats in both memory and time, ascending in memory.

    Of replayed points these are the peak and the time of the step.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.ranking_bytes, p.ranking_s)):
        if not best or point.ranking_s < best[-1].ranking_s:
            best.append(point)
    return best
