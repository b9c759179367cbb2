"""Which rank of a pipeline has which stages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardwise.errors import BadInput


class Shape(StrEnum):
    """How stages are placed on ranks."""

    LOOP = "loop"
    """From the last rank back to the first: interleaved stages (Narayanan et al. 2021, §2.2.2)."""
    V = "v"
    """From the last rank on to itself and back: first and last stage share a rank (Qi et al. 2024,
    §6)."""


@dataclass(frozen=True)
class Placement:
    """Stages on ranks: each rank has `stages_per_rank` of them, called its chunks."""

    ranks: int
    stages_per_rank: int = 1
    shape: Shape = Shape.LOOP

    def __post_init__(self) -> None:
        for field in ("ranks", "stages_per_rank"):
            if getattr(self, field) < 1:
                raise BadInput(f"got {getattr(self, field)}", field=field, expected="at least 1")

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """Returns the rank that has a stage."""
        chunk, place = divmod(stage, self.ranks)
        return self.ranks - 1 - place if self._is_backwards(chunk) else place

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Returns the stages of a rank, one for each chunk, in ascending order."""
        return tuple(
            chunk * self.ranks + (self.ranks - 1 - rank if self._is_backwards(chunk) else rank)
            for chunk in range(self.stages_per_rank)
        )

    def _is_backwards(self, chunk: int) -> bool:
        return self.shape is Shape.V and chunk % 2 == 1
