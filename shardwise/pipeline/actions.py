"""What a rank of a pipeline does: actions on a micro-batch of a stage, and lists of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from shardwise.pipeline.placement import Placement


class Kind(StrEnum):
    """The kinds of actions, with the letters of the zero-bubble papers."""

    FORWARD = "F"
    BACKWARD = "B"
    """The whole backward pass: gradients of inputs and of weights."""
    INPUTS = "I"
    """The backward pass of the inputs, which the previous stage waits for."""
    WEIGHTS = "W"
    """The backward pass of the weights, which only the update waits for."""


class Action(NamedTuple):
    """One kind of work on one micro-batch of one stage; written `2F0` for stage 2, micro-batch 0.

    `with_previous` says that the schedule means the action to run at the same time as the one
    before it in the list, as DualPipe overlaps a forward with a backward.
    """

    kind: Kind
    stage: int
    micro_batch: int
    with_previous: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def work(self) -> tuple[Kind, int, int]:
        """The action without how it is run: what other actions wait for."""
        return self.kind, self.stage, self.micro_batch


@dataclass(frozen=True)
class Schedule:
    """A step of a pipeline: for each rank, its actions in the order in which it does them."""

    name: str
    placement: Placement
    micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.placement.stages
