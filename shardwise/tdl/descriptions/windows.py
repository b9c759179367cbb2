"""Windows that slide over the spatial dimensions: what one reads, and which ones reach a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Windows:
    """Extent, stride, dilation and padding before the data, one number per spatial dimension."""

    size: Sequence[int]
    steps: Sequence[int]
    gaps: Sequence[int]
    pads: Sequence[int]

    def read(self, at: Sequence[Any], offset: Sequence[Any]) -> tuple[Any, ...]:
        """The place of the data that the window at `at` reads at `offset` within it."""
        return tuple(
            x * step + d * gap - pad
            for x, d, step, gap, pad in zip(
                at, offset, self.steps, self.gaps, self.pads, strict=True
            )
        )

    @property
    def overlapping(self) -> list[int]:
        """How many windows reach one place, per dimension."""
        return [
            (size - 1) * gap // step + 1
            for size, step, gap in zip(self.size, self.steps, self.gaps, strict=True)
        ]

    def reaching(self, place: Sequence[Any], back: Sequence[Any]) -> tuple[Any, ...]:
        """The window that is `back` windows before the last one to reach a place of the data."""
        return tuple(
            (x + pad) // step - t
            for x, t, step, pad in zip(place, back, self.steps, self.pads, strict=True)
        )
