"""Tables on grids: multilinear between the knots, outside the value of the nearest point inside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def interpolation(knots: Floats, at: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Returns the knot below each point and the share of the next one; points outside are moved to
    the nearest knot."""
    inside = np.clip(at, knots[0], knots[-1])
    below = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    return below, (inside - knots[below]) / (knots[below + 1] - knots[below])


def corners(
    knots: Sequence[Floats], points: Sequence[Floats]
) -> list[tuple[tuple[NDArray[np.int64], ...], Floats]]:
    """Returns the knots around each point: for every corner of its cell their indices by axis, and
    the corner's weight.

    `points` has an array for each axis, all of one shape; so have the indices and the weights.
    """
    places = [interpolation(axis, at) for axis, at in zip(knots, points, strict=True)]
    found = []
    for corner in np.ndindex(*(2 for _ in knots)):
        weight, index = np.ones(np.shape(points[0])), []
        for (below, share), upper in zip(places, corner, strict=True):
            weight = weight * (share if upper else 1.0 - share)
            index.append(below + upper)
        found.append((tuple(index), weight))
    return found


class LogGrid:
    """A table that is multilinear in the logarithms of its sizes and of its values.

    `knots` are ascending sizes by axis, `values` those at all combinations of them, the last axis
    fastest.
    """

    def __init__(self, knots: Sequence[Sequence[float]], values: Sequence[float]) -> None:
        self._knots = [np.log(np.array(axis)) for axis in knots]
        shape = tuple(len(axis) for axis in knots)
        self._values = np.log(np.array(values)).reshape(shape)

    def of(self, *sizes: Floats) -> Floats:
        """Returns the values at sizes, one array for each axis, all of one shape."""
        return np.exp(multilinear(self._knots, self._values, [np.log(size) for size in sizes]))


def multilinear(knots: Sequence[Floats], values: Floats, points: Sequence[Floats]) -> Floats:
    """Returns the values at points between the knots; `values` has an axis for each of `knots`."""
    total = np.zeros(np.shape(points[0]))
    for index, weight in corners(knots, points):
        total += weight * values[index]
    return total
