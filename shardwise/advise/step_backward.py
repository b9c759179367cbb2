"""The backward pass of a step program: the forward order reversed, as autograd runs it.

Every operator frees the gradients of its results and what it kept once it has run. Gradients of
one tensor add up in the buffer that came first, unless somebody else still needs that buffer
(torch/csrc/autograd/input_buffer.cpp); what a re-scheduling brings is added when it is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shardwise.advise.step_forward import Forward
from shardwise.advise.step_structure import Copies, Copy, Crossing, StepStructure
from shardwise.advise.tape import COMMUNICATION, COMPUTE


class Backward:
    """Writes the backward pass of one forward pass.

    `parameter[name]` lists the tasks that made parts of a parameter's gradient, with the buffers
    in which they lie.
    """

    def __init__(self, step: StepStructure, forward: Forward) -> None:
        self._step = step
        self._tape = step.tape
        self._forward = forward
        # The gradient of a tensor as a group sees it, by tensor and group.
        self._parts: dict[tuple[str, int], Copies] = {}
        self._holders: Counter[int] = Counter()
        self._rebuilt: dict[tuple[str, int, str], Copy] = {}
        self._to_come: Counter[tuple[str, int]] = Counter()
        self.parameter: dict[str, list[tuple[int, int]]] = {}

    def write(self) -> None:
        step = self._step
        for name, group in step.crossings:
            for member in step.problem.patterns[group].members:
                if step.backward_runs(member) and step.patterns.carries_gradient(name):
                    self._to_come[name, group] += member.operator.inputs.count(name)
        for op in reversed(step.graph.operators):
            place = step.place.get(op.name)
            if place is not None and step.backward_runs(step.member(*place)):
                self._member(*place)

    def _member(self, group: int, position: int) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        memory = step.footprints[op.name]
        arriving = [self._take(name, group) for name in op.outputs]
        kept = self._kept(group, position)
        after = {copy.made for copies in (*arriving, kept) for copy in copies}
        for task in self._communication(group, position, tuple(after)):
            after.add(task)
        seconds = step.cell(group, table.backward_s(position))
        task = tape.task(f"{op.name} backward", COMPUTE, seconds, after)
        for copies in (*arriving, kept):
            for copy in copies:
                tape.use(copy.buffer, task, copy.flag)
        if not any(arriving):
            # Here the step begins: the gradient of the result itself.
            tape.buffer(
                f"seed of {op.name}", task, step.cell(group, table.output_bytes(position, 0))
            )
        for size in memory.kept:
            kept_size = step.cell(group, table.size(position, size))
            buffer = tape.buffer(f"kept by {op.name}", self._forward.task[op.name], kept_size)
            tape.use(buffer, task)
        for size in memory.backward:
            inner = step.cell(group, table.size(position, size))
            tape.buffer(f"within {op.name} backward", task, inner)
        self._release(arriving)
        for port in range(len(op.inputs)):
            self._contribute(group, position, port, arriving[0] if arriving else (), task)

    def _communication(self, group: int, position: int, after: tuple[int, ...]) -> list[int]:
        """Statistics of gradients and exchanged rows, as long as in forward."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        member = step.member(group, position)
        tasks = []
        if member.semantics.statistics:
            seconds = step.cell(group, table.statistics(position))
            label = f"statistics of {member.operator.name} backward"
            tasks.append(tape.task(label, COMMUNICATION, seconds, after))
        for port, name in enumerate(member.operator.inputs):
            if table.has_halo(position, port) and step.patterns.carries_gradient(name):
                seconds = step.cell(group, table.halo(position, port))
                label = f"halo of {member.operator.name} backward"
                tasks.append(tape.task(label, COMMUNICATION, seconds, after))
        return tasks

    # What backward finds

    def _kept(self, group: int, position: int) -> Copies:
        step, forward = self._step, self._forward
        op = step.member(group, position).operator
        memory = step.footprints[op.name]
        saved: list[Copies] = []
        for port, keeps in enumerate(memory.saves_inputs):
            if keeps:
                saved.append(forward.read[op.name, port])
        for port, keeps in enumerate(memory.saves_outputs):
            if keeps:
                saved.append(forward.made(op.outputs[port], group))
        return tuple(k for copies in saved for copy in copies for k in self._kept_copy(copy))

    def _kept_copy(self, copy: Copy) -> Copies:
        """The copy itself, or what is rebuilt of it where its edge keeps the other."""
        tape = self._tape
        if copy.arrived is not None:
            crossing = copy.arrived
            stays = tape.flag(crossing.cell("keep_target"))
            rebuilt = self._rebuild(crossing, "target", self._forward.source(crossing))
        elif copy.leaves is not None:
            crossing = copy.leaves
            stays = tape.flag(crossing.cell("keep_source"))
            rebuilt = self._rebuild(crossing, "source", self._arrived(crossing))
        else:
            return (copy,)
        return (
            replace(copy, flag=tape.both(copy.flag, stays)),
            replace(rebuilt, flag=tape.both(copy.flag, rebuilt.flag)),
        )

    def _arrived(self, crossing: Crossing) -> Copies:
        copies = self._forward.made(crossing.tensor, crossing.target)
        return tuple(c for c in copies if c.arrived == crossing)

    def _rebuild(self, crossing: Crossing, side: str, of: Copies) -> Copy:
        """The other side's copy re-scheduled again, once for all that need it here."""
        tape = self._tape
        key = (crossing.tensor, crossing.target, side)
        if key not in self._rebuilt:
            flag = tape.flag(crossing.cell(f"rebuild_{side}"))
            seconds = crossing.cell(f"rebuild_{side}_s")
            label = f"move {crossing.tensor} again"
            task = tape.task(label, COMMUNICATION, seconds, [c.made for c in of])
            for copy in of:
                tape.use(copy.buffer, task, tape.both(copy.flag, flag))
            buffer = tape.buffer(
                f"{crossing.tensor} rebuilt", task, crossing.cell(f"rebuilt_{side}_bytes")
            )
            self._rebuilt[key] = Copy(buffer, task, flag)
        return self._rebuilt[key]

    # Gradients

    def _take(self, tensor: str, group: int) -> Copies:
        """A result's gradient, brought together from all that read it."""
        return self._parts.pop((tensor, group), ())

    def _release(self, arriving: list[Copies]) -> None:
        for copies in arriving:
            self._holders.subtract(copy.buffer for copy in copies)

    def _contribute(
        self, group: int, position: int, port: int, arriving: Copies, task: int
    ) -> None:
        """The gradient of one input, from the task that computed it to whoever waits for it."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        name = op.inputs[port]
        if not step.patterns.carries_gradient(name):
            return
        if step.graph.tensors[name].role == "parameter":
            size = step.cell(group, table.input_bytes(position, port))
            buffer = tape.buffer(f"gradient of {name}", task, size)
            self.parameter.setdefault(name, []).append((task, buffer))
            return
        if step.footprints[op.name].shares[port] and arriving:
            part = tuple(replace(copy, made=task) for copy in arriving)
        else:
            size = step.cell(group, table.input_bytes(position, port))
            part = (Copy(tape.buffer(f"gradient of {name}", task, size), task),)
        if table.moves(position, port):
            part = self._moved_back(group, position, port, part)
        self._add(name, group, part)
        if (name, group) in step.crossings:
            self._to_come[name, group] -= 1
            if not self._to_come[name, group]:
                self._cross_back(step.crossings[name, group])

    def _moved_back(self, group: int, position: int, port: int, part: Copies) -> Copies:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        seconds = step.cell(group, table.move_s(position, port, backward=True))
        label = f"move gradient of {op.inputs[port]} in {op.name}"
        task = tape.task(label, COMMUNICATION, seconds, [c.made for c in part])
        for copy in part:
            tape.use(copy.buffer, task, copy.flag)
        size = step.cell(group, table.moved_bytes(position, port, backward=True))
        buffer = tape.buffer(f"gradient of {op.inputs[port]} moved", task, size)
        moved = tape.flag(step.cell(group, table.moved(position, port, backward=True)))
        same = tape.flag(step.cell(group, table.same(position, port, backward=True)))
        stays = (replace(c, made=task, flag=tape.both(c.flag, same)) for c in part)
        return (Copy(buffer, task, moved), *stays)

    def _cross_back(self, crossing: Crossing) -> None:
        tape = self._tape
        parts = self._take(crossing.tensor, crossing.target)
        self._release([parts])
        label = f"move gradient of {crossing.tensor}"
        seconds = crossing.cell("backward_s")
        task = tape.task(label, COMMUNICATION, seconds, [c.made for c in parts])
        for copy in parts:
            tape.use(copy.buffer, task, copy.flag)
        buffer = tape.buffer(
            f"gradient of {crossing.tensor} moved", task, crossing.cell("source_bytes")
        )
        moved = tape.flag(crossing.cell("moved_back"))
        same = tape.flag(crossing.cell("same_back"))
        stays = (replace(c, made=task, flag=tape.both(c.flag, same)) for c in parts)
        self._add(crossing.tensor, crossing.source, (Copy(buffer, task, moved), *stays))

    def _add(self, tensor: str, group: int, part: Copies) -> None:
        """One more part of a gradient: added into the first one, where that may be written to."""
        tape = self._tape
        self._holders.update(copy.buffer for copy in part)
        first = self._parts.get((tensor, group))
        if not first:
            self._parts[tensor, group] = part
            return
        # Not a step of the compute stream: a part that is moved is added when it has come.
        made = [copy.made for copy in (*first, *part)]
        task = tape.task(f"add gradients of {tensor}", COMMUNICATION, 0.0, made)
        for copy in (*first, *part):
            tape.use(copy.buffer, task, copy.flag)
        self._holders.subtract(copy.buffer for copy in part)
        if all(self._holders[copy.buffer] == 1 for copy in first):
            self._parts[tensor, group] = tuple(replace(c, made=task) for c in first)
            return
        self._holders.subtract(copy.buffer for copy in first)
        size = tape.sizes[part[0].buffer]
        added = Copy(tape.buffer(f"gradient of {tensor} added", task, size), task)
        self._holders[added.buffer] += 1
        self._parts[tensor, group] = (added,)
