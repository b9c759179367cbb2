"""Thousands of measured kernels as one small table of utilisations, fitted by least squares.

The table has ln u at the knots of a grid in the logarithms of a kernel's sizes and is multilinear
between them, as `hardware/products.py` and `hardware/attention.py` read it. With the measured
kernels p, their utilisations u_p and weights w_pj at the knots j, the values x minimise

    Σ_p (Σ_j w_pj x_j - ln u_p)² + SMOOTH · Σ (second differences of x along every axis)²

so that knots without a kernel nearby continue those that have some.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.hardware.grid import Floats, corners

SMOOTH = 0.1
"""Weight of a second difference beside that of one measured kernel."""

DIGITS = 3
"""Significant digits of a utilisation in a table."""


def even_knots(sizes: Floats, count: int) -> tuple[float, ...]:
    """Returns `count` knots in even steps of the logarithm, from the least of `sizes` to the
    greatest."""
    steps = np.linspace(np.log(sizes.min()), np.log(sizes.max()), count)
    return tuple(float(f"{knot:.4g}") for knot in np.exp(steps))


def fitted(
    knots: Sequence[tuple[float, ...]], sizes: Sequence[Floats], utilisation: Floats
) -> tuple[float, ...]:
    """Returns the utilisations at all combinations of the knots, those of the last axis fastest.

    `sizes` has an array (P,) for each axis, `utilisation` (P,) is what the kernels reached.
    """
    shape = tuple(len(axis) for axis in knots)
    cells = [
        (np.ravel_multi_index(index, shape), weight)
        for index, weight in corners(
            [np.log(np.array(axis)) for axis in knots], [np.log(size) for size in sizes]
        )
    ]
    normal, right = _penalty(shape), np.zeros(int(np.prod(shape)))
    for index, weight in cells:
        np.add.at(right, index, weight * np.log(utilisation))
        for other, share in cells:
            np.add.at(normal, (index, other), weight * share)
    values = np.exp(np.linalg.solve(normal, right))
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


def _penalty(shape: tuple[int, ...]) -> Floats:
    """Returns the normal equations of the second differences along every axis."""
    points = int(np.prod(shape))
    total = np.zeros((points, points))
    number = np.arange(points).reshape(shape)
    for axis, length in enumerate(shape):
        lines = np.moveaxis(number, axis, -1).reshape(-1, length)
        for start in range(length - 2):
            three = lines[:, start : start + 3]
            for i, a in enumerate((1.0, -2.0, 1.0)):
                for j, b in enumerate((1.0, -2.0, 1.0)):
                    np.add.at(total, (three[:, i], three[:, j]), SMOOTH * a * b)
    return total
