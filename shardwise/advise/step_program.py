"""The program of one training step, for every strategy of a search at once.

    forward     the graph's operators in their order
    backward    the same order reversed, as autograd runs it
    update      parameter by parameter, when all gradients have been summed

On the way from one group to another a tensor may be re-scheduled: then the reader has a copy of
its own. Whether it does, and which copy backward finds (TensorOpt §4.2, tensor reuse), depends on
the strategy, so a tensor is a list of copies under flags. Views own nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.advise.assemble import SearchProblem
from shardwise.advise.step_backward import Backward
from shardwise.advise.step_forward import Forward
from shardwise.advise.step_structure import StepSettings, StepStructure
from shardwise.advise.tape import BEFORE, COMMUNICATION, COMPUTE, Cell
from shardwise.graph.graph import DTYPE_BYTES

STATE_ITEM_BYTES = 4
"""Moments and master weights are float32."""


def step_program(problem: SearchProblem, settings: StepSettings) -> StepStructure:
    """Write the whole step to the structure's tape."""
    step = StepStructure(problem, settings)
    _write_lasting(step)
    forward = Forward(step)
    forward.write()
    backward = Backward(step, forward)
    backward.write()
    _write_update(step, backward.parameter)
    return step


def _write_lasting(step: StepStructure) -> None:
    """What is there before the step: parameters, optimizer state, buffers, inputs."""
    tape, tensors = step.tape, step.graph.tensors
    for name, tensor in tensors.items():
        if tensor.role == "buffer":
            tape.buffer(name, BEFORE, float(tensor.size_bytes), lasting=True)
    inputs: set[str] = set()
    for group in step.problem.coarsened.groups:
        table, pattern = step.table(group.index), step.problem.patterns[group.index]
        for p, name in enumerate(pattern.parameters):
            item = DTYPE_BYTES[tensors[name].dtype]
            if step.patterns.carries_gradient(name):
                item += table.state_bytes_per_element(name)
            tape.buffer(
                name, BEFORE, step.cell(group.index, table.parameter(p, item)), lasting=True
            )
        for position, member in enumerate(group.members):
            for port, name in enumerate(member.operator.inputs):
                if tensors[name].role == "input" and name not in inputs:
                    inputs.add(name)
                    size = step.cell(group.index, table.read_bytes(position, port))
                    tape.buffer(name, BEFORE, size, lasting=True)


def _write_update(
    step: StepStructure, gradients: Mapping[str, list[tuple[int, int]]]
) -> None:
    """Gradients are summed over replicas as they appear; then the optimizer runs."""
    tape = step.tape
    owners = [
        (group.index, p, name)
        for group in step.problem.coarsened.groups
        for p, name in enumerate(step.problem.patterns[group.index].parameters)
        if name in gradients
    ]
    summed: dict[str, int] = {}
    for index, p, name in owners:
        seconds = step.cell(index, step.table(index).synchronisation(p))
        made = [task for task, _ in gradients[name]]
        summed[name] = tape.task(f"sum gradient of {name}", COMMUNICATION, seconds, made)
        for task, buffer in gradients[name][1:]:
            tape.use(buffer, task)  # added to the first at once
    opening = tape.task("optimizer", COMPUTE, 0.0, summed.values())
    last = opening
    temporaries = _Temporaries(step, opening)
    for index, p, name in owners:
        table = step.table(index)
        seconds = step.cell(index, table.update_s(p))
        last = tape.task(f"update {name}", COMPUTE, seconds, (opening,))
        item = DTYPE_BYTES[step.graph.tensors[name].dtype]
        states = step.cell(index, table.parameter(p, STATE_ITEM_BYTES))
        temporaries.add(name, last, states, mixed=item < STATE_ITEM_BYTES)
    temporaries.close(last)
    for parts in gradients.values():
        tape.use(parts[0][1], last)


class _Temporaries:
    """What `torch.optim` allocates during an update.

    Adam's denominator is the root of the second moments; one by one (`for-loop`), root and
    denominator are two buffers, and the denominator before is freed only when its variable is
    bound anew; all at once (`foreach`) there is one root per parameter. With master weights the
    gradient is converted to float32 first. SGD and momentum work in place.
    """

    def __init__(self, step: StepStructure, opening: int) -> None:
        self._tape = step.tape
        self._how = step.settings.update
        self._adam = step.problem.context.options.optimizer == "adam"
        self._opening = opening
        self._open: list[int] = []
        self._before: list[int] = []

    def add(self, name: str, task: int, states: Cell, *, mixed: bool) -> None:
        tape = self._tape
        if self._how == "foreach":
            for needed in (self._adam, mixed):
                if needed:
                    self._open.append(tape.buffer(f"temporary of {name}", self._opening, states))
        elif self._how == "for-loop":
            before, self._before = self._before, []
            for buffer in before:
                tape.use(buffer, task)
            if mixed:
                tape.buffer(f"gradient of {name} in float32", task, states)
            if self._adam:
                tape.buffer(f"root of {name}", task, states)
                self._before = [tape.buffer(f"denominator of {name}", task, states)]

    def close(self, last: int) -> None:
        for buffer in self._open:
            self._tape.use(buffer, last)
