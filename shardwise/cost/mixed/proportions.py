"""Proportions: which share of a dimension the blocks of a cluster of several kinds have.

A proportion is a vector w of integers of at least 0 over the blocks. An extent E is cut at the
largest remainder: block i has floor(E w_i / Σw) or one more, those with the largest remainders get
one more, of equal ones the first, so that the shares add up to E. A block of weight 0 does not have
the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd


@dataclass(frozen=True)
class Proportion:
    """Weights over the blocks, and the proportion's origin in a few words."""

    weights: tuple[int, ...]
    origin: str

    @cached_property
    def support(self) -> tuple[int, ...]:
        """The blocks that have a share."""
        return tuple(i for i, weight in enumerate(self.weights) if weight)

    @property
    def is_even(self) -> bool:
        """Whether all blocks that have a share have the same."""
        return len({self.weights[i] for i in self.support}) == 1

    @property
    def is_whole(self) -> bool:
        """Whether all blocks have a share."""
        return len(self.support) == len(self.weights)

    @cached_property
    def reduced(self) -> tuple[int, ...]:
        """The weights without their common divisor."""
        divisor = gcd(*self.weights)
        return tuple(weight // divisor for weight in self.weights)


def cut(extent: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Returns the shares of an extent by largest remainder; they add up to it.

    Raises `ValueError` where no weight is above 0.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights must be at least 0 and one above, got {list(weights)}")
    shares = [extent * weight // total for weight in weights]
    remainders = [extent * weight % total for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-remainders[i], i))
    for i in order[: extent - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def offsets(shares: Sequence[int]) -> tuple[int, ...]:
    """Returns where each share begins, and where the last one ends."""
    places = [0]
    for share in shares:
        places.append(places[-1] + share)
    return tuple(places)
