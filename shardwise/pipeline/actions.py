"""Actions of a pipeline's ranks, each on a micro-batch of a stage, and schedules of them."""

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
    """The backward pass of the inputs, for which the previous stage waits."""
    WEIGHTS = "W"
    """The backward pass of the weights, for which only the update waits."""


class Action(NamedTuple):
    """One kind of work on one micro-batch of one stage; written `2F0` for stage 2, micro-batch 0.

    `with_previous`: the schedule intends the action to overlap the one before it in the list, as
    DualPipe overlaps a forward with a backward.
    """

    kind: Kind
    stage: int
    micro_batch: int
    with_previous: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def work(self) -> tuple[Kind, int, int]:
        """The action's identity for dependencies, without how it is run."""
        return self.kind, self.stage, self.micro_batch


@dataclass(frozen=True)
class Schedule:
    """A step of a pipeline: each rank's actions in order."""

    name: str
    placement: Placement
    micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.placement.stages
