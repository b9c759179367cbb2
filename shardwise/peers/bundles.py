"""Bundles of mesh axes: how much of the mesh a variable has, whatever the axes are called.

Axes of one level and size are alike, and a group's configurations name them in canonical order
(ADR 0003). Systems that think of the mesh as a grid of a few dimensions are compared by **how
many** axes of every kind a dimension takes: its bundle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.space import SearchAxis

Bundle = tuple[int, ...]
"""How many axes of every class (level and size) are taken together."""


@dataclass(frozen=True)
class AxisClasses:
    """Axes of one level and size: `of_axis[a]` is the class of axis a, `sizes[c]` its size."""

    of_axis: tuple[int, ...]
    sizes: tuple[int, ...]
    whole: Bundle

    @classmethod
    def of(cls, axes: Sequence[SearchAxis]) -> AxisClasses:
        kinds = list(dict.fromkeys((axis.level, axis.size) for axis in axes))
        of_axis = tuple(kinds.index((axis.level, axis.size)) for axis in axes)
        counts = tuple(of_axis.count(c) for c in range(len(kinds)))
        return cls(of_axis, tuple(size for _, size in kinds), counts)

    def size(self, bundle: Bundle) -> int:
        """Returns devices along a bundle."""
        return prod(size**count for size, count in zip(self.sizes, bundle, strict=True))

    def of_last(self, count: int) -> Bundle:
        """Returns the bundle of the innermost `count` axes."""
        last = self.of_axis[len(self.of_axis) - count :]
        return tuple(last.count(c) for c in range(len(self.sizes)))

    def without(self, bundle: Bundle) -> Bundle:
        """Returns the bundle of all other axes."""
        return tuple(a - b for a, b in zip(self.whole, bundle, strict=True))


def bundlings(whole: Bundle) -> Iterator[tuple[Bundle, ...]]:
    """Yields all ways to use up `whole` in bundles, each once; axes of one class are alike."""
    yield from _bundlings(whole, whole)


def _bundlings(left: Bundle, most: Bundle) -> Iterator[tuple[Bundle, ...]]:
    if not any(left):
        yield ()
        return
    # Bundles in descending order, so that none comes twice.
    for bundle in sorted(_parts(left), reverse=True):
        if any(bundle) and bundle <= most:
            rest = tuple(a - b for a, b in zip(left, bundle, strict=True))
            for others in _bundlings(rest, bundle):
                yield (bundle, *others)


def _parts(whole: Bundle) -> Iterator[Bundle]:
    if not whole:
        yield ()
        return
    for count in range(whole[0] + 1):
        for rest in _parts(whole[1:]):
            yield (count, *rest)


class Bundles:
    """Which bundle every variable of a group has under each of its configurations."""

    def __init__(self, problem: SearchProblem, classes: AxisClasses) -> None:
        self._problem = problem
        self._classes = classes
        self._known: dict[int, NDArray[np.int64]] = {}
        self._on: dict[tuple[int, tuple[Bundle, ...]], NDArray[np.bool_]] = {}
        self._coded: dict[int, NDArray[np.int64]] = {}
        radix = max(classes.whole, default=0) + 1
        self._weights = radix ** np.arange(len(classes.sizes), dtype=np.int64)

    def of(self, group: int) -> NDArray[np.int64]:
        """Returns axes of every class on every variable, shape (K, variables, classes)."""
        cost = self._problem.costs[group]
        if id(cost) not in self._known:
            variables = len(self._problem.coarsened.groups[group].variables)
            counts = np.zeros((len(cost.assignment), variables, len(self._classes.sizes)), np.int64)
            for axis, kind in enumerate(self._classes.of_axis):
                for variable in range(variables):
                    counts[:, variable, kind] += cost.assignment[:, axis] == variable
            self._known[id(cost)] = counts
        return self._known[id(cost)]

    def on(self, group: int, mesh: tuple[Bundle, ...]) -> NDArray[np.bool_]:
        """Returns the configurations in which every variable has a bundle of `mesh` of its own or
        none."""
        key = (id(self._problem.costs[group]), mesh)
        if key not in self._on:
            available = Counter(mesh)
            # Configurations that differ in ZeRO or recomputation alone have equal bundles.
            distinct, which = np.unique(self.of(group), axis=0, return_inverse=True)
            fits = [
                Counter(tuple(bundle) for bundle in row if any(bundle)) <= available
                for row in distinct.tolist()
            ]
            self._on[key] = np.array(fits, dtype=bool)[which.reshape(-1)]
        return self._on[key]

    def has(self, group: int, variable: int, bundle: Bundle) -> NDArray[np.bool_]:
        """Returns the configurations in which a variable has exactly this bundle."""
        code = int(np.array(bundle, np.int64) @ self._weights)
        return np.asarray(self._codes(group)[variable] == code)

    def codes(self, group: int, rows: NDArray[np.int64], variables: list[int]) -> NDArray[np.int64]:
        """Returns one number per bundle, shape (rows, variables)."""
        return np.asarray(self._codes(group)[variables][:, rows].T)

    def _codes(self, group: int) -> NDArray[np.int64]:
        """Returns a number for the bundle of each variable, shape (variables, K): groups of the
        same costs have the same ones, and there are as many groups as a model has layers."""
        cost = self._problem.costs[group]
        if id(cost) not in self._coded:
            codes = self.of(group) @ self._weights
            self._coded[id(cost)] = np.ascontiguousarray(codes.T)
        return self._coded[id(cost)]
