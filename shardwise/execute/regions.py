"""Regions: stretches of local operators that torch.compile turns into one program each.

Between regions a program runs as it does without torch.compile: moves, operators that communicate
inside, random ones. So compiled and eager runs call the same collectives in the same order. A
region ends before an instruction that is not compiled, unless that one is local and can run before
the region (a share of the batch, cut out of an input). It also ends where the gradients of its
parameters are worth a collective of their own: all gradients of a region are ready at once, so they
are not summed while its own backward runs.

All of this is decided from the plan and the mesh, alike on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET

from shardwise.cost.software import COMPILED
from shardwise.documents import Plan
from shardwise.execute.instruction import Instruction, mark_dead
from shardwise.execute.local import LocalOperator
from shardwise.execute.region import Region

FEWEST = 2
"""A region of fewer operators that compute has nothing to fuse, and calling it costs more."""


def is_compiled(plan: Plan, device: str, asked: bool | None) -> tuple[bool, str | None]:
    """Returns whether a plan is to be compiled on a kind of device, `cuda` or `cpu`, and why not
    where its kernels are compiled ones.

    It is as `asked`, by default as the plan says. Kernels that the plan only assumes are compiled
    on GPUs alone: on CPUs a plan for GPUs is tried out, and compiling takes longer than the trial.
    """
    if asked is not None:
        return asked, None
    if plan.kernels != COMPILED:
        return False, None
    if plan.assumed and device != "cuda":
        return False, "compiled kernels were assumed for GPUs; elsewhere --compile asks for them"
    return True, None


def obstacle(instructions: Sequence[Instruction], plan: Plan) -> str | None:
    """Returns why a plan is not compiled: ranks that run different operators, an order of its own,
    or what needs saved-tensor hooks, which compiled programs do not run."""
    if plan.cluster is not UNSET:
        return "ranks of several kinds run different operators"
    if plan.reordered is not UNSET:
        return "backward runs in an order of its own"
    for group in plan.groups:
        if group.zero == 3:
            return f"group {group.name} is under ZeRO 3, which gathers parameters again in backward"
        if group.recompute:
            return f"group {group.name} runs forward again in backward (recomputation)"
    for instruction in instructions:
        if instruction.rebuild is not None:
            name = instruction.name.partition(" ")[2]
            return f"tensor {name} crosses groups and is moved again in backward (reuse)"
    return None


def in_regions(
    instructions: Sequence[Instruction],
    lasting: set[int],
    gradient_bytes: Mapping[int, int],
    most_bytes: int,
) -> list[Instruction]:
    """Returns the program with each region as one instruction, whose `run` is a `Region`.

    `lasting` slots are read after the program. `gradient_bytes` gives the slots of parameters whose
    gradients are summed over ranks, with the bytes of those; a region reads about `most_bytes`.
    """
    program: list[Instruction] = []
    for part in _parts(instructions, gradient_bytes, most_bytes):
        if _computing(part) >= FEWEST:
            program.append(_region(part, lasting | _read_later(part, instructions), len(program)))
        else:
            program += [replace(instruction) for instruction in part]
    mark_dead(program, lasting)
    return program


def _traced(instruction: Instruction) -> LocalOperator | None:
    """Returns an instruction's operator if torch.compile may have it."""
    run = instruction.run
    return run if isinstance(run, LocalOperator) and run.untraced is None else None


def _computing(part: Sequence[Instruction]) -> int:
    """Returns how many operators of a stretch make more than views; 0 if it is not compiled."""
    operators = [_traced(instruction) for instruction in part]
    return sum(operator is not None and not operator.views for operator in operators)


def _parts(
    instructions: Sequence[Instruction], gradient_bytes: Mapping[int, int], most_bytes: int
) -> Iterator[list[Instruction]]:
    """Yields the instructions in stretches: those of a region, or one that is in none."""
    stretch: list[Instruction] = []
    made: set[int] = set()
    parameters: set[int] = set()
    for instruction in instructions:
        if _traced(instruction) is None:
            if stretch and not (instruction.early and made.isdisjoint(instruction.inputs)):
                yield stretch
                stretch, made, parameters = [], set(), set()
            yield [instruction]
            continue
        more = {s for s in instruction.inputs if s in gradient_bytes} - parameters
        if more and sum(gradient_bytes[s] for s in parameters) >= most_bytes:
            yield stretch
            stretch, made, parameters = [], set(), set()
        stretch.append(instruction)
        made |= set(instruction.outputs)
        parameters |= more
    if stretch:
        yield stretch


def _read_later(part: Sequence[Instruction], instructions: Sequence[Instruction]) -> set[int]:
    """Returns the slots that instructions outside a stretch read."""
    inside = {id(instruction) for instruction in part}
    return {s for i in instructions if id(i) not in inside for s in i.inputs}


def _region(part: Sequence[Instruction], wanted: set[int], number: int) -> Instruction:
    made = [slot for instruction in part for slot in instruction.outputs]
    read = dict.fromkeys(slot for instruction in part for slot in instruction.inputs)
    inputs = tuple(slot for slot in read if slot not in set(made))
    outputs = tuple(slot for slot in made if slot in wanted)
    name = f"region_{number}"
    return Instruction(name, Region(name, part, inputs, outputs), inputs, outputs)
