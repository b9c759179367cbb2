"""The sources of times, as codes: arrays of terms have arrays of codes of the same shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SOURCES = ("measured", "interpolated", "modelled")
MEASURED, INTERPOLATED, MODELLED = range(3)

Codes = NDArray[np.int8]
"""Indices into `SOURCES`, one per term."""
