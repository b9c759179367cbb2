"""Numbers of 8 and 4 bits with scales, rounded as on one device though every rank has a share.

A tensor is cut into blocks that share a scale s, which follows from the largest |x| of the block:

    q = round(x / s),   s = max |x| / (largest number of the dtype), a power of two where powers are

A block that is cut by a split has its maximum on several ranks: they exchange it, each for the
blocks of which it has a part, so that all round as one device would. With two levels a scale of a
block is itself rounded to 8 bits, in multiples of one scale of the whole tensor (NVFP4). Numbers of
4 bits, which torch has no arithmetic for, are kept in 8 bits, where they are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from shardwise.execute.exchange import Exchange
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.sharding.recipes import BEFORE, E2M1, Recipe

REMEMBERED = 4096
"""Micro-batches in flight whose scales are remembered, for recomputation."""

_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What 4 bits can be besides a sign: two of exponent, one of mantissa."""


@dataclass(frozen=True)
class Number:
    """A dtype that is rounded to: its largest number, and the torch dtype that holds it."""

    largest: float
    holds: torch.dtype

    def of(self, x: Any) -> Any:
        """Returns numbers within the dtype's range, to the nearest, ties to even."""
        x = x.clamp(-self.largest, self.largest)
        return (x if self.largest > _FOUR_BITS[-1] else _four_bits(x)).to(self.holds)


def number(dtype: str) -> Number:
    """Returns how a dtype of 8 or 4 bits is held."""
    if dtype == E2M1:
        return Number(_FOUR_BITS[-1], torch.float8_e4m3fn)
    holds = getattr(torch, dtype)
    return Number(torch.finfo(holds).max, holds)


EIGHT = number("float8_e4m3fn")


@dataclass(frozen=True)
class Part:
    """One dimension of a tensor on this rank: its elements of the whole's `extent`, and the mesh
    axes that split it."""

    place: range
    extent: int
    axes: tuple[int, ...]

    def cuts(self, size: int, mesh: RankMesh) -> bool:
        """Returns whether some rank's part begins within a block of `size` elements."""
        starts = accumulate(mesh.shares(self.extent, self.axes))
        return any(start % size and start < self.extent for start in starts)


def parts_of(
    shape: Sequence[int], layout: Layout, mesh: RankMesh
) -> tuple[tuple[Part, ...], tuple[int, ...]]:
    """Returns the parts of a tensor of a global shape in a layout, and the axes that split what is
    no dimension of the tensor (rows that are sent to experts)."""
    split = [axes_of(layout, dim) for dim in range(len(shape))]
    parts = tuple(
        Part(mesh.share(extent, axes), extent, axes)
        for extent, axes in zip(shape, split, strict=True)
    )
    return parts, tuple(a for a, state in enumerate(layout) if state >= len(shape))


@dataclass(frozen=True)
class Scaled:
    """Rounded numbers and the scale of each block; `blocks` numbers the blocks along each dimension
    of more than one."""

    numbers: Any
    scales: Any
    blocks: list[Any]

    def wide(self) -> Any:
        """Returns the numbers that stand for the tensor, as wide as their scales."""
        return self.numbers.to(self.scales.dtype) * _spread(self.scales, self.blocks)


class Rounder:
    """Rounds one tensor of one operator, for a product that sums over some of its dimensions.

    Where scales come from the step before, it remembers them; the first step, of which nothing is
    known, has a scale of 1, as in TransformerEngine.
    """

    def __init__(
        self,
        recipe: Recipe,
        dtype: str,
        sizes: Sequence[int | None],
        parts: tuple[Sequence[Part], tuple[int, ...]],
        exchange: Exchange,
    ) -> None:
        """`sizes` are those of a block along each dimension, None for all of it."""
        self._recipe, self._number, self._exchange = recipe, number(dtype), exchange
        self._sizes, (self._parts, self._others) = tuple(sizes), parts
        self._last: Any = None
        self._used: dict[int, Any] = {}

    def __call__(self, x: Any, step: int) -> Scaled:
        """Returns a local part rounded, in forward pass `step`; collective where blocks are cut."""
        # The kernels' sums are in float32, too.
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        most, blocks = self._maxima(x, self._sizes)
        if self._recipe.scales == BEFORE:
            most = self._before(most, step)
        scales = most / self._number.largest
        if self._recipe.powers:
            scales = torch.exp2(torch.ceil(torch.log2(scales)))
        if self._recipe.two_levels:
            whole, _ = self._maxima(x, (None,) * x.dim())
            whole = _positive(whole / (self._number.largest * EIGHT.largest))
            scales = EIGHT.of(scales / whole).to(scales.dtype) * whole
        scales = _positive(scales)
        return Scaled(self._number.of(x / _spread(scales, blocks)), scales, blocks)

    def _maxima(self, x: Any, sizes: Sequence[int | None]) -> tuple[Any, list[Any]]:
        """Returns the maximum of each block, and the block of each element along each dimension:
        None where one is all of it."""
        most, blocks, cut = x.detach().abs(), list[Any](), set[int]()
        for dim, (size, part) in enumerate(zip(sizes, self._parts, strict=True)):
            here = x.shape[dim]
            if size is None:
                blocks.append(None)
                cut.update(part.axes, self._others)
                most = _most(most, dim, range(here), max(here, 1), 1)
                continue
            # Rows that were sent here lie elsewhere than in the whole: blocks are of this rank's.
            place, extent = range(here), here
            if here == len(part.place) and part.cuts(size, self._exchange.mesh):
                place, extent = part.place, part.extent
                cut.update(part.axes)
            most = _most(most, dim, place, size, -(-extent // size))
            numbers = torch.arange(place.start, place.start + here, device=x.device)
            blocks.append(numbers.div(size, rounding_mode="floor"))
        return self._exchange.max(most, tuple(sorted(cut))), blocks

    def _before(self, most: Any, step: int) -> Any:
        """Returns the maxima of the step before, and remembers these."""
        if step not in self._used:
            ones = torch.full_like(most, self._number.largest)
            self._used[step] = ones if self._last is None else self._last
            self._last = most
            for old in list(self._used)[:-REMEMBERED]:
                del self._used[old]
        return self._used[step]


def _most(x: Any, dim: int, place: range, size: int, count: int) -> Any:
    """Returns the maxima of `count` blocks along a dimension, of which the elements `place` are
    here: 0 for a block of which nothing is."""
    if size == 1 and count == len(place):
        return x
    first, end = place.start // size, -(-place.stop // size)
    rows = x.movedim(dim, -1)
    rows = torch.nn.functional.pad(rows, (place.start - first * size, end * size - place.stop))
    most = x.new_zeros((*rows.shape[:-1], count))
    if len(place):
        most[..., first:end] = rows.unflatten(-1, (end - first, size)).amax(-1)
    return most.movedim(-1, dim)


def _positive(scales: Any) -> Any:
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def _spread(scales: Any, blocks: Sequence[Any]) -> Any:
    for dim, numbers in enumerate(blocks):
        if numbers is not None:
            scales = scales.index_select(dim, numbers)
    return scales


def _four_bits(x: Any) -> Any:
    """Returns the nearest numbers of 4 bits, ties to the even mantissa."""
    values = x.new_tensor(_FOUR_BITS)
    size = x.abs()
    upper = torch.searchsorted(values, size.contiguous()).clamp(1, len(_FOUR_BITS) - 1)
    below, above = values[upper - 1], values[upper]
    nearer = torch.where(size - below < above - size, below, above)
    tied = size - below == above - size
    # Of two neighbours the one at an even place has an even mantissa.
    even = torch.where((upper - 1) % 2 == 0, below, above)
    return torch.copysign(torch.where(tied, even, nearer), x)
