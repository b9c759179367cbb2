"""Lines through measured times, as HeteroG's profiler fits them (HeteroG §3.3).

**Least squares.** t = a x + b through measured times t_i at sizes x_i, with

    min Σ w_i (a x_i + b - t_i)²,    w_i = 1,    a ≥ 0, b ≥ 0

in seconds: no time is negative, and none falls as a size grows.

**Huber's regression** (Huber 1964). The same with weights that what lies far from the line loses,
found by repeating, with r_i the last line's distances from the times:

    w_i = min(1, K s / |r_i|),    s = median |r_i| / 0.6745

s is the standard deviation of normal distances with this median.

**all_reduce**, in the published code, has two lines by Huber's regression: a₁, b₁ through sizes
below `SMALL`, where latency decides, a₂, b₂ through sizes above `LARGE`, where bandwidth does:

    t = max(a₁ x + b₁, a₂ x + b₂),    a₁, b₁, a₂ ≥ 0

A table with fewer than two sizes in either range has one line by Huber's regression. The larger of
two lines curves upwards alone: where small messages pay more per byte than large ones (a₁ > a₂, as
NCCL's do over NVLink) it is far too long for large ones, and `held_out.py` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from shardwise.hardware.grid import Floats

SMALL, LARGE = 256 * 2.0**10, 2.0**20
"""Bytes between which neither of an all_reduce's lines is fitted."""

LEAST = 3
"""A line goes through at least as many sizes: each is then predicted from two others or more."""

K = 1.35
NORMAL_MEDIAN = 0.6745
MOST_STEPS = 200
SETTLED = 1e-13
"""Relative: lines that differ by less are the same, and so is a time that is so near to a line."""


@dataclass(frozen=True)
class Line:
    """t = slope · x + fixed, in seconds."""

    slope: float
    fixed: float

    def __str__(self) -> str:
        return f"{self.slope:.4g} x {'-' if self.fixed < 0 else '+'} {abs(self.fixed):.4g}"


@dataclass(frozen=True)
class Lines:
    """The largest of one line or two at every size."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        if len(self.lines) == 1:
            return f"t = {self.lines[0]}"
        return f"t = max({', '.join(str(line) for line in self.lines)})"

    def times(self, sizes: Floats) -> Floats:
        """Returns seconds at sizes."""
        each = [line.slope * sizes + line.fixed for line in self.lines]
        return np.asarray(np.max(each, axis=0), dtype=np.float64)


def least_squares(sizes: Floats, times_s: Floats) -> Line:
    """Returns the line through times at two different sizes or more."""
    return _weighted(sizes, times_s, np.ones_like(sizes), least=0.0)


def huber(sizes: Floats, times_s: Floats, least: float = 0.0) -> Line:
    """Returns the line by Huber's regression, its `fixed` at least `least` seconds."""
    line = _weighted(sizes, times_s, np.ones_like(sizes), least)
    for _ in range(MOST_STEPS):
        away = np.abs(line.slope * sizes + line.fixed - times_s)
        scale = float(np.median(away)) / NORMAL_MEDIAN
        if scale <= SETTLED * times_s.max():
            break  # at least half of the times are on the line
        weights = np.minimum(1.0, K * scale / np.maximum(away, K * scale))
        before, line = line, _weighted(sizes, times_s, weights, least)
        if np.allclose(
            (before.slope, before.fixed), (line.slope, line.fixed), rtol=SETTLED, atol=0.0
        ):
            break
    return line


def collective_lines(operation: str, sizes: Floats, times: Floats) -> Lines:
    """Returns the line or lines of a collective's seconds at two sizes or more, in bytes."""
    if operation != "all_reduce":
        return Lines((least_squares(sizes, times),))
    small, large = sizes < SMALL, sizes > LARGE
    if min(small.sum(), large.sum()) < 2:
        return Lines((huber(sizes, times),))
    latency = huber(sizes[small], times[small])
    bandwidth = huber(sizes[large], times[large], least=-inf)
    return Lines((latency, bandwidth))


def _weighted(sizes: Floats, times_s: Floats, weights: Floats, least: float) -> Line:
    """Returns the line of least weighted squares with a slope of at least 0 and `least` at 0."""
    total = weights.sum()
    size, time = (weights * sizes).sum() / total, (weights * times_s).sum() / total
    apart = sizes - size
    slope = (weights * apart * (times_s - time)).sum() / (weights * apart**2).sum()
    if slope < 0:
        return Line(0.0, float(time))
    fixed = time - slope * size
    if fixed < least:
        fixed = least
        slope = (weights * sizes * (times_s - least)).sum() / (weights * sizes**2).sum()
    return Line(float(slope), float(fixed))
