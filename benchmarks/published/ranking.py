"""How well predictions order the runs of a grid, and what following them costs.

Spearman's rank correlation   of predicted and published times; equal times share the mean of
                              their ranks
regret                        published time of the run that is predicted fastest over that of
                              the fastest, less one; of several predicted alike, their mean
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .reading import LEAST_ROWS
from .run import Run
from .stored import Result, included

ALIKE = 1e-6
"""The relative difference below which two predicted times are the same."""


@dataclass(frozen=True)
class Way:
    """A way of training: a run of it, and the times in seconds."""

    run: Run
    published_s: float
    predicted_s: float


@dataclass(frozen=True)
class Ranking:
    """Of one grid: its ways of training, the order, the regret, and the fastest ways.

    `correlation` is None where all ways are predicted, or were published, alike.
    """

    grid: str
    ways: tuple[Way, ...]
    correlation: float | None
    regret: float
    fastest: Run
    predicted_fastest: Run


def rankings(results: Sequence[Result]) -> list[Ranking]:
    """The rankings of all grids that have enough ways without outliers."""
    names = dict.fromkeys(result.run.grid for result in results if result.run.grid)
    found = []
    for name in names:
        ways = ways_of(included(r for r in results if r.run.grid == name))
        if len(ways) < LEAST_ROWS:
            continue
        published = [way.published_s for way in ways]
        predicted = [way.predicted_s for way in ways]
        found.append(
            Ranking(
                name,
                ways,
                spearman(predicted, published),
                regret(predicted, published),
                ways[int(np.argmin(published))].run,
                ways[int(np.argmin(predicted))].run,
            )
        )
    return found


def ways_of(results: Sequence[Result]) -> tuple[Way, ...]:
    """The ways of training among runs of one grid."""
    by_way: dict[str, list[Result]] = {}
    for result in results:
        by_way.setdefault(result.run.predicted_as, []).append(result)
    return tuple(
        Way(
            runs[0].run,
            mean(result.run.iteration_s for result in runs),
            runs[0].stored.time_s,
        )
        for runs in by_way.values()
    )


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's rank correlation; None where one of the two has no order."""
    ranks = np.stack([mean_ranks(first), mean_ranks(second)])
    deviations = ranks - ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((deviations**2).sum(axis=1))
    if not spread.all():
        return None
    return float((deviations[0] * deviations[1]).sum() / spread.prod())


def mean_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1; of equal values the mean of theirs."""
    array = np.asarray(values, dtype=np.float64)
    same = np.isclose(array[:, None], array[None, :], rtol=ALIKE, atol=0.0)
    less = (array[None, :] < array[:, None]) & ~same
    return np.asarray(less.sum(axis=1) + (same.sum(axis=1) + 1) / 2)


def regret(predicted: ArrayLike, published: ArrayLike) -> float:
    """What the run that is predicted fastest takes longer than the fastest published one."""
    times, real = np.asarray(predicted), np.asarray(published)
    chosen = np.isclose(times, times.min(), rtol=ALIKE, atol=0.0)
    return float(real[chosen].mean() / real.min() - 1.0)
