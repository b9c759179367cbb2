"""What backward reads from forward: kept, moved again, or recomputed.

A tensor that crossed groups may be kept on either side (TensorOpt §4.2, tensor reuse); the other
side's copy is then rebuilt by re-scheduling. A group that recomputes keeps only its inputs; before
the backward of its segment, the segment's recomputing groups run forward once more (Chen et al.
2016), and backward reads the results of that run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shardwise.replay.columns import FORWARD
from shardwise.replay.forward import Forward
from shardwise.replay.record import ALWAYS
from shardwise.replay.structure import Copies, Copy, Crossing, StepStructure, Weights
from shardwise.replay.tape import COMMUNICATION, COMPUTE


class SavedForBackward:
    """The saved tensors of one forward pass. Tasks that recompute or move are written on demand."""

    def __init__(self, step: StepStructure, forward: Forward) -> None:
        self._step = step
        self._tape = step.tape
        self._forward = forward
        self.weights = Weights(step)
        self._recomputed: dict[tuple[str, int], Copies] = {}
        self._recompute_inputs: dict[tuple[str, int], Copies] = {}
        self._recompute_task: dict[str, int] = {}
        self._later: dict[tuple[str, int], Copies] = {}
        # Tensors from other groups as the recomputation reads them.
        self._arrived_again: dict[tuple[str, int], Copies] = {}
        self._moved: dict[tuple[str, str, int], Copy] = {}
        # Per move of a copy in backward, the buffers that exist only if the copy is used.
        self._move_buffers: list[tuple[int, int]] = []
        self._segments_run: set[int] = set()
        self._segment_members: dict[int, list[tuple[int, int]]] = {}
        for op in step.operators:
            place = step.place.get(op.name)
            if place is None or not step.table(place[0]).may_recompute:
                continue
            if step.rerun.takes_part(step.member(*place)):
                self._segment_members.setdefault(step.segment(place[0]), []).append(place)

    def saved(self, group: int, position: int) -> Copies:
        """Returns inputs and outputs that the member's backward needs, after any recomputation."""
        self._recompute_segment(self._step.segment(group))
        member = self._step.member(group, position)
        op = member.operator
        memory = self._step.footprints[op.name]
        needed: list[Copy] = []
        # Tensors described as kept are moved again if the edge says so, needed or not: this is what
        # was priced.
        described, described_outputs = self._step.described(member)
        for port, keeps in enumerate(memory.saves_inputs):
            if keeps or described[port]:
                copies = self.input(group, position, port)
                copies = self._flagged(copies, self._as_it_is(group, position, port))
                if keeps:
                    needed += copies
        for port, keeps in enumerate(memory.saves_outputs):
            if keeps or described_outputs[port]:
                copies = self._tensor(op.outputs[port], group)
                if keeps:
                    needed += copies
        return tuple(dict.fromkeys(needed))

    def end(self) -> None:
        """Ends the pass: moves that were priced but whose copy is unused hold no memory."""
        used = self._tape.used()
        for moved, staged in self._move_buffers:
            if moved not in used:
                self._tape.sizes[moved] = self._tape.sizes[staged] = 0.0

    def inner(self, group: int, position: int, task: int) -> None:
        """Writes what the member keeps besides tensors of the graph, until its backward `task`."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        sizes: list[Callable[..., int]] = [
            partial(table.size, position, s) for s in step.footprints[op.name].kept
        ]
        windows = [port for member, port in table.work.kept_windows if member == position]
        sizes += [partial(table.window_bytes, position, port) for port in windows]
        for size in sizes:
            cell = step.cell(group, size())
            buffer = tape.buffer(f"kept by {op.name}", self._forward.task[op.name], cell)
            again = step.rerun.computes(step.member(group, position))
            tape.use(buffer, task, self._first_run(group, again=again))
            if op.name in self._recompute_task:
                cell = step.cell(group, size(recompute=True))
                rerun = self._recompute_task[op.name]
                tape.use(tape.buffer(f"kept by {op.name}", rerun, cell), task)

    def _as_it_is(self, group: int, position: int, port: int) -> int:
        """Flag: what a member keeps of an input is the input itself, not a window of it."""
        step, table = self._step, self._step.table(group)
        if (position, port) not in table.work.kept_windows:
            return ALWAYS
        return self._tape.flag(step.cell(group, table.as_it_is(position, port)))

    def _recomputes(self, group: int) -> int:
        table = self._step.table(group)
        return self._tape.flag(self._step.cell(group, table.recomputes()))

    def _first_run(self, group: int, *, again: bool) -> int:
        """Flag: backward reads the first run of a member; `again` says whether it runs again if its
        group does."""
        table = self._step.table(group)
        if not table.may_recompute or not again:
            return ALWAYS
        return self._tape.flag(self._step.cell(group, table.recomputes(negated=True)))

    # Tensors as backward sees them

    def _tensor(self, name: str, group: int) -> Copies:
        key = (name, group)
        if key not in self._later:
            crossing = self._step.crossings.get(key)
            producer = self._step.graph.producer.get(name)
            if crossing is not None:
                self._later[key] = self._arrived(crossing)
            elif producer is not None and producer.name in self._step.place:
                self._later[key] = self._produced(name, group)
            else:
                self._later[key] = self._forward.there(name, group)
        return self._later[key]

    def _produced(self, name: str, group: int) -> Copies:
        producer = self._step.graph.producer[name]
        if self._step.footprints[producer.name].alias:
            return self.input(group, self._step.place[producer.name][1], 0)
        member = self._step.member(*self._step.place[producer.name])
        again = self._step.rerun.computes(member)
        there = self._forward.there(name, group)
        first = self._flagged(there, self._first_run(group, again=again))
        leaving = self._step.leaving.get((name, group))
        if leaving is not None:
            tape = self._tape
            stays = self._flagged(first, tape.flag(leaving.cell("keep_source")))
            there = self._forward.there(name, leaving.target)[:1]
            first = (*stays, self._move(leaving, "after", there))
        return (*first, *self._recomputed.get((name, group), ()))

    def _arrived(self, crossing: Crossing) -> Copies:
        """Returns a tensor from another group, as backward reads it.

        If the group runs forward again, that run has already moved it.
        """
        here = self._forward.there(crossing.tensor, crossing.source)
        moved = self._move(crossing, "before", here)
        again = self._arrived_again.get((crossing.tensor, crossing.target))
        return (*self._kept(crossing), moved, *(again or ()))

    def _kept(self, crossing: Crossing) -> Copies:
        tape, name = self._tape, crossing.tensor
        copy = self._forward.there(name, crossing.target)[:1]
        here = self._forward.there(name, crossing.source)
        return (
            *self._flagged(copy, tape.flag(crossing.cell("keep_target"))),
            *self._flagged(here, tape.flag(crossing.cell("keep_same"))),
        )

    def _moved_again(self, crossing: Crossing) -> Copies:
        """Returns the copies of a tensor from another group that exist only if this group runs
        forward again: moved for it, or recomputed by the other group."""
        key = (crossing.tensor, crossing.target)
        if key not in self._arrived_again:
            tape, name = self._tape, crossing.tensor
            here = self._forward.there(name, crossing.source)
            copies = [self._move(crossing, "before_again", here)]
            rerun = self._recomputed_at(name, crossing.source)
            if rerun:
                copies += self._flagged(rerun, tape.flag(crossing.cell("rerun_same")))
                copies.append(self._move(crossing, "rerun_moved", rerun))
            self._arrived_again[key] = tuple(copies)
        return self._arrived_again[key]

    def _recomputed_at(self, name: str, group: int) -> Copies:
        """Returns a tensor as a group's recomputation left it."""
        producer = self._step.graph.producer[name]
        if producer.name not in self._recompute_task:
            return ()
        if self._step.footprints[producer.name].alias:
            return self._recompute_inputs[producer.name, 0]
        return self._recomputed[name, group]

    def input(self, group: int, position: int, port: int) -> Copies:
        """Returns an input in the layout in which the member read it."""
        step, tape, table = self._step, self._tape, self._step.table(group)
        member = step.member(group, position)
        op, again = member.operator, step.rerun.takes_part(member)
        copies = self._tensor(op.inputs[port], group)
        if not copies or not table.moves(position, port):
            return copies
        same = tape.flag(step.cell(group, table.moved(position, port, FORWARD, negated=True)))
        read = self._forward.read[op.name, port][:1]
        first = self._flagged(read, self._first_run(group, again=again))
        rerun = self._recompute_inputs.get((op.name, port), ())[:1]
        return (*first, *rerun, *self._flagged(copies, same))

    def _flagged(self, copies: Copies, flag: int) -> Copies:
        return tuple(Copy(c.buffer, c.maker, self._tape.both(c.flag, flag)) for c in copies)

    def _move(self, crossing: Crossing, which: str, of: Copies) -> Copy:
        """Returns a copy moved again in backward. It is moved once for all its readers."""
        tape = self._tape
        key = (which, crossing.tensor, crossing.target)
        if key not in self._moved:
            flag = tape.flag(crossing.cell(which))
            label = f"move {crossing.tensor} again"
            # Only when backward is about to need it.
            after = [*(c.maker for c in of), tape.last_compute()]
            task = tape.task(label, COMMUNICATION, crossing.cell(f"{which}_s"), after)
            for copy in of:
                tape.use(copy.buffer, task, tape.both(copy.flag, flag))
            staged = tape.buffer(f"within {label}", task, crossing.cell(f"{which}_staged"))
            size = crossing.cell(f"{which}_bytes")
            moved = tape.buffer(f"{crossing.tensor} again", task, size)
            self._move_buffers.append((moved, staged))
            self._moved[key] = Copy(moved, task, flag)
        return self._moved[key]

    # Recomputation

    def _recompute_segment(self, segment: int) -> None:
        if segment in self._segments_run:
            return
        self._segments_run.add(segment)
        for group, position in self._segment_members.get(segment, ()):
            self._recompute_member(group, position)

    def _recompute_member(self, group: int, position: int) -> None:
        step, tape, table = self._step, self._tape, self._step.table(group)
        op = step.member(group, position).operator
        memory, flag = step.footprints[op.name], self._recomputes(group)
        inputs = [self._flagged(self._entering(name, group), flag) for name in op.inputs]
        weights = self.weights.for_recomputation(group, position)
        after = {copy.maker for copies in (*inputs, weights) for copy in copies}
        if table.communicates(position, FORWARD):
            seconds = step.cell(group, table.communication_s(position, FORWARD, recompute=True))
            exchange = tape.task(f"exchange for {op.name} again", COMMUNICATION, seconds, after)
            staged = step.cell(group, table.staged_bytes(position, recompute=True))
            tape.buffer(f"within {op.name} again", exchange, staged)
            after = {exchange}
        runs = step.rerun.computes(step.member(group, position))
        compute_s = step.cell(group, table.compute_s(position, FORWARD, recompute=True))
        # An operator that only reads ends the run at its inputs.
        task = tape.task(f"{op.name} again", COMPUTE, compute_s if runs else 0.0, after)
        if runs:
            self._recompute_task[op.name] = task
        for port, copies in enumerate(inputs):
            if copies and table.moves(position, port):
                copies = self._move_recomputed(group, position, port, copies, task)
            self._recompute_inputs[op.name, port] = copies
        for copies in (*inputs, weights):
            for copy in copies:
                tape.use(copy.buffer, task, copy.flag)
        if not runs:
            return
        self._recompute_outputs(
            group, position, task, lambda port: table.output_bytes(position, port, recompute=True)
        )
        for size in memory.forward:
            cell = step.cell(group, table.size(position, size, recompute=True))
            tape.buffer(f"within {op.name} again", task, cell)

    def _recompute_outputs(
        self, group: int, position: int, task: int, size: Callable[[int], int]
    ) -> None:
        step, tape = self._step, self._tape
        op = step.member(group, position).operator
        if step.footprints[op.name].alias:
            return
        flag = self._recomputes(group)
        for port, name in enumerate(op.outputs):
            buffer = tape.buffer(f"{name} again", task, step.cell(group, size(port)))
            self._recomputed[name, group] = (Copy(buffer, task, flag),)

    def _entering(self, name: str, group: int) -> Copies:
        """Returns an input of the recomputation: recomputed before, or as backward sees it."""
        crossing = self._step.crossings.get((name, group))
        if crossing is not None:
            return (*self._kept(crossing), *self._moved_again(crossing))
        producer = self._step.graph.producer.get(name)
        if producer is not None and producer.name in self._recompute_task:
            return self._recomputed_at(name, group)
        return self._tensor(name, group)

    def _move_recomputed(
        self, group: int, position: int, port: int, copies: Copies, task: int
    ) -> Copies:
        step, tape, table = self._step, self._tape, self._step.table(group)
        name = step.member(group, position).operator.inputs[port]
        size = step.cell(group, table.moved_bytes(position, port, FORWARD, recompute=True))
        buffer = tape.buffer(f"{name} moved again", task, size)
        moved = tape.flag(step.cell(group, table.moved(position, port, FORWARD)))
        same = tape.flag(step.cell(group, table.moved(position, port, FORWARD, negated=True)))
        flag = tape.both(moved, self._recomputes(group))
        return (Copy(buffer, task, flag), *self._flagged(copies, same))
