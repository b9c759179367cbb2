"""Owners (groups and edges) with the same costs, which are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Ends(Protocol):
    """The two groups that an edge joins."""

    @property
    def source(self) -> int:
        """The group that makes the tensor."""
        ...

    @property
    def target(self) -> int:
        """The group that reads it."""
        ...


class Alike(NamedTuple):
    """Edges with the same costs: their numbers, and those of their groups."""

    edges: NDArray[np.int64]
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def first(self) -> int:
        """The number of the first."""
        return int(self.edges[0])


def alike_edges(edges: Sequence[Ends], *lists: Sequence[object]) -> list[Alike]:
    """Returns the edges at which all lists have the same objects."""
    sources = np.array([edge.source for edge in edges], dtype=np.int64)
    targets = np.array([edge.target for edge in edges], dtype=np.int64)
    every = [np.array(of, dtype=np.int64) for of in alike(*lists)]
    return [Alike(of, sources[of], targets[of]) for of in every]


def alike(*lists: Sequence[object]) -> list[list[int]]:
    """Returns the positions at which all lists have the same objects."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for position, objects in enumerate(zip(*lists, strict=True)):
        positions.setdefault(tuple(map(id, objects)), []).append(position)
    return list(positions.values())
