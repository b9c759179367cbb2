"""The forward pass of a step program: operators in the graph's order, tensors as copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwise.advise.step_structure import Copies, Copy, Crossing, StepStructure
from shardwise.advise.tape import COMMUNICATION, COMPUTE
from shardwise.graph.graph import Operator

CONSTANT = -1
"""Instead of a group: constants are seen by all groups alike."""


class Forward:
    """Writes one forward pass; afterwards says where backward finds what it kept.

    `task[operator]` is its forward task; `read[operator, port]` the copies that it read.
    """

    def __init__(self, step: StepStructure) -> None:
        self._step = step
        self._tape = step.tape
        self.task: dict[str, int] = {}
        self.read: dict[tuple[str, int], Copies] = {}
        self._there: dict[tuple[str, int], Copies] = {}

    def write(self) -> None:
        for op in self._step.graph.operators:
            place = self._step.place.get(op.name)
            if place is None:
                self._constant(op)
            else:
                self._member(*place)

    def made(self, tensor: str, group: int) -> Copies:
        """The copies of a tensor that the group made."""
        return self._there[tensor, group]

    def source(self, crossing: Crossing) -> Copies:
        """The copies from which a crossing starts."""
        return self._there[crossing.tensor, crossing.source]

    def _constant(self, op: Operator) -> None:
        tape, tensors = self._tape, self._step.graph.tensors
        device = self._step.problem.context.hardware.devices[0]
        moved = np.array([float(sum(tensors[n].size_bytes for n in (*op.inputs, *op.outputs)))])
        seconds = device.roofline_times(np.zeros(1), moved, tensors[op.outputs[0]].dtype)
        task = tape.task(op.name, COMPUTE, float(seconds[0]))
        for name in op.inputs:
            for copy in self._there.get((name, CONSTANT), ()):
                tape.use(copy.buffer, task)
        for name in op.outputs:
            buffer = tape.buffer(name, task, float(tensors[name].size_bytes))
            self._there[name, CONSTANT] = (Copy(buffer, task),)

    def _member(self, group: int, position: int) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        member = step.member(group, position)
        op, memory = member.operator, step.footprints[member.operator.name]
        inputs = [self._input(group, position, port) for port in range(len(op.inputs))]
        after = {copy.made for copies in inputs for copy in copies}
        for port in range(len(op.inputs)):
            if table.has_halo(position, port):
                seconds = step.cell(group, table.halo(position, port))
                after.add(tape.task(f"halo of {op.name}", COMMUNICATION, seconds, tuple(after)))
        seconds = step.cell(group, table.forward_s(position))
        task = self.task[op.name] = tape.task(op.name, COMPUTE, seconds, after)
        for copies in inputs:
            for copy in copies:
                tape.use(copy.buffer, task, copy.flag)
        for size in memory.forward:
            tape.buffer(f"within {op.name}", task, step.cell(group, table.size(position, size)))
        done = task
        if member.semantics.statistics:
            seconds = step.cell(group, table.statistics(position))
            done = tape.task(f"statistics of {op.name}", COMMUNICATION, seconds, (task,))
        self._outputs(group, position, inputs, task, done)

    def _outputs(
        self, group: int, position: int, inputs: list[Copies], task: int, done: int
    ) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        for port, name in enumerate(op.outputs):
            if step.footprints[op.name].alias and inputs[0]:
                self._there[name, group] = tuple(replace(c, made=done) for c in inputs[0])
                continue
            if step.footprints[op.name].alias:
                self._there[name, group] = ()  # of what is there before the step
                continue
            buffer = tape.buffer(name, task, step.cell(group, table.output_bytes(position, port)))
            leaves = step.leaving.get((name, group))
            self._there[name, group] = (Copy(buffer, done, leaves=leaves),)

    def _input(self, group: int, position: int, port: int) -> Copies:
        """An input as this member reads it, re-scheduled where the strategy says so."""
        op = self._step.member(group, position).operator
        copies = self._seen(op.inputs[port], group)
        if copies and self._step.table(group).moves(position, port):
            copies = self._moved(group, position, port, copies)
        self.read[op.name, port] = copies
        return copies

    def _seen(self, name: str, group: int) -> Copies:
        """A tensor as the group sees it; nothing for what is there before the step."""
        for place in ((name, group), (name, CONSTANT)):
            if place in self._there:
                return self._there[place]
        crossing = self._step.crossings.get((name, group))
        if crossing is None:
            return ()
        arrived = self._there[name, group] = self._cross(crossing)
        return arrived

    def _cross(self, crossing: Crossing) -> Copies:
        tape, here = self._tape, self.source(crossing)
        label = f"move {crossing.tensor}"
        made = [copy.made for copy in here]
        task = tape.task(label, COMMUNICATION, crossing.cell("forward_s"), made)
        for copy in here:
            tape.use(copy.buffer, task, copy.flag)
        buffer = tape.buffer(f"{crossing.tensor} moved", task, crossing.cell("target_bytes"))
        moved, same = tape.flag(crossing.cell("moved")), tape.flag(crossing.cell("same"))
        stays = (
            replace(c, made=task, flag=tape.both(c.flag, same), arrived=None, leaves=None)
            if c.arrived is None
            else replace(c, made=task, flag=tape.both(c.flag, same), leaves=None)
            for c in here
        )
        return (Copy(buffer, task, moved, arrived=crossing), *stays)

    def _moved(self, group: int, position: int, port: int, copies: Copies) -> Copies:
        """A member reads the tensor in another layout than it has in the group."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        seconds = step.cell(group, table.move_s(position, port, backward=False))
        made = [copy.made for copy in copies]
        task = tape.task(f"move {op.inputs[port]} in {op.name}", COMMUNICATION, seconds, made)
        for copy in copies:
            tape.use(copy.buffer, task, copy.flag)
        size = step.cell(group, table.moved_bytes(position, port, backward=False))
        buffer = tape.buffer(f"{op.inputs[port]} moved", task, size)
        moved = tape.flag(step.cell(group, table.moved(position, port, backward=False)))
        same = tape.flag(step.cell(group, table.same(position, port, backward=False)))
        stays = (replace(c, made=task, flag=tape.both(c.flag, same)) for c in copies)
        return (Copy(buffer, task, moved), *stays)
