"""The backward passes of a micro-batch on a rank, and in which of them parameters get gradients.

The programs of a rank, one for each of its stages, run backward one by one: program c in pass c, or
where backward is split in the passes 2c (I) and 2c + 1 (W). A parameter that several of them read,
as a tied weight of two stages on one rank, is there once, and gets a gradient in the passes of all.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.execute.builder import Built
from shardwise.execute.parameters.store import Passes


def first_pass(program: int, split: bool) -> int:
    """Returns the number of the pass of a program, or of its I; that of its W comes next."""
    return 2 * program if split else program


def passes_of(builts: Sequence[Built], split: bool) -> dict[str, Passes]:
    """Returns for each parameter the numbers of the passes in which it gets a gradient."""
    passes: dict[str, set[int]] = {}
    for number, built in enumerate(builts):
        first = first_pass(number, split)
        parts = _parts(built) if split else {}
        for name, slot in built.parameters.items():
            passes.setdefault(name, set()).update(first + part for part in parts.get(slot, {0}))
    return {name: frozenset(numbers) for name, numbers in passes.items()}


def _parts(built: Built) -> dict[int, set[int]]:
    """Returns for each slot the parts of backward, 0 for I and 1 for W, that give it a gradient.

    What is not an operator moves a tensor, and has its backward when that of its result comes.
    """
    parts: dict[int, set[int]] = {}
    for instruction in reversed(built.instructions):
        onward = [parts.get(slot, set()) for slot in instruction.outputs]
        for place, slot in enumerate(instruction.inputs):
            here = parts.setdefault(slot, set())
            if instruction.tensors:
                here.add(int(place in instruction.deferred))
            else:
                here.update(*onward)
    return parts
