"""Symbolic interval analysis (Tofu §4.2, Eq. 1 and Figure 4).

An interval is an affine function of the symbolic extents X_i of all index variables:

    I = [ Σ l_i X_i + c_l ,  Σ u_i X_i + c_u ]     (closed, in elements)

Tofu has one constant c for both ends and ranges [0, X]; here the ends have one each, so that
ranges are exact on integers ([0, X - 1]) and the range of `x mod k`, [0, k - 1], can be said.
Products and comparisons of intervals are refused, as in the paper.

Two operations are added for dimension maps, by constants k > 0 and on integers: `floor_divide`,
⌊[a, b]/k⌋ = [⌊a/k⌋, ⌊b/k⌋], and `modulo`, which keeps nothing but [0, k - 1]. No affine function
of the extents has the ends of ⌊I/k⌋, so concrete extents are put in first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from shardwise.errors import ShardwiseError

Coefficients = tuple[tuple[int, Fraction], ...]


class NotAffine(ShardwiseError):
    """An index expression that interval analysis cannot follow."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval; `lower` and `upper` are (variable, coefficient) pairs without zeros."""

    lower: Coefficients
    upper: Coefficients
    lower_constant: Fraction = Fraction(0)
    upper_constant: Fraction = Fraction(0)

    @classmethod
    def of_variable(
        cls, variable: int, start: Fraction = Fraction(0), end: Fraction = Fraction(1)
    ) -> Interval:
        """ZV[l = start, u = end]: the part [start·X, end·X - 1] of the variable's range."""
        return cls(_pairs({variable: start}), _pairs({variable: end}), Fraction(0), Fraction(-1))

    @classmethod
    def constant(cls, value: int) -> Interval:
        return cls((), (), Fraction(value), Fraction(value))

    def scale(self, k: Fraction | int) -> Interval:
        """Returns I × k (also I / k); a negative factor swaps the ends."""
        scaled = Interval(
            _scaled(self.lower, k),
            _scaled(self.upper, k),
            self.lower_constant * k,
            self.upper_constant * k,
        )
        if k >= 0:
            return scaled
        return Interval(scaled.upper, scaled.lower, scaled.upper_constant, scaled.lower_constant)

    def plus(self, other: Interval) -> Interval:
        """I + I'."""
        return Interval(
            _sum(self.lower, other.lower),
            _sum(self.upper, other.upper),
            self.lower_constant + other.lower_constant,
            self.upper_constant + other.upper_constant,
        )

    def floor_divide(self, k: int, extents: Mapping[int, int]) -> Interval:
        """⌊I / k⌋ over the integers of I."""
        low, high = self.bounds(extents)
        return Interval((), (), Fraction(ceil(low) // k), Fraction(floor(high) // k))

    @classmethod
    def modulo(cls, k: int) -> Interval:
        """I mod k, whatever I is."""
        return cls((), (), Fraction(0), Fraction(k - 1))

    def bounds(self, extents: Mapping[int, int]) -> tuple[Fraction, Fraction]:
        """Returns the two ends for concrete extents."""
        low = sum((c * extents[v] for v, c in self.lower), self.lower_constant)
        high = sum((c * extents[v] for v, c in self.upper), self.upper_constant)
        return low, high


def _pairs(coefficients: Mapping[int, Fraction]) -> Coefficients:
    return tuple(sorted((v, c) for v, c in coefficients.items() if c))


def _scaled(pairs: Coefficients, k: Fraction | int) -> Coefficients:
    return _pairs({v: c * k for v, c in pairs})


def _sum(a: Coefficients, b: Coefficients) -> Coefficients:
    total = dict(a)
    for v, c in b:
        total[v] = total.get(v, Fraction(0)) + c
    return _pairs(total)
