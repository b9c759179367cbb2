"""What the network computes with, in numpy; `torch_arithmetic.py` has the same with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = Any
"""A numpy array or a torch tensor."""

GELU = sqrt(2.0 / pi)
SMALL = 1e-5
"""Added to variances."""


@dataclass(frozen=True)
class Segments:
    """Rows in `count` segments, none of them empty: `index` (n,) ascends, `starts` (count,)."""

    index: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, index: NDArray[np.int64], count: int) -> Segments:
        """Returns the segments of rows. Raises `ValueError` where one is empty or the order is not
        ascending."""
        starts = np.searchsorted(index, np.arange(count))
        if len(np.unique(index)) != count or (np.diff(index) < 0).any():
            raise ValueError("segments must ascend and none be empty")
        return cls(index, starts)

    @property
    def count(self) -> int:
        return len(self.starts)


class Arithmetic(Protocol):
    """Operations that arrays do not have as operators or methods of one name."""

    def array(self, values: NDArray[np.float32]) -> Array: ...
    def concatenated(self, parts: Sequence[Array]) -> Array: ...
    def take(self, x: Array, rows: NDArray[np.int64]) -> Array: ...
    def elu(self, x: Array) -> Array: ...
    def leaky(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array: ...
    def softmax(self, x: Array) -> Array: ...
    def normalised(self, x: Array) -> Array: ...
    def segment_sum(self, x: Array, segments: Segments) -> Array: ...
    def segment_softmax(self, x: Array, segments: Segments) -> Array: ...


class NumpyArithmetic:
    """The operations in numpy, float32."""

    def array(self, values: NDArray[np.float32]) -> Array:
        """Returns values as this arithmetic's array."""
        return values

    def concatenated(self, parts: Sequence[Array]) -> Array:
        """Returns arrays one after another along the first axis."""
        return np.concatenate(parts)

    def take(self, x: Array, rows: NDArray[np.int64]) -> Array:
        """Returns some rows."""
        return x[rows]

    def elu(self, x: Array) -> Array:
        """Returns x, below 0 exp(x) - 1."""
        return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))

    def leaky(self, x: Array) -> Array:
        """Returns x, below 0 a fifth of it (as GAT has it)."""
        return np.where(x > 0.0, x, np.float32(0.2) * x)

    def gelu(self, x: Array) -> Array:
        """Returns the Gaussian error linear unit by its tanh form."""
        inner = np.float32(GELU) * (x + np.float32(0.044715) * x * x * x)
        return np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))

    def softmax(self, x: Array) -> Array:
        """Returns shares along the last axis."""
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def normalised(self, x: Array) -> Array:
        """Returns rows with mean 0 and variance 1 along the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(SMALL))

    def segment_sum(self, x: Array, segments: Segments) -> Array:
        """Returns the sum of each segment's rows."""
        return np.add.reduceat(x, segments.starts, axis=0)

    def segment_softmax(self, x: Array, segments: Segments) -> Array:
        """Returns each row's share of its segment, column by column."""
        most = np.maximum.reduceat(x, segments.starts, axis=0)
        powers = np.exp(x - most[segments.index])
        return powers / np.add.reduceat(powers, segments.starts, axis=0)[segments.index]
