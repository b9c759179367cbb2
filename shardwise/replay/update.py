"""The end of a step program: gradients summed over replicas, and the optimizer's update.

Gradients are reduced as soon as they are whole: in the last micro-batch, under ZeRO 2 and 3 in each
(`parameters.py`). `zero_grad` sets them to None, so they are freed after the update.
"""

from __future__ import annotations

from shardwise.cost.step_settings import FOREACH, FUSED, ONE_BY_ONE
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.replay.record import ALWAYS, Cell
from shardwise.replay.structure import Copy, StepStructure
from shardwise.replay.tape import BEFORE, COMMUNICATION, COMPUTE, FROM_HOST, HOST, TO_HOST


class Update:
    """Takes the parameter gradients of every micro-batch, then writes the update."""

    def __init__(self, step: StepStructure) -> None:
        self._step = step
        self._tape = step.tape
        self._owners = {
            name: (group.index, p)
            for group in step.groups
            for p, name in enumerate(step.problem.patterns[group.index].parameters)
        }
        # Gradients that live until the update, with the flag if that depends on the ZeRO stage, and
        # their group.
        self._lasting: list[tuple[int, int, int]] = []
        self._reduced: dict[str, int] = {}

    def reduce(self, name: str, gradient: Copy, *, first: bool, last: bool) -> int:
        """Writes the reduction of a parameter's gradient of one micro-batch; frees it if possible.

        Returns the task that scatters it under ZeRO 2 and 3 (and takes no time under others), or
        `BEFORE`.
        """
        step, tape = self._step, self._tape
        group, number = self._owners[name]
        table = step.table(group)
        whole, maker = gradient.buffer, gradient.maker
        tape.use(whole, maker)
        scatter, main = BEFORE, self._has_main(name)
        if first and not main:
            flag = ALWAYS
            if table.shards_gradients:
                flag = tape.flag(step.cell(group, table.stage(0, 1)))
            self._lasting.append((whole, flag, group))
        if table.shards_gradients:
            scatter = self._scatter(name, gradient, first)
        if last:
            seconds = table.parameter(number, "reduce_s")
            if table.shards_gradients:
                seconds = table.staged(seconds, 0, 1)
            reduce = step.cell(group, seconds)
            before = (maker, scatter, self._reduced.get(name, BEFORE))
            self._reduced[name] = tape.task(f"reduce {name}", COMMUNICATION, reduce, before)
        return scatter

    def _scatter(self, name: str, gradient: Copy, first: bool) -> int:
        """Writes a reduce_scatter, after which only a shard remains, and returns its task."""
        step, tape = self._step, self._tape
        group, number = self._owners[name]
        table = step.table(group)
        seconds = step.cell(group, table.staged(table.parameter(number, "reduce_s"), 2, 3))
        before = (gradient.maker, self._reduced.get(name, BEFORE))
        task = tape.task(f"scatter gradient of {name}", COMMUNICATION, seconds, before)
        tape.use(gradient.buffer, task, tape.flag(step.cell(group, table.stage(2, 3))))
        size = step.cell(group, table.staged(table.parameter(number, "gradient_bytes"), 2, 3))
        shard = tape.buffer(f"gradient of {name}, a shard", task, size)
        if first and not self._has_main(name):
            self._lasting.append((shard, ALWAYS, group))
        self._reduced[name] = task
        return task

    def _has_main(self, name: str) -> bool:
        """Returns whether the gradient is accumulated in a permanent buffer."""
        item = DTYPE_BYTES[self._step.graph.tensors[name].dtype]
        return self._step.settings.has_main_gradient(item)

    def write(self) -> None:
        """Writes the update of all parameters that got a gradient."""
        step, tape = self._step, self._tape
        owners = [(*self._owners[name], name) for name in self._owners if name in self._reduced]
        tape.phase()
        finished = [self._finish(*owner) for owner in owners]
        tape.phase()
        if step.settings.offloads_states:
            self._end(self._on_host(owners, finished))
            return
        opening = last = tape.task("optimizer", COMPUTE, 0.0, finished)
        temporaries = _Temporaries(step, opening)
        for group, number, name in owners:
            step.at_group(group)
            table = step.table(group)
            seconds = step.cell(group, table.parameter(number, "update_s"))
            last = tape.task(f"update {name}", COMPUTE, seconds, (opening,))
            item, settings = DTYPE_BYTES[step.graph.tensors[name].dtype], step.settings
            each = settings.moments_bytes(item)[0]
            size = step.cell(group, table.state_elements_bytes(number, each))
            mixed = settings.has_master(item) and not settings.has_main_gradient(item)
            temporaries.add(name, group, last, size, mixed=mixed)
            spread = step.cell(group, table.parameter(number, "spread_s"))
            tape.task(f"spread {name}", COMMUNICATION, spread, (last,))
        temporaries.close(last)
        self._end(last)

    def _end(self, last: int) -> None:
        """Holds the gradients that live until the update until its last task."""
        self._tape.phase()
        for buffer, flag, group in self._lasting:
            self._step.at_group(group)
            self._tape.use(buffer, last, flag)

    def _on_host(self, owners: list[tuple[int, int, str]], finished: list[int]) -> int:
        """Writes the update of states that the host has, and returns its last task.

        Gradients go down as soon as they are reduced, while backward goes on; the update begins
        when all are there, as optimizers do, and parameters go up while it updates the next. Copies
        each way and the host are resources of their own.
        """
        tape, step = self._tape, self._step
        for _ in (TO_HOST, HOST, FROM_HOST):
            tape.resource("rank")
        copied = []
        for (group, number, name), before in zip(owners, finished, strict=True):
            step.at_group(group)
            seconds = step.cell(group, step.table(group).parameter(number, "down_s"))
            copied.append(tape.task(f"gradient of {name} to host", TO_HOST, seconds, (before,)))
        tape.phase()
        opening = last = tape.task("optimizer", COMPUTE, 0.0, copied)
        for group, number, name in owners:
            step.at_group(group)
            table = step.table(group)
            seconds = step.cell(group, table.parameter(number, "update_s"))
            updated = tape.task(f"update {name}", HOST, seconds, (opening,))
            seconds = step.cell(group, table.parameter(number, "up_s"))
            last = tape.task(f"{name} from host", FROM_HOST, seconds, (updated,))
            spread = step.cell(group, table.parameter(number, "spread_s"))
            tape.task(f"spread {name}", COMMUNICATION, spread, (last,))
        return last

    def _finish(self, group: int, number: int, name: str) -> int:
        step, table = self._step, self._step.table(group)
        step.at_group(group)
        seconds = step.cell(group, table.parameter(number, "finish_s"))
        before = (self._reduced[name],)
        return self._tape.task(f"finish gradient of {name}", COMMUNICATION, seconds, before)


class _Temporaries:
    """The allocations of `torch.optim` during an update.

    Adam's denominator is the root of the second moments; with `for-loop`, root and denominator are
    two buffers, and the previous denominator is freed only when its variable is rebound; with
    `foreach` there is one root per parameter. With master weights the gradient is first converted
    to float32. SGD and momentum work in place, and so do fused kernels, which optimizers with
    low-precision states use.
    """

    def __init__(self, step: StepStructure, opening: int) -> None:
        self._step = step
        self._tape = step.tape
        self._how = FUSED if step.settings.fused else step.settings.update or FOREACH
        self._adam = step.problem.context.options.optimizer == "adam"
        self._opening = opening
        self._open: list[tuple[int, int]] = []  # with their groups
        self._before: list[int] = []

    def add(self, name: str, group: int, task: int, size: Cell, *, mixed: bool) -> None:
        """Writes the temporaries of one parameter; `mixed`: with a master weight."""
        tape = self._tape
        if self._how == FOREACH:
            for needed in (self._adam, mixed):
                if needed:
                    held = tape.buffer(f"temporary of {name}", self._opening, size)
                    self._open.append((held, group))
        elif self._how == ONE_BY_ONE:
            before, self._before = self._before, []
            for buffer in before:
                tape.use(buffer, task)
            if mixed:
                tape.buffer(f"gradient of {name} in float32", task, size)
            if self._adam:
                tape.buffer(f"root of {name}", task, size)
                self._before = [tape.buffer(f"denominator of {name}", task, size)]

    def close(self, last: int) -> None:
        """Holds the temporaries of `foreach` until the last parameter's update."""
        self._tape.phase()
        for buffer, group in self._open:
            self._step.at_group(group)
            self._tape.use(buffer, last)
