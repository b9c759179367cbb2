"""The forward pass of a step program: operators in the graph's order, tensors as copies."""

from __future__ import annotations

import numpy as np

from shardwise.cost.context import CostContext
from shardwise.graph.graph import Operator
from shardwise.replay.columns import FORWARD
from shardwise.replay.structure import Copies, Copy, Crossing, StepStructure, Weights
from shardwise.replay.tape import BEFORE, COMMUNICATION, COMPUTE

CONSTANT = -1
"""Instead of a group: all groups see the same constants."""


def constant_s(context: CostContext, op: Operator) -> float:
    """Returns the seconds of an operator that every device computes in full."""
    tensors, device = context.graph.tensors, context.hardware.devices[0]
    moved = np.array([float(sum(tensors[n].size_bytes for n in (*op.inputs, *op.outputs)))])
    return float(device.roofline_times(np.zeros(1), moved, tensors[op.outputs[0]].dtype)[0])


class Forward:
    """Writes one forward pass; afterwards it knows which copies each group had.

    `task[operator]` is its forward task; `read[operator, port]` the copies that it read.
    """

    def __init__(self, step: StepStructure) -> None:
        self._step = step
        self._tape = step.tape
        self._weights = Weights(step)
        self.task: dict[str, int] = {}
        self.read: dict[tuple[str, int], Copies] = {}
        self._there: dict[tuple[str, int], Copies] = {}
        # Which member loads each input of the graph for its group; those that have.
        self._loader = {
            (group.members[reader].operator.inputs[port], group.index): reader
            for group in step.groups
            for reader, port in step.table(group.index).loads
        }
        self._loaded: set[tuple[int, int]] = set()

    def write(self) -> None:
        """Writes the whole pass."""
        self._tape.phase()
        for op in self._step.operators:
            self._step.at(op.name)
            place = self._step.place.get(op.name)
            if place is None:
                self._constant(op)
            else:
                self._member(*place)

    def there(self, tensor: str, group: int) -> Copies:
        """Returns a group's copies of a tensor, made or received; none of permanent tensors."""
        for place in ((tensor, group), (tensor, CONSTANT)):
            if place in self._there:
                return self._there[place]
        return ()

    def _constant(self, op: Operator) -> None:
        tape, tensors = self._tape, self._step.graph.tensors
        seconds = constant_s(self._step.problem.context, op)
        task = self.task[op.name] = tape.task(op.name, COMPUTE, seconds)
        for name in op.inputs:
            for copy in self._there.get((name, CONSTANT), ()):
                tape.use(copy.buffer, task)
        for name in op.outputs:
            buffer = tape.buffer(name, task, float(tensors[name].size_bytes))
            self._there[name, CONSTANT] = (Copy(buffer, task),)

    def _member(self, group: int, position: int) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        memory = step.footprints[op.name]
        for name in op.inputs:
            if (name, group) in self._loader:
                self._load(group, self._loader[name, group])
        inputs = [self._seen(name, group) for name in op.inputs]
        after = {copy.maker for copies in inputs for copy in copies}
        weights = self._weights.for_forward(group, position)
        after.update(copy.maker for copy in weights)
        beside = after
        if table.communicates(position, FORWARD):
            seconds = step.cell(group, table.communication_s(position, FORWARD))
            task = tape.task(f"exchange for {op.name}", COMMUNICATION, seconds, after)
            for copies in inputs:
                for copy in copies:
                    tape.use(copy.buffer, task, copy.flag)
            tape.buffer(f"within {op.name}", task, step.cell(group, table.staged_bytes(position)))
            after = {task}
        for port, copies in enumerate(inputs):
            if copies and table.moves(position, port):
                copies = self._moved(group, position, port, copies, max(after))
            self.read[op.name, port] = copies
        if table.goes_round(position):
            # All blocks but the last are computed while the next one arrives.
            seconds = step.cell(group, table.beside_ring_s(position, FORWARD))
            first = tape.task(f"first blocks of {op.name}", COMPUTE, seconds, beside)
            held = step.cell(group, table.ring_bytes(position, FORWARD))
            going = tape.buffer(f"keys and values for {op.name}", first, held)
            seconds = step.cell(group, table.after_ring_s(position, FORWARD))
            task = self.task[op.name] = tape.task(op.name, COMPUTE, seconds, {*after, first})
            tape.use(going, task)
        else:
            seconds = step.cell(group, table.compute_s(position, FORWARD))
            task = self.task[op.name] = tape.task(op.name, COMPUTE, seconds, after)
        for port in range(len(inputs)):
            for copy in self.read[op.name, port]:
                tape.use(copy.buffer, task, copy.flag)
        for copy in weights:
            tape.use(copy.buffer, task)
        for size in memory.forward:
            tape.buffer(f"within {op.name}", task, step.cell(group, table.size(position, size)))
        for port, name in enumerate(op.outputs):
            if memory.alias:
                same = (Copy(c.buffer, task, c.flag) for c in self.read[op.name, 0])
                self._there[name, group] = tuple(same)
            else:
                cell = step.cell(group, table.output_bytes(position, port))
                self._there[name, group] = (Copy(tape.buffer(name, task, cell), task),)

    def _load(self, group: int, position: int) -> None:
        """Writes the loading of the graph's inputs that the member is the first to read in the
        program's order, when any member reads one of them."""
        if (group, position) in self._loaded:
            return
        self._loaded.add((group, position))
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        ports = [port for reader, port in table.loads if reader == position]
        names = ", ".join(op.inputs[port] for port in ports)
        task = tape.task(
            f"load {names}", COMMUNICATION, step.cell(group, table.loading_s(position))
        )
        for port in ports:
            copied = step.cell(group, table.loaded_bytes(position, port))
            buffer = tape.buffer(f"{op.inputs[port]} loaded", task, copied)
            self._there[op.inputs[port], group] = (Copy(buffer, task),)

    def _seen(self, name: str, group: int) -> Copies:
        """Returns a tensor as the group sees it, brought there if another group made it."""
        crossing = self._step.crossings.get((name, group))
        if crossing is not None and (name, group) not in self._there:
            self._there[name, group] = self._cross(crossing)
        return self.there(name, group)

    def _cross(self, crossing: Crossing) -> Copies:
        tape, here = self._tape, self.there(crossing.tensor, crossing.source)
        label = f"move {crossing.tensor}"
        makers = [copy.maker for copy in here]
        task = tape.task(label, COMMUNICATION, crossing.cell("forward_s"), makers)
        for copy in here:
            tape.use(copy.buffer, task, copy.flag)
        buffer = tape.buffer(f"{crossing.tensor} moved", task, crossing.cell("target_bytes"))
        tape.buffer(f"within {label}", task, crossing.cell("target_staged"))
        moved, same = tape.flag(crossing.cell("moved")), tape.flag(crossing.cell("same"))
        stays = (Copy(c.buffer, task, tape.both(c.flag, same)) for c in here)
        return (Copy(buffer, task, moved), *stays)

    def _moved(self, group: int, position: int, port: int, copies: Copies, task: int) -> Copies:
        """Returns a tensor that the member reads in another layout than the group's."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        name = step.member(group, position).operator.inputs[port]
        maker = task if task != BEFORE else copies[0].maker
        size = step.cell(group, table.moved_bytes(position, port, FORWARD))
        buffer = tape.buffer(f"{name} moved", maker, size)
        moved = tape.flag(step.cell(group, table.moved(position, port, FORWARD)))
        same = tape.flag(step.cell(group, table.moved(position, port, FORWARD, negated=True)))
        stays = (Copy(c.buffer, task, tape.both(c.flag, same)) for c in copies)
        return (Copy(buffer, task, moved), *stays)
