"""Orders of execution: a plan's list of operators as a list of instructions, forward and backward.

Forward is the list: what moves a tensor comes just before the first operator that reads it.
Backward of a move comes just after that of its last reader. So the list of operators alone decides
the order of all instructions, on every rank the same, and what each rank calls is a part of one
order.

Autograd runs what it recorded youngest first. Instructions whose backward is in the reverse of
their order in forward are therefore one stretch, which it runs at once; where the order differs, a
new stretch begins. The graph is cut between stretches: what one reads of another enters it anew,
and its gradient is handed over (`ordered_backward.py`). A plan in the program's order is one
stretch, and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.execute.instruction import Instruction

RESULTS = -1
"""The stretch, before all others, from which the gradients of a program's results come."""


def in_order(instructions: Sequence[Instruction], operators: Sequence[str]) -> list[Instruction]:
    """Returns instructions with operators in the order of their names, the rest as they need it."""
    makers = {slot: i for i in instructions for slot in i.outputs}
    named = {i.name: i for i in instructions if i.tensors}
    listed: dict[int, Instruction] = {}

    def put(instruction: Instruction) -> None:
        waiting = [instruction]
        while waiting:
            one = waiting[-1]
            before = [makers[s] for s in one.inputs if s in makers]
            missing = [i for i in before if id(i) not in listed]
            if missing:
                waiting += missing[::-1]
                continue
            waiting.pop()
            listed.setdefault(id(one), one)

    for name in operators:
        if name in named:
            put(named[name])
    for instruction in instructions:
        put(instruction)
    return list(listed.values())


@dataclass
class Stretch:
    """Instructions whose backward autograd runs at once, by number; `makes` are the slots that they
    fill and other stretches read, or the program returns."""

    instructions: list[int] = field(default_factory=list)
    makes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BackwardOrder:
    """How backward of a list of instructions is run.

    `turns` are the places of instructions in backward. `entries` are, by instruction, the slots
    that enter its stretch anew, `stretch_of` its stretch, `parameters` the stretch of each
    parameter's slot.
    """

    stretches: Sequence[Stretch]
    turns: Mapping[int, int]
    stretch_of: Mapping[int, int]
    entries: Mapping[int, Sequence[int]]
    parameters: Mapping[int, int]
    results: Sequence[int]

    @property
    def cut(self) -> frozenset[int]:
        """The slots whose gradients are handed over."""
        return frozenset(slot for stretch in self.stretches for slot in stretch.makes)


def backward_order(
    instructions: Sequence[Instruction],
    parameters: Sequence[int],
    results: Sequence[int],
    operators: Sequence[str],
) -> BackwardOrder:
    """Returns how backward runs in the order of `operators`, names.

    `parameters` and `results` are slots. Instructions without a place among the operators, as
    moves, take theirs after their last reader.
    """
    readers = _readers(instructions)
    stretches: list[Stretch] = []
    stretch_of: dict[int, int] = {}
    turns: dict[int, int] = {}
    last = -1
    for turn, number in enumerate(_in_backward(instructions, readers, operators)):
        if not stretches or number > last:
            stretches.append(Stretch())
        last = number
        stretches[-1].instructions.append(number)
        stretch_of[number] = len(stretches) - 1
        turns[number] = turn
    # A parameter's gradient is whole in the stretch of the last that reads it.
    of_parameter = {slot: max(stretch_of[r] for r in readers[slot]) for slot in parameters}
    made_in = {s: stretch_of[n] for n, i in enumerate(instructions) for s in i.outputs}
    made_in |= of_parameter
    entries: dict[int, list[int]] = {}
    handed: dict[int, None] = dict.fromkeys(slot for slot in results if slot in made_in)
    for n, instruction in enumerate(instructions):
        for slot in dict.fromkeys(instruction.inputs):
            if slot in made_in and made_in[slot] != stretch_of[n]:
                entries.setdefault(n, []).append(slot)
                handed[slot] = None
    for slot in handed:
        stretches[made_in[slot]].makes.append(slot)
    return BackwardOrder(stretches, turns, stretch_of, entries, of_parameter, tuple(results))


def _readers(instructions: Sequence[Instruction]) -> Mapping[int, Sequence[int]]:
    """Returns the instructions that read each slot."""
    readers: dict[int, list[int]] = {}
    for n, instruction in enumerate(instructions):
        for slot in instruction.inputs:
            readers.setdefault(slot, []).append(n)
    return readers


def _in_backward(
    instructions: Sequence[Instruction],
    readers: Mapping[int, Sequence[int]],
    operators: Sequence[str],
) -> list[int]:
    """Returns the instructions in the order of their backward."""
    place = {name: number for number, name in enumerate(operators)}
    keys: dict[int, tuple[int, int, int]] = {}
    for n in range(len(instructions) - 1, -1, -1):
        instruction = instructions[n]
        # A reader of forward comes later there, so that its key is known.
        after = [keys[r][0] for s in instruction.outputs for r in readers.get(s, ())]
        own = place.get(instruction.name, -1) if instruction.tensors else -1
        # Of what comes after one operator, the last in forward first.
        keys[n] = (max([own, *after]), 0 if own >= 0 else 1, -n)
    return sorted(keys, key=keys.__getitem__)
