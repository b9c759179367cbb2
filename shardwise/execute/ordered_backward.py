"""Backward in a plan's order: stretch by stretch, gradients handed over between them.

Within a forward pass a tensor that one stretch makes and another reads enters that one anew, in the
same memory: what autograd saves, and what is made again of it, is as it is without stretches.
Backward of the results runs the stretches one after another, each with the gradients of all that it
made; a stretch hands on the gradient of what entered it. Gradients of one tensor are added up in
the order in which they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwise.errors import ShardwiseError
from shardwise.execute.instruction import Slots
from shardwise.execute.order import BackwardOrder

Joined = Callable[[], AbstractContextManager[None]]
"""Makes several passes of autograd one pass of backward (`Reducer.joined`)."""


class OrderedPass:
    """One forward pass and its backward."""

    def __init__(self, order: BackwardOrder, joined: Joined) -> None:
        self._order = order
        self._joined = joined
        self._cut = order.cut
        # The tensor that enters a stretch, by slot and stretch.
        self._entered: dict[tuple[int, int], torch.Tensor] = {}
        self._edges: dict[int, GradientEdge] = {}
        self._gradients: dict[int, torch.Tensor] = {}
        self._own: set[int] = set()

    # Forward

    def read(self, number: int, inputs: Sequence[int], slots: Slots) -> list[Any]:
        """Returns the inputs of an instruction, those of other stretches entered."""
        entries = self._order.entries.get(number)
        if entries is None:
            return [slots[s] for s in inputs]
        stretch = self._order.stretch_of[number]
        return [self._enter(s, stretch, slots[s]) if s in entries else slots[s] for s in inputs]

    def _enter(self, slot: int, stretch: int, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        key = (slot, stretch)
        if key not in self._entered:
            anchor = torch.empty(0, device=tensor.device, requires_grad=True)
            self._entered[key] = _Entered.apply(anchor, self, slot, (tensor,))
        return self._entered[key]

    def made(self, slot: int, tensor: Any) -> None:
        """Notes where backward of a slot begins, if its gradient is handed over."""
        if slot in self._cut and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            self._edges[slot] = get_gradient_edge(tensor)

    def free(self, slots: Sequence[int]) -> None:
        """Forgets tensors of slots that are emptied."""
        if self._entered:
            for key in [key for key in self._entered if key[0] in slots]:
                del self._entered[key]

    def results(self, slots: Mapping[str, torch.Tensor], of: Mapping[str, int]) -> Any:
        """Returns a program's results, with backward in order."""
        self._entered.clear()
        flowing = [name for name, tensor in slots.items() if tensor.requires_grad]
        if not flowing:
            return slots
        first = slots[flowing[0]]
        anchor = torch.empty(0, device=first.device, requires_grad=True)
        numbers = [of[name] for name in flowing]
        tensors = tuple(slots[name] for name in flowing)
        passed = _Results.apply(anchor, self, numbers, tensors)
        return {**slots, **dict(zip(flowing, passed, strict=True))}

    # Backward

    def hand_over(self, slot: int, gradient: torch.Tensor) -> None:
        """Adds a gradient of a slot."""
        first = self._gradients.get(slot)
        if first is None:
            self._gradients[slot] = gradient
        elif slot in self._own:
            first.add_(gradient)
        else:
            # The first may be somebody else's memory.
            self._gradients[slot] = first + gradient
            self._own.add(slot)

    def backward(self) -> None:
        """Runs all stretches."""
        if not self._edges:
            raise ShardwiseError("backward has run already; it runs once for each forward pass")
        edges, self._edges = self._edges, {}
        with self._joined():
            for stretch in self._order.stretches:
                begins = [s for s in stretch.makes if s in self._gradients and s in edges]
                if begins:
                    gradients = [self._gradients.pop(s) for s in begins]
                    torch.autograd.backward([edges.pop(s) for s in begins], gradients)
        self._gradients.clear()


class _Entered(torch.autograd.Function):  # type: ignore[misc]
    """A tensor in its own memory, without its history; its gradient is handed over."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, owner: OrderedPass, slot: int, of: Any) -> torch.Tensor:
        ctx.owner, ctx.slot = owner, slot
        return of[0].detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.owner.hand_over(ctx.slot, gradients[0])
        return None, None, None, None


class _Results(torch.autograd.Function):  # type: ignore[misc]
    """The results of a program; their backward runs the program's."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, owner: OrderedPass, slots: Any, tensors: Any) -> Any:
        ctx.owner, ctx.slots = owner, slots
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        for slot, gradient in zip(ctx.slots, gradients, strict=True):
            if gradient is not None:
                ctx.owner.hand_over(slot, gradient)
        ctx.owner.backward()
        return None, None, None, None
