"""Recomputation: a segment's groups run forward once more before their backward.

Chen et al. 2016. In the first run what autograd would save of a recomputed operator is replaced by
its number; kept is only what enters the segment's recomputed operators. The first of those numbers
that backward asks for starts the second run, which leaves what the first did not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardwise.execute.instruction import Instruction, Rebuild, Slots
from shardwise.execute.saved import SavedTensors


class _Storages:
    """The storages of some tensors; weak references keep their addresses from being used again."""

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}

    def add(self, tensor: torch.Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._references[reference.cdata] = reference

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._references


@dataclass(frozen=True, slots=True)
class Numbered:
    """The `place`-th tensor that an instruction saves, to be had from the second run."""

    run: SecondRun
    instruction: int
    place: int

    def tensor(self) -> torch.Tensor:
        """The tensor as the second run left it."""
        return self.run.saved(self.instruction, self.place)


class SecondRun:
    """The second run of one segment of one forward pass."""

    def __init__(
        self,
        saved: SavedTensors,
        instructions: Sequence[Instruction],
        again: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._hooks = saved
        self._again = again
        self._instructions = instructions
        self._entering: dict[int, tuple[Any, bool]] = {}
        self._storages = _Storages()
        self._made: set[int] = set()
        self._counts: dict[int, int] = {}
        self._saved: dict[tuple[int, int], torch.Tensor] | None = None
        self._wanted: dict[int, torch.Tensor | None] = {}
        self._now: int | None = None
        self.number = saved.forward_pass.add(self)

    # First run

    def enter(self, number: int, slots: Slots) -> None:
        """Keep what an instruction reads from outside the segment's recomputed part."""
        instruction = self._instructions[number]
        for slot in instruction.inputs:
            tensor = slots[slot]
            if slot in self._made or slot in self._entering or tensor is None:
                continue
            self._storages.add(tensor)
            kept = self._hooks.keep(tensor)
            self._hooks.need(kept, self.number)
            self._entering[slot] = (kept, tensor.requires_grad)
        self._made.update(instruction.outputs)
        self._now = number
        self._counts[number] = 0

    def makes(self, slot: int) -> bool:
        """Whether a slot is made by the recomputed part."""
        return slot in self._made

    def want(self, slot: int) -> None:
        """The second run keeps this slot's tensor until it is fetched."""
        self._wanted[slot] = None

    def pack(self, tensor: torch.Tensor) -> Any:
        """What the first run keeps of a tensor that the present instruction saves."""
        if tensor in self._storages:
            return tensor
        assert self._now is not None
        place = self._counts[self._now]
        self._counts[self._now] = place + 1
        self._hooks.forward_pass.wanted.add((self.number, self._now))
        return Numbered(self, self._now, place)

    # Second run

    def prepare(self) -> None:
        """The second run, unless it is over."""
        if self._saved is None:
            self._run()

    def saved(self, number: int, place: int) -> torch.Tensor:
        """A tensor that an instruction saved in the second run."""
        self.prepare()
        assert self._saved is not None
        return self._saved[number, place]

    def fetch(self, slot: int) -> torch.Tensor:
        """A tensor that the second run made, wanted by a crossing."""
        self.prepare()
        found = self._wanted[slot]
        assert found is not None
        return found

    def _run(self) -> None:
        self._saved = {}
        slots: dict[int, torch.Tensor] = {}
        storages = _Storages()
        for slot, (kept, differentiable) in self._entering.items():
            tensor = self._hooks.unpack(kept).detach()
            storages.add(tensor)
            slots[slot] = tensor.requires_grad_(differentiable)
        last = {s: n for n in self._counts for s in self._instructions[n].inputs}
        with self._again(), torch.enable_grad():
            for number in self._counts:
                self._one(number, slots, storages)
                for slot in self._instructions[number].inputs:
                    if last[slot] == number and slot not in self._wanted:
                        slots.pop(slot, None)

    def _one(self, number: int, slots: dict[int, torch.Tensor], storages: _Storages) -> None:
        instruction = self._instructions[number]
        inputs = [slots[s] for s in instruction.inputs]
        for port in instruction.written:
            # Running statistics count a batch once.
            inputs[port] = inputs[port].clone()
            storages.add(inputs[port])
        kept = self._saved
        assert kept is not None
        place = 0

        def pack(tensor: torch.Tensor) -> None:
            nonlocal place
            if tensor not in storages:
                kept[number, place] = tensor.detach()
                place += 1

        def unpack(_: None) -> torch.Tensor:
            raise AssertionError("nobody differentiates the second run")

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            made = instruction.run(*inputs)
        for slot, tensor in zip(instruction.outputs, made, strict=True):
            slots[slot] = tensor
            if slot in self._wanted:
                self._wanted[slot] = tensor.detach()


class SecondRuns:
    """All the second runs of one forward pass, by segment."""

    def __init__(
        self,
        saved: SavedTensors,
        instructions: Sequence[Instruction],
        again: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._saved = saved
        self._instructions = instructions
        self._number = {id(i): n for n, i in enumerate(instructions)}
        self._again = again
        self._of: dict[int, SecondRun] = {}

    @contextlib.contextmanager
    def of(self, instruction: Instruction, slots: Slots) -> Iterator[None]:
        """Within this context the instruction's saved tensors are those of its segment's run."""
        if instruction.segment is None:
            yield
            return
        run = self._of.get(instruction.segment)
        if run is None:
            run = SecondRun(self._saved, self._instructions, self._again)
            self._of[instruction.segment] = run
        run.enter(self._number[id(instruction)], slots)
        self._saved.other = run.pack
        try:
            yield
        finally:
            self._saved.other = None

    def rebuild(self, rebuild: Rebuild, slots: Slots) -> None:
        """One copy of a crossing tensor is made again from the other one in backward."""
        again, slot = rebuild.again, rebuild.kept
        run = next((r for r in self._of.values() if r.makes(slot)), None)
        if run is not None:
            run.want(slot)
            source = run.fetch
            number = self._saved.register(slots[rebuild.dropped], lambda: again(source(slot)))
            self._saved.forward_pass.needed.add((run.number, number))
            return
        kept = self._saved.keep(slots[slot].detach())
        unpack = self._saved.unpack
        number = self._saved.register(slots[rebuild.dropped], lambda: again(unpack(kept)))
        self._saved.need(kept, number)
