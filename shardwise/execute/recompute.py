"""Recomputation: a segment's groups run forward once more before their backward.

Chen et al. 2016. In the first run each tensor that autograd would save for a recomputed operator is
replaced by a numbered stand-in; only what enters the segment's recomputed operators is kept. The
first stand-in that backward asks for starts the second run, which supplies what the first left out
and ends with the last of it, as torch's checkpoint does (early stop).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardwise.errors import InternalError
from shardwise.execute.instruction import Instruction, Rebuild, Slots
from shardwise.execute.saved import SavedTensors


class _Storages:
    """The storages of some tensors; weak references keep their addresses from being reused."""

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}

    def add(self, tensor: torch.Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._references[reference.cdata] = reference

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._references


class _Complete(Exception):
    """The second run has made the last tensor that the first run left out."""


class Numbered:
    """Stands for a tensor that an instruction saves; holds it from the second run on.

    Autograd releases it when the instruction's backward is over, and the tensor with it.
    """

    def __init__(self, run: Recomputation) -> None:
        self._run = run
        self.value: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """Returns the tensor that the second run made."""
        self._run.prepare()
        if self.value is None:
            raise InternalError("a second run did not make a tensor that backward reads")
        return self.value


class Recomputation:
    """The second run of one segment of one forward pass."""

    def __init__(
        self,
        saved: SavedTensors,
        instructions: Sequence[Instruction],
        recomputing: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._hooks = saved
        self._recomputing = recomputing
        self._instructions = instructions
        self._entering: dict[int, tuple[Any, bool]] = {}
        self._storages = _Storages()
        self._computed: set[int] = set()
        self._counts: dict[int, int] = {}
        self._stand_ins: WeakValueDictionary[tuple[int, int], Numbered] = WeakValueDictionary()
        self._over = False
        self._now: int | None = None
        self._forward_pass = saved.forward_pass
        self.number = saved.forward_pass.add(self)

    # First run

    def enter(self, number: int, slots: Slots) -> None:
        """Keeps what an instruction reads from outside the segment's recomputed part."""
        instruction = self._instructions[number]
        for slot in instruction.inputs:
            tensor = slots[slot]
            if slot in self._computed or slot in self._entering or tensor is None:
                continue
            self._storages.add(tensor)
            kept = self._hooks.keep(tensor)
            self._hooks.need(kept, self.number)
            self._entering[slot] = (kept, tensor.requires_grad)
        self._computed.update(instruction.outputs)
        self._now = number
        self._counts[number] = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        """Returns what the first run keeps of a tensor that the current instruction saves."""
        if tensor in self._storages:
            return tensor
        if self._now is None:
            raise InternalError("a tensor is saved before the segment's first instruction")
        place = self._counts[self._now]
        self._counts[self._now] = place + 1
        self._hooks.forward_pass.wanted.add((self.number, self._now))
        stand_in = self._stand_ins[self._now, place] = Numbered(self)
        return stand_in

    # Second run

    def prepare(self) -> None:
        """Does the second run unless it is done."""
        if not self._over:
            self._over = True
            self._run()

    def _run(self) -> None:
        last = {s: n for n in self._counts for s in self._instructions[n].inputs}
        slots: dict[int, torch.Tensor] = {}
        storages = _Storages()
        with self._recomputing(), torch.enable_grad():
            for number in self._until_last():
                instruction = self._instructions[number]
                for slot in instruction.inputs:
                    if slot in self._entering:
                        slots[slot] = self._entered(slot, storages)
                self._one(number, slots, storages)
                for slot in (*instruction.inputs, *instruction.outputs):
                    if last.get(slot, number) == number:
                        slots.pop(slot, None)
        self._entering.clear()

    def _until_last(self) -> Iterator[int]:
        """Yields the instructions up to the last that saved something on any rank.

        If that one only saves what it reads, and nothing of it here, this rank leaves it out.
        """
        last = self._forward_pass.last.get(self.number, -1)
        for number, count in self._counts.items():
            saves = count > 0 or not self._instructions[number].saves_first
            if number < last or (number == last and saves):
                yield number

    def _is_complete(self, number: int, place: int) -> bool:
        """Returns whether nothing is wanted after what an instruction saves at a place."""
        return (
            self._instructions[number].saves_first
            and number == self._forward_pass.last.get(self.number)
            and place + 1 == self._counts[number]
        )

    def _entered(self, slot: int, storages: _Storages) -> torch.Tensor:
        kept, differentiable = self._entering.pop(slot)
        tensor = self._hooks.unpack(kept).detach()
        storages.add(tensor)
        return tensor.requires_grad_(differentiable)

    def _one(self, number: int, slots: dict[int, torch.Tensor], storages: _Storages) -> None:
        instruction = self._instructions[number]
        inputs = [slots[s] for s in instruction.inputs]
        for port in instruction.written:
            # Running statistics count a batch only once.
            inputs[port] = inputs[port].clone()
            storages.add(inputs[port])
        place = 0

        def pack(tensor: torch.Tensor) -> None:
            nonlocal place
            if tensor not in storages:
                stand_in = self._stand_ins.get((number, place))
                if stand_in is not None:
                    stand_in.value = tensor.detach()
                if self._is_complete(number, place):
                    raise _Complete
                place += 1

        def unpack(_: None) -> torch.Tensor:
            raise InternalError("a second run is differentiated")

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                results = instruction.run(*inputs)
        except _Complete:
            return
        for slot, tensor in zip(instruction.outputs, results, strict=True):
            # Its graph would keep what the instruction has read.
            slots[slot] = tensor.detach().requires_grad_(tensor.requires_grad)


class Recomputations:
    """All the second runs of one forward pass, by segment."""

    def __init__(
        self,
        saved: SavedTensors,
        instructions: Sequence[Instruction],
        recomputing: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._saved = saved
        self._instructions = instructions
        self._number = {id(i): n for n, i in enumerate(instructions)}
        self._recomputing = recomputing
        self._of: dict[int, Recomputation] = {}

    @contextlib.contextmanager
    def of(self, instruction: Instruction, slots: Slots) -> Iterator[None]:
        """Leaves what the instruction saves to its segment's recomputation within this context."""
        if instruction.segment is None:
            yield
            return
        run = self._of.get(instruction.segment)
        if run is None:
            run = Recomputation(self._saved, self._instructions, self._recomputing)
            self._of[instruction.segment] = run
        run.enter(self._number[id(instruction)], slots)
        self._saved.other = run.pack
        try:
            yield
        finally:
            self._saved.other = None

    def rebuild(self, rebuild: Rebuild, slots: Slots) -> None:
        """Arranges for backward to rebuild one copy of a crossing tensor from the other."""
        move, unpack = rebuild.move, self._saved.unpack
        kept = self._saved.keep(slots[rebuild.kept].detach())
        chosen = [slots[slot] for slot in rebuild.chosen]
        number = self._saved.register(slots[rebuild.dropped], lambda: move(unpack(kept), *chosen))
        self._saved.need(kept, number)
