"""One instruction of a rank's program, and the slots that instructions read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.graph.graph import Graph, Operator

Slots = list[Any]
"""The tensors that are there while a program runs; None where one is not there yet or any more."""


@dataclass
class Instruction:
    """`run` on the tensors of `inputs` gives those of `outputs`; then `dead` slots are emptied.

    `name` is the operator's, or says what is moved. `segment` is the segment of recomputation
    whose second run includes the instruction, or None; `rebuild` is what saved tensors of the
    outputs (or of the input, `rebuild_input`) are made from in backward.
    """

    name: str
    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...] = ()
    segment: int | None = None
    written: tuple[int, ...] = ()
    rebuild: Rebuild | None = None
    tensors: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Rebuild:
    """A crossing keeps one copy: `kept` (a slot) of it, `dropped` is made again by `again`."""

    kept: int
    dropped: int
    again: Callable[[Any], Any]


def mark_dead(instructions: Sequence[Instruction], lasting: set[int]) -> None:
    """Say of every instruction which slots nobody reads after it; `lasting` ones stay."""
    seen = set(lasting)
    for instruction in reversed(instructions):
        touched = {*instruction.inputs, *instruction.outputs}
        if instruction.rebuild is not None:
            touched |= {instruction.rebuild.kept, instruction.rebuild.dropped}
        instruction.dead = tuple(sorted(touched - seen))
        seen |= touched


def written_ports(op: Operator, graph: Graph) -> tuple[int, ...]:
    """Ports whose buffers the operator updates: running statistics."""
    if "batch_norm" not in op.kind and "instance_norm" not in op.kind:
        return ()
    return tuple(p for p, n in enumerate(op.inputs) if graph.tensors[n].role == "buffer")
