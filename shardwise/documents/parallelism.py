"""Parallelism of a whole model in the terms of trainers: degrees, ZeRO stage, recomputation."""

from __future__ import annotations

from typing import Literal

import msgspec

Recomputed = Literal["none", "selective", "full"]
"""What backward computes again: nothing, all of a block but its products by weights, all of it."""


class Parallelism(msgspec.Struct, frozen=True):
    """One strategy for every layer alike: `replicas` × `shards` × `tensor` devices.

    Samples are divided among `replicas` × `shards`. ZeRO shards over `shards` devices and its
    shards have `replicas` copies (HSDP); without ZeRO `shards` is 1. `tensor` is the degree of
    tensor parallelism, innermost in the mesh; `sequence` says whether positions are split over
    the same devices between the products (sequence parallelism). `zero` is the stage, 0 to 3.
    """

    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    sequence: bool = False
    zero: int = 0
    recompute: Recomputed = "none"
    micro_batches: int = 1

    @property
    def gpus(self) -> int:
        return self.replicas * self.shards * self.tensor

    @property
    def data(self) -> int:
        """Returns among how many devices samples are divided."""
        return self.replicas * self.shards


class PlannedTrainer(msgspec.Struct, frozen=True):
    """The trainer whose space a plan was searched in, and what that costs (docs/trainers.md).

    `sequence_length` is in tokens, null where samples are not sequences. `any_time_s` is the
    replayed step of the plan without the restriction, and `slower` the excess over it, relative;
    both are null where that search found nothing.
    """

    name: str
    parallelism: Parallelism
    sequence_length: int | None
    any_time_s: float | None
    slower: float | None
