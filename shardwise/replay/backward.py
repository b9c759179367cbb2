"""The backward pass of a step program: the forward order reversed, as autograd runs it.

Every operator frees the gradients of its results and what it kept once it has run. Gradients of
one tensor add up in the buffer that came first, unless that buffer is still needed elsewhere
(torch/csrc/autograd/input_buffer.cpp).

A split pass runs gradients of inputs first, I, and then those of weights, W, operator by operator
in the same order (`graph/split_backward.py`). From its I to its W an operator keeps its saved input
and its output's gradient, into which nothing is added meanwhile; gathered weights are freed by I.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardwise.cost.backward_parts import waiting_ports
from shardwise.graph.split_backward import Ports
from shardwise.replay.columns import BACKWARD
from shardwise.replay.forward import Forward
from shardwise.replay.holders import Holders
from shardwise.replay.saved_for_backward import SavedForBackward
from shardwise.replay.structure import Copies, Copy, Crossing, StepStructure
from shardwise.replay.tape import BEFORE, COMMUNICATION, COMPUTE


class _Waiting(NamedTuple):
    """The part of a member left to W: the gradients of its results, what its backward reads, its
    task of I, and the positions of the weights."""

    group: int
    position: int
    arriving: list[Copies]
    saved: Copies
    inputs_task: int
    ports: tuple[int, ...]


class Backward:
    """Writes the backward pass of one forward pass.

    `reduce` gets the gradient of every parameter as soon as it is whole and returns the task that
    scatters it, if any. `first` and `last` are the pass's first and last task of computation,
    `task` each operator's, `weights_tasks` those of W where the pass is `split`.
    """

    def __init__(
        self,
        step: StepStructure,
        forward: Forward,
        reduce: Callable[[str, Copy], int],
        *,
        split: bool = False,
    ) -> None:
        self._step = step
        self._split = split
        self._waiting: list[_Waiting] = []
        self.weights_tasks = range(0)
        self._tape = step.tape
        self.first = self.last = BEFORE
        self.task: dict[str, int] = {}
        self._kept = SavedForBackward(step, forward)
        # The gradient of a tensor as a group sees it, by tensor and group.
        self._gradient: dict[tuple[str, int], Copies] = {}
        self._holders = Holders(step.tape)
        self._to_come: Counter[tuple[str, int]] = Counter()
        self._parameter: dict[str, Copy] = {}
        self._readers: Counter[str] = Counter()
        self._reduce = reduce
        # Tasks that scatter gradients, by group in the order in which the groups began.
        self._scatters: dict[int, list[int]] = {}
        self.last = 0

    def write(self) -> None:
        """Writes the whole pass."""
        step = self._step
        for name, group in step.crossings:
            for member in step.members(group):
                if step.backward_runs(member) and step.patterns.carries_gradient(name):
                    self._to_come[name, group] += member.operator.inputs.count(name)
        for written in step.groups:
            for member in written.members:
                if step.backward_runs(member):
                    self._readers.update(member.operator.inputs)
        self._tape.phase()
        for op in step.backward_operators:
            step.at(op.name)
            place = step.place.get(op.name)
            if place is not None and step.backward_runs(step.member(*place)):
                self._member(*place)
        if self._split:
            self._write_weights()
        self._kept.end()

    def _write_weights(self) -> None:
        """Writes W of all operators that have left it."""
        tape = self._step.tape
        start = len(tape.holds)
        # Groups start again: they wait for scatters of W.
        self._scatters.clear()
        tape.phase()
        for waiting in self._waiting:
            self._step.at_group(waiting.group)
            self._weights(waiting)
        self.weights_tasks = range(start, len(tape.holds))

    def _member(self, group: int, position: int) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        memory = step.footprints[op.name]
        saved = self._kept.saved(group, position)
        weights = self._kept.weights.for_backward(group, position)
        arriving = [self._take(name, group) for name in op.outputs]
        after = {copy.maker for copies in (*arriving, saved, weights) for copy in copies}
        ports = self._ports(group, position)
        if ports is None:
            after.update(self._limit(group))
        beside = after
        if table.communicates(position, BACKWARD):
            seconds = step.cell(group, table.communication_s(position, BACKWARD))
            after = {tape.task(f"exchange for {op.name} backward", COMMUNICATION, seconds, after)}
        first = BEFORE
        if table.goes_round(position):
            seconds = step.cell(group, table.beside_ring_s(position, BACKWARD))
            first = tape.task(f"first blocks of {op.name} backward", COMPUTE, seconds, beside)
            size = step.cell(group, table.ring_bytes(position, BACKWARD))
            going = tape.buffer(f"keys, values and gradients for {op.name}", first, size)
            seconds = step.cell(group, table.after_ring_s(position, BACKWARD))
            after = {*after, first}
        elif ports is None:
            seconds = step.cell(group, table.compute_s(position, BACKWARD))
        else:
            seconds = step.cell(group, table.part_s(position, weights=False))
        task = self.last = tape.task(f"{op.name} backward", COMPUTE, seconds, after)
        self.task[op.name] = task
        if first != BEFORE:
            tape.use(going, task)
        if self.first == BEFORE:
            self.first = task if first == BEFORE else first
        for copies in (*arriving, saved, weights):
            for copy in copies:
                tape.use(copy.buffer, task, copy.flag)
        if not any(arriving):
            # The pass begins here, with the gradient of the result itself.
            size = step.cell(group, table.output_bytes(position, 0))
            tape.buffer(f"seed of {op.name}", task, size)
        for inner in memory.backward:
            size = step.cell(group, table.size(position, inner))
            tape.buffer(f"within {op.name} backward", task, size)
        every = range(len(op.inputs))
        if ports is None:
            self._kept.inner(group, position, task)
            self._contribute(group, position, arriving, task, every)
            return
        now = [port for port in every if port not in ports.weights]
        self._contribute(group, position, arriving, task, now, frees=False)
        self._waiting.append(_Waiting(group, position, arriving, saved, task, ports.weights))

    def _ports(self, group: int, position: int) -> Ports | None:
        """Returns the ports of a member's gradients that are left to W."""
        if not self._split:
            return None
        return waiting_ports(self._step.member(group, position), self._step.patterns)

    def _weights(self, waiting: _Waiting) -> None:
        """Writes W of one operator."""
        step, tape = self._step, self._tape
        group, position, arriving, saved, inputs_task, ports = waiting
        op = step.member(group, position).operator
        after = {copy.maker for copies in (*arriving, saved) for copy in copies}
        after.update((inputs_task, *self._limit(group)))
        seconds = step.cell(group, step.table(group).part_s(position, weights=True))
        task = self.last = tape.task(f"{op.name} weights", COMPUTE, seconds, after)
        for copies in (*arriving, saved):
            for copy in copies:
                tape.use(copy.buffer, task, copy.flag)
        self._kept.inner(group, position, task)
        self._contribute(group, position, arriving, task, ports)

    def _limit(self, group: int) -> list[int]:
        """Returns the scatters that a starting group waits for: those of the last group but one.

        Otherwise whole gradients accumulate if scattering is slower than computing; FSDP allows two
        in flight (Zhao et al. 2023, §3.4).
        """
        if not self._step.table(group).shards_gradients or group in self._scatters:
            return []
        if not self._tape.keeps_order:
            return []
        begun = list(self._scatters.values())
        self._scatters[group] = []
        return begun[-2] if len(begun) > 1 else []

    def _take(self, tensor: str, group: int) -> Copies:
        """Returns a result's gradient, summed over all readers."""
        return self._gradient.pop((tensor, group), ())

    def _contribute(
        self,
        group: int,
        position: int,
        arriving: Sequence[Copies],
        task: int,
        ports: Sequence[int],
        *,
        frees: bool = True,
    ) -> None:
        """Passes gradients of some inputs from their task to their readers; `frees`: nothing else
        needs the gradients of the results."""
        step = self._step
        op = step.member(group, position).operator
        parts: list[tuple[int, str, Copies]] = []
        for port in ports:
            name = op.inputs[port]
            if step.patterns.carries_gradient(name):
                parts.append((port, name, self._part(group, position, port, arriving, task)))
        for _, _, part in parts:
            self._holders.hold(part)
        for copies in arriving if frees else ():
            self._holders.drop(copies)
        for port, name, part in parts:
            if step.graph.tensors[name].role == "parameter":
                self._readers[name] -= 1
                if not self._readers[name]:
                    scatter = self._reduce(name, self._parameter[name])
                    self._scatters.setdefault(group, []).append(scatter)
                continue
            if step.table(group).moves(position, port):
                part = self._moved_back(group, position, port, part)
            self._add(name, group, part)
            if (name, group) in step.crossings:
                self._to_come[name, group] -= 1
                if not self._to_come[name, group]:
                    self._cross_back(step.crossings[name, group])

    def _part(
        self, group: int, position: int, port: int, arriving: Sequence[Copies], task: int
    ) -> Copies:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        name = op.inputs[port]
        memory = step.footprints[op.name]
        parameter = step.graph.tensors[name].role == "parameter"
        if memory.shares[port] and not parameter and arriving and arriving[0]:
            if memory.views[port]:
                self._holders.view(arriving[0])
            return tuple(Copy(copy.buffer, task, copy.flag) for copy in arriving[0])
        if memory.in_place and port == 0:
            there = self._kept.input(group, position, port)
            return tuple(Copy(copy.buffer, task, copy.flag) for copy in there)
        size = step.cell(group, table.input_bytes(position, port))
        part = Copy(tape.buffer(f"gradient of {name}", task, size), task)
        if memory.views[port]:
            self._holders.view((part,))
        if parameter:
            self._add_parameter(name, part)
        return (part,)

    def _add_parameter(self, name: str, part: Copy) -> None:
        """Adds one part of a parameter's gradient (tied weights, steps of a recurrence)."""
        tape = self._tape
        first = self._parameter.get(name)
        if first is None:
            self._parameter[name] = part
            return
        task = tape.task(f"add gradients of {name}", COMMUNICATION, 0.0, (first.maker, part.maker))
        for copy in (first, part):
            tape.use(copy.buffer, task)
        if not self._holders.are_viewed((first,)):
            self._parameter[name] = first._replace(maker=task)
            return
        added = tape.buffer(f"gradient of {name} added", task, tape.sizes[part.buffer])
        self._parameter[name] = Copy(added, task)

    def _moved_back(self, group: int, position: int, port: int, part: Copies) -> Copies:
        """Returns a member's gradient, moved to the tensor's layout in the group."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        task = part[0].maker
        size = step.cell(group, table.moved_bytes(position, port, BACKWARD))
        buffer = tape.buffer(f"gradient of {op.inputs[port]} moved", task, size)
        moved = tape.flag(step.cell(group, table.moved(position, port, BACKWARD)))
        same = tape.flag(step.cell(group, table.moved(position, port, BACKWARD, negated=True)))
        new = Copy(buffer, task, moved)
        self._holders.hold((new,))
        before = self._holders.few(part)
        return (new, *(Copy(c.buffer, c.maker, tape.both(c.flag, same)) for c in before))

    def _cross_back(self, crossing: Crossing) -> None:
        tape = self._tape
        parts = self._take(crossing.tensor, crossing.target)
        seconds = crossing.cell("backward_s")
        label = f"move gradient of {crossing.tensor}"
        task = tape.task(label, COMMUNICATION, seconds, [c.maker for c in parts])
        for copy in parts:
            tape.use(copy.buffer, task, copy.flag)
        size = crossing.cell("gradient_bytes")
        buffer = tape.buffer(f"gradient of {crossing.tensor} moved", task, size)
        tape.buffer(f"within {label}", task, crossing.cell("gradient_staged"))
        moved = tape.flag(crossing.cell("moved_back"))
        same = tape.flag(crossing.cell("same_back"))
        new = Copy(buffer, task, moved)
        self._holders.hold((new,))
        stays = (Copy(c.buffer, task, tape.both(c.flag, same)) for c in self._holders.few(parts))
        self._add(crossing.tensor, crossing.source, (new, *stays))

    def _add(self, tensor: str, group: int, part: Copies) -> None:
        """Adds one part of a gradient, in place into the first part if allowed."""
        tape = self._tape
        first = self._gradient.get((tensor, group))
        if not first:
            self._gradient[tensor, group] = part
            return
        # Not in the order of the compute stream: a part that is moved is added when it has arrived.
        makers = [copy.maker for copy in (*first, *part)]
        task = tape.task(f"add gradients of {tensor}", COMMUNICATION, 0.0, makers)
        for copy in (*first, *part):
            tape.use(copy.buffer, task, copy.flag)
        self._holders.drop(part)
        if self._holders.is_alone(first) and not self._holders.are_viewed(first):
            self._gradient[tensor, group] = tuple(Copy(c.buffer, task, c.flag) for c in first)
            return
        self._holders.drop(first)
        # The size is the same in every buffer in which the part may be.
        size = self._holders.size(part)
        added = Copy(tape.buffer(f"gradient of {tensor} added", task, size), task)
        self._holders.hold((added,))
        self._gradient[tensor, group] = (added,)
