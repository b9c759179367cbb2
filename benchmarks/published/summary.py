"""Statistics of errors."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """How far predictions are off: errors, then their sizes, then shares of the runs."""

    runs: int
    median: float
    median_size: float
    size_90: float
    within_10: float
    within_25: float


def summary(errors: Sequence[float]) -> Summary:
    """Median of the errors; median and 90th percentile of their sizes; shares within 10 and 25 %.

    Raises ValueError for no error.
    """
    if not errors:
        raise ValueError("no errors")
    sizes = [abs(error) for error in errors]
    return Summary(
        len(errors),
        statistics.median(errors),
        statistics.median(sizes),
        float(np.quantile(sizes, 0.9)),
        sum(size <= 0.10 for size in sizes) / len(sizes),
        sum(size <= 0.25 for size in sizes) / len(sizes),
    )
