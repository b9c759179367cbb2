"""The program of one training step, for every strategy of a search at once.

    forward     the graph's operators in their order           \
    backward    the same order reversed, as autograd runs it   / for every micro-batch
    update      parameter by parameter, when all gradients have been reduced

Between two groups a tensor may be re-scheduled, and the reader then has its own copy. Whether it
does, and which copy backward reads (TensorOpt §4.2, tensor reuse), depends on the strategy, so a
tensor is a list of copies under flags. Views own nothing.

Of more than `WRITTEN` micro-batches only `WRITTEN` are written; the middle one represents every
further one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.step_settings import StepSettings
from shardwise.graph.order import OperatorOrder
from shardwise.replay.backward import Backward
from shardwise.replay.columns import GroupTable
from shardwise.replay.forward import Forward
from shardwise.replay.layers import Folded
from shardwise.replay.record import Order
from shardwise.replay.structure import StepStructure, numbered_tables
from shardwise.replay.tape import BEFORE, COMPUTE
from shardwise.replay.update import Update

WRITTEN = 3
"""Micro-batches: the first allocates gradients, the last reduces them."""


@dataclass(frozen=True)
class Repeat:
    """A stretch of tasks that is repeated: those in `tasks`, `times` more often.

    One repetition takes from the end of task `begins` to the end of task `ends`.
    """

    tasks: range
    begins: int
    ends: int
    times: int

    @property
    def marks(self) -> list[int]:
        return [self.begins, self.ends]


@dataclass(frozen=True)
class Pass:
    """The tasks of one micro-batch by operator, forward and backward.

    Those of its forward pass, with its communication, are in the range `forward_tasks`, those of
    gradients of weights in `weights_tasks` where backward is split, with I between the two.
    """

    forward: Mapping[str, int]
    backward: Mapping[str, int]
    forward_tasks: range
    weights_tasks: range = range(0)


@dataclass(frozen=True)
class StepProgram:
    """A written step; `repeat` if micro-batches were omitted.

    `last_backward` is the first task of the last written backward pass, `passes` the written
    micro-batches, `update` the tasks of the update.
    """

    structure: StepStructure
    repeat: Repeat | None
    last_backward: int
    passes: tuple[Pass, ...]
    update: range


def step_program(
    problem: SearchProblem,
    settings: StepSettings,
    tables: list[GroupTable] | None = None,
    *,
    order: OperatorOrder | None = None,
    most: int | None = None,
    compute: Order = "program",
    split: bool = False,
    folded: Folded | None = None,
) -> StepProgram:
    """Writes the whole step to the structure's tape; `tables` are those of the groups.

    With `split` every backward is run in two parts (`backward.py`).

    Operators run in the graph's order and backward in the reverse of it, or as `order` says. Only
    `most` micro-batches are written where that is given. Where `compute` is not the program's
    order, nothing waits for what the program happens to have before it. `folded` says which layers
    are written, if not all are.
    """
    step = StepStructure(problem, settings, tables or numbered_tables(problem), order, folded)
    step.tape.resources[COMPUTE] = compute
    _write_lasting(step)
    update = Update(step)
    batches = problem.context.micro_batches
    written = min(batches, most or WRITTEN)
    ends: list[tuple[int, int]] = []
    first = BEFORE
    passes = []
    for number in range(written):
        forward, start = Forward(step), len(step.tape.holds)
        forward.write()
        forward_tasks = range(start, len(step.tape.holds))
        reduce = partial(update.reduce, first=number == 0, last=number == written - 1)
        backward = Backward(step, forward, reduce, split=split)
        backward.write()
        first = backward.first
        passes.append(Pass(forward.task, backward.task, forward_tasks, backward.weights_tasks))
        ends.append((backward.last, len(step.tape.streams)))
    start = len(step.tape.holds)
    update.write()
    updated = range(start, len(step.tape.holds))
    repeat = None
    if most is None and batches > written:
        (begins, start), (middle, stop), _ = ends
        repeat = Repeat(range(start, stop), begins, middle, batches - written)
    return StepProgram(step, repeat, first, tuple(passes), updated)


def _write_lasting(step: StepStructure) -> None:
    """Writes what exists before the step: parameters, optimizer state, buffers, the batch."""
    tape, tensors = step.tape, step.graph.tensors
    tape.phase()
    for name, tensor in tensors.items():
        if tensor.role == "buffer" and step.is_written(name):
            step.at(name)
            tape.buffer(name, BEFORE, float(tensor.size_bytes), lasting=True)
    inputs: set[str] = set()
    tape.phase()
    for group in step.groups:
        step.at_group(group.index)
        table, pattern = step.table(group.index), step.problem.patterns[group.index]
        for number, name in enumerate(pattern.parameters):
            size = step.cell(group.index, table.lasting_bytes(number))
            tape.buffer(name, BEFORE, size, lasting=True)
        for position, port in table.loads:
            name = group.members[position].operator.inputs[port]
            if name not in inputs:
                inputs.add(name)
                block = step.settings.block_bytes
                size = step.cell(group.index, table.arriving_bytes(position, port, block))
                tape.buffer(name, BEFORE, size, lasting=True)
