"""The program of one rank: instructions on local parts, run in the order of the graph.

This is plain torch: autograd records the local operators, and crossings bring their own backward.
Where the strategy keeps less than autograd would (tensor reuse, recomputation, ZeRO 3),
saved-tensor hooks are on during forward (`saved.py`, `recompute.py`); otherwise there are none, and
torch.compile can have the operators between collectives (`regions.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from shardwise.execute.agreement import Agreement
from shardwise.execute.builder import Built, part_of
from shardwise.execute.instruction import Instruction, Slots
from shardwise.execute.loading import Argument
from shardwise.execute.order import BackwardOrder
from shardwise.execute.ordered_backward import Joined, OrderedPass
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.execute.recompute import Recomputations
from shardwise.execute.saved import SavedTensors
from shardwise.sharding.operator_layouts import LayoutPair

Use = Callable[[], torch.Tensor]
"""Returns a parameter's local part, gathering it if necessary."""

FirstUses = Mapping[int, Sequence[tuple[int, Use]]]
"""By instruction, the parameters that it is the first to read: slots and how to fill them."""

Simple = tuple[
    Callable[..., Sequence[Any]],
    tuple[int, ...],
    tuple[int, ...],
    tuple[int, ...],
    Sequence[tuple[int, Use]],
]
"""What running an instruction takes: run, inputs, outputs, dead, the parameters read first."""

Watch = Callable[[Instruction, Slots], None]
"""Called after every instruction; used to find where two runs diverge."""


class Program:
    """Runs what `Builder` built. `step` sets the step number that seeds random operators.

    `compiled` is the same program with regions in it, if it is to be compiled (`regions.py`).
    `backward` is the order of backward, where that is not forward reversed, and `joined` then makes
    its stretches one pass. The ranks of `mesh`, by default all, run it together.
    """

    def __init__(
        self,
        built: Built,
        user: Callable[[str], Use],
        buffer: Callable[[str], torch.Tensor],
        saved: SavedTensors,
        step: Callable[[int], None],
        *,
        hooks: bool,
        compiled: Sequence[Instruction] | None = None,
        backward: BackwardOrder | None = None,
        joined: Joined = contextlib.nullcontext,
        mesh: RankMesh | None = None,
    ) -> None:
        self._built = built
        self._backward = backward
        self._joined = joined
        self._buffer = buffer
        self._saved = saved
        self._step = step
        self._hooks = hooks or any(
            i.rebuild is not None or i.segment is not None for i in built.instructions
        )
        self._late = any(
            i.rebuild is not None and i.rebuild.dropped in i.inputs for i in built.instructions
        )
        self._agreement = Agreement(None if backward is None else backward.turns, mesh)
        self._template: Slots = []
        # When each parameter is first read: those of ZeRO 3 are gathered then, not before.
        uses = {slot: user(name) for name, slot in built.parameters.items()}
        self._first = _first_uses(built.instructions, uses)
        self._simple = _simple(built.instructions, self._first)
        self._compiled = None
        if compiled is not None:
            self._compiled = _simple(compiled, _first_uses(compiled, uses))

    @property
    def instructions(self) -> Sequence[Instruction]:
        """The instructions in the order in which they run."""
        return self._built.instructions

    @property
    def pairs(self) -> Mapping[int, LayoutPair]:
        """The layouts of what each operator makes, by slot."""
        return self._built.pairs

    def written(self) -> dict[str, tuple[RankMesh, Layout]]:
        """Returns the buffers that operators update, with the mesh and layout of the parts."""
        return self._built.written()

    def run(
        self,
        arguments: Mapping[Argument, torch.Tensor],
        number: int,
        watch: Watch | None = None,
        incoming: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Returns the graph's whole outputs, given inputs as they arrive; `number` counts runs.

        A stage of a pipeline takes `incoming` tensors, and returns its outgoing ones too.
        """
        self._step(number)
        slots = self._begin()
        for name, slot in self._built.incoming.items():
            slots[slot] = (incoming or {})[name]
        for argument, slot in self._built.arguments.items():
            slots[slot] = arguments[argument]
        ordered = None
        if self._backward is not None and torch.is_grad_enabled():
            ordered = OrderedPass(self._backward, self._joined)
        if self._hooks and torch.is_grad_enabled():
            self._saved.late = self._late
            forward_pass = self._saved.forward_pass = self._agreement.begin()
            with self._saved.hooks():
                self._run_hooked(slots, number, watch, ordered)
            self._saved.clear()
            self._agreement.end(forward_pass)
        elif watch is not None or ordered is not None:
            self._run_watched(slots, watch, ordered)
        elif self._compiled is not None and _get_current_dispatch_mode() is None:
            self._run_plain(slots, self._compiled)
        else:
            self._run_plain(slots, self._simple)
        returned = {**self._built.results, **self._built.outgoing}
        results = {name: slots[slot] for name, slot in returned.items()}
        return results if ordered is None else ordered.results(results, self._built.results)

    def _begin(self) -> Slots:
        if not self._template:
            self._template = self._constants()
        return self._template.copy()

    def _constants(self) -> Slots:
        slots: Slots = [None] * self._built.slots
        for slot, (name, mesh, layout) in self._built.buffers.items():
            whole = self._buffer(name)
            # A view: running statistics are updated in the module's own buffer.
            slots[slot] = part_of(whole, mesh, whole.shape, layout)
        with torch.no_grad():
            for instruction in self._built.constants:
                results = instruction.run(*[slots[s] for s in instruction.inputs])
                for slot, tensor in zip(instruction.outputs, results, strict=True):
                    slots[slot] = tensor
        return slots

    def forget_constants(self) -> None:
        """Recomputes constants at the next run; called when buffers were replaced."""
        self._template = []

    def _run_plain(self, slots: Slots, instructions: Sequence[Simple]) -> None:
        for run, inputs, outputs, dead, parameters in instructions:
            for slot, use in parameters:
                slots[slot] = use()
            results = run(*[slots[s] for s in inputs])
            for slot, tensor in zip(outputs, results, strict=False):
                slots[slot] = tensor
            for slot in dead:
                slots[slot] = None

    def _run_watched(
        self, slots: Slots, watch: Watch | None, ordered: OrderedPass | None = None
    ) -> None:
        for number, instruction in enumerate(self._built.instructions):
            inputs = self._inputs(slots, number, instruction, ordered)
            self._fill(slots, instruction, instruction.run(*inputs), ordered)
            if watch is not None:
                watch(instruction, slots)
            _empty(slots, instruction.dead, ordered)

    def _inputs(
        self, slots: Slots, number: int, instruction: Instruction, ordered: OrderedPass | None
    ) -> list[Any]:
        for slot, use in self._first.get(number, ()):
            slots[slot] = use()
            if ordered is not None:
                ordered.made(slot, slots[slot])
        if ordered is not None:
            return ordered.read(number, instruction.inputs, slots)
        return [slots[s] for s in instruction.inputs]

    def _fill(
        self,
        slots: Slots,
        instruction: Instruction,
        results: Sequence[Any],
        ordered: OrderedPass | None,
    ) -> None:
        for slot, tensor in zip(instruction.outputs, results, strict=True):
            slots[slot] = tensor
            if ordered is not None:
                ordered.made(slot, tensor)

    def _run_hooked(
        self, slots: Slots, number: int, watch: Watch | None, ordered: OrderedPass | None
    ) -> None:
        runs = Recomputations(self._saved, self._built.instructions, self._rerun_at(number))
        forward_pass = self._saved.forward_pass
        for position, instruction in enumerate(self._built.instructions):
            forward_pass.now = position
            inputs = self._inputs(slots, position, instruction, ordered)
            with runs.of(instruction, slots):
                results = forward_pass.watch(inputs, instruction.run(*inputs))
            self._fill(slots, instruction, results, ordered)
            if instruction.rebuild is not None:
                runs.rebuild(instruction.rebuild, slots)
            if watch is not None:
                watch(instruction, slots)
            _empty(slots, instruction.dead, ordered)

    def _rerun_at(self, number: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def rerun() -> Any:
            self._step(number)
            yield

        return rerun


def _empty(slots: Slots, dead: Sequence[int], ordered: OrderedPass | None) -> None:
    for slot in dead:
        slots[slot] = None
    if ordered is not None:
        ordered.free(dead)


def _first_uses(instructions: Sequence[Instruction], uses: Mapping[int, Use]) -> FirstUses:
    first: dict[int, list[tuple[int, Use]]] = {}
    readers: dict[int, int] = {}
    for number, instruction in enumerate(instructions):
        for slot in instruction.inputs:
            readers.setdefault(slot, number)
    for slot, use in uses.items():
        first.setdefault(readers[slot], []).append((slot, use))
    return first


def _simple(instructions: Sequence[Instruction], first: FirstUses) -> list[Simple]:
    return [
        (i.run, i.inputs, i.outputs, i.dead, first.get(number, ()))
        for number, i in enumerate(instructions)
    ]
