"""One instruction of a rank's program, and the slots that instructions read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Slots = list[Any]
"""The tensors that exist while a program runs; None in slots not yet filled or already emptied."""


@dataclass
class Instruction:
    """`run` maps the tensors of `inputs` to those of `outputs`; then the `dead` slots are emptied.

    `name` is the operator's, or says what is moved. `segment` is the segment of recomputation whose
    second run includes the instruction, or None. `saves_first` says that it saves nothing but what
    it reads, before it computes, and that it does not communicate. `rebuild` says how backward
    rebuilds the copy of a crossing tensor that was not kept. `early`: no rank waits for another in
    it, forward or backward, so it may run as soon as its inputs exist. `deferred` are the places of
    inputs whose gradients are left to a later pass.
    """

    name: str
    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...] = ()
    segment: int | None = None
    saves_first: bool = False
    written: tuple[int, ...] = ()
    rebuild: Rebuild | None = None
    tensors: tuple[str, ...] = field(default=())
    early: bool = False
    deferred: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rebuild:
    """A crossing keeps one copy, the slot `kept`; in backward `move` turns it into `dropped`.

    Of rows that are sent, it reads the experts that they have chosen in the slots `chosen` too.
    """

    kept: int
    dropped: int
    move: Callable[..., Any]
    chosen: tuple[int, ...] = ()


def mark_dead(instructions: Sequence[Instruction], lasting: set[int]) -> None:
    """Marks as dead after each instruction the slots no later one reads; `lasting` ones stay."""
    seen = set(lasting)
    for instruction in reversed(instructions):
        touched = {*instruction.inputs, *instruction.outputs}
        if instruction.rebuild is not None:
            rebuild = instruction.rebuild
            touched |= {rebuild.kept, rebuild.dropped, *rebuild.chosen}
        instruction.dead = tuple(sorted(touched - seen))
        seen |= touched
