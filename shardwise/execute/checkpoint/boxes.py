"""The boxes of a whole tensor that a rank's elements occupy; checkpoints consist of boxes.

A rank has a box of the tensor, or a stretch [start, stop) of that box flattened row-major (ZeRO). A
stretch of a box with D dimensions is at most 2 D - 1 boxes: the end of the first row, whole rows,
the beginning of the last row; and recursively inside a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from shardwise.execute.parameters.spec import Placement


@dataclass(frozen=True)
class Part:
    """A box of the tensor `name`: global `offsets` and `sizes`, and its memory on this rank."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    memory: torch.Tensor


def stretch(
    shape: Sequence[int], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields offsets and sizes of the boxes that make up [start, stop) of a box, in order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        # Within one row.
        yield from _inside(last, shape, start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from _inside(first - 1, shape, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if last * row < stop:
        yield from _inside(last, shape, 0, stop - last * row)


def _inside(
    row: int, shape: Sequence[int], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offsets, sizes in stretch(shape[1:], start, stop):
        yield (row, *offsets), (1, *sizes)


def parts_of(name: str, tensor: torch.Tensor, place: Placement | None) -> list[Part]:
    """Returns the boxes of a tensor placed at `place`; None means whole on this rank.

    `tensor` is contiguous and shaped like what the optimizer gets for the parameter.
    """
    if place is None:
        shape = tuple(tensor.shape)
        return [Part(name, shape, tuple(0 for _ in shape), shape, tensor)]
    if not place.present:
        return []
    shape = tuple(place.spec.shape)
    corner = tuple(s.start for s in place.mesh.local_slices(shape, place.spec.layout))
    own = place.own if place.stage else range(place.elements)
    flat = tensor.view(-1)
    parts, at = [], 0
    for offsets, sizes in stretch(place.local_shape, own.start, own.stop):
        count = prod(sizes)
        offsets = tuple(a + b for a, b in zip(corner, offsets, strict=True))
        parts.append(Part(name, shape, offsets, sizes, flat[at : at + count].view(sizes)))
        at += count
    return parts
