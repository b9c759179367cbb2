"""Owners that share what they cost: computed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence


def alike(*lists: Sequence[object]) -> list[list[int]]:
    """Returns the positions at which all of the lists have the same objects."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for position, objects in enumerate(zip(*lists, strict=True)):
        positions.setdefault(tuple(map(id, objects)), []).append(position)
    return list(positions.values())
