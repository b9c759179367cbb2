"""Gradients that travel together: one collective for many parameters (Li et al. 2020, §3.2.3).

A bucket's buffer is made when the first gradient of a backward pass arrives. Under ZeRO 0 the
gradients that the optimizer sees are views of it, so that it lives exactly as long as they do;
`zero_grad(set_to_none=True)` frees it. Under ZeRO 1 to 3 it has one row per rank along the ZeRO
axes and lives until the scatter has completed, which is waited for when the next bucket is on its
way: at most two buckets hold whole gradients at any time. Along ZeRO axes where all ranks have the
same gradient nothing is summed: each keeps its own rows.

Gradients of an earlier backward pass that the optimizer has not used yet are sums already: they are
counted once, by the first of the ranks that are summed over.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.parameters.spec import Placement
from shardwise.measure import scatter


class Slot:
    """A parameter's place in a bucket."""

    def __init__(self, placement: Placement, parameter: torch.nn.Parameter) -> None:
        self.placement = placement
        self.parameter = parameter
        self.bucket: Bucket
        self.number = 0
        self.arrived = False
        """Whether a gradient arrived in this step."""
        self.filled = False
        """Whether the buffer holds a gradient."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What the slots of a bucket have in common."""
        place = self.placement
        weights = place.spec.weights if place.shares is not None else None
        stage = min(place.stage, 2)
        axes = (place.sharding, place.summed, place.beyond)
        return (place.dtype, place.mesh, axes, stage, weights)

    @property
    def bytes(self) -> int:
        """The gradient bytes of the largest part: equal on all ranks, so their buckets are too."""
        size: int = self.placement.most_elements * self.placement.dtype.itemsize
        return size


class Bucket(ABC):
    """The gradients of `slots`; `each`: reduced in every micro-batch, not once per step."""

    each = False

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.waiting = 0
        place = slots[0].placement
        self._mesh, self._dtype = place.mesh, place.dtype
        self._device = slots[0].parameter.device
        for number, slot in enumerate(self.slots):
            slot.bucket, slot.number = self, number

    @property
    def in_order(self) -> bool:
        """Whether its reductions wait for those of the buckets before it, as they do on all
        ranks."""
        place = self.slots[0].placement
        return bool(place.repeated or place.sharding)

    def begin(self, first: bool) -> None:
        """Begins a backward pass, the first of a step or a later one."""
        self.waiting = len(self.slots)
        if first:
            for slot in self.slots:
                slot.arrived = False

    @abstractmethod
    def take(self, slot: Slot, gradient: torch.Tensor) -> None:
        """Takes a parameter's gradient of this pass, whole on this rank."""

    @abstractmethod
    def launch(self, last: bool) -> None:
        """Begins the reduction, if this pass (`last`: of the step) has one."""

    @abstractmethod
    def release(self) -> None:
        """Ends the reduction over the ZeRO axes, which frees the whole gradients."""

    @abstractmethod
    def settle(self, last: bool) -> None:
        """Begins the reduction beyond the ZeRO axes."""

    @abstractmethod
    def deliver(self, last: bool) -> None:
        """Ends all reductions; after the last pass the parameters have their gradients."""

    @abstractmethod
    def abandon(self) -> None:
        """Forgets a pass that failed."""


class SummedBucket(Bucket):
    """ZeRO 0: gradients all-reduced in place, or not at all if nothing is repeated."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        super().__init__(slots)
        place = slots[0].placement
        self._axes = place.repeated
        if self._axes:
            self._mesh.group(self._axes)  # created on all ranks in the same order
        self._keeps = self._mesh.index(place.repeated) == 0
        self._sizes = [slot.placement.elements for slot in slots]
        self._shapes = [slot.placement.local_shape for slot in slots]
        self._last: Any = None
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        self._work: Any = None

    def take(self, slot: Slot, gradient: torch.Tensor) -> None:
        earlier = None if slot.arrived else slot.parameter.grad
        self.waiting -= 1
        if self._buffer is None:
            if len(self.slots) == 1 and earlier is None and gradient.is_contiguous():
                self._buffer, self._views = gradient.view(-1), [gradient]
                slot.arrived = True
                return
            self._open()
        view = self._views[slot.number]
        if slot.arrived:
            view.add_(gradient)
        elif earlier is None or not self._keeps:
            view.copy_(gradient)
        elif earlier.data_ptr() == view.data_ptr():
            view.add_(gradient)
        else:
            torch.add(earlier, gradient, out=view)
        slot.arrived = True

    def _open(self) -> None:
        buffer = self._last() if self._last is not None else None
        if buffer is None:
            buffer = torch.empty(sum(self._sizes), dtype=self._dtype, device=self._device)
        self._buffer = buffer
        pieces = buffer.split(self._sizes)
        self._views = [p.view(s) for p, s in zip(pieces, self._shapes, strict=True)]

    def launch(self, last: bool) -> None:
        if self._buffer is None or not last:
            return
        for slot, view in zip(self.slots, self._views, strict=True):
            if not slot.arrived and (not self._keeps or slot.parameter.grad is None):
                view.zero_()
        if self._axes:
            group = self._mesh.group(self._axes)
            self._work = dist.all_reduce(self._buffer, group=group, async_op=True)

    def release(self) -> None:
        """Does nothing: there are no ZeRO axes."""

    def settle(self, last: bool) -> None:
        """Does nothing: there are no ZeRO axes."""

    def deliver(self, last: bool) -> None:
        if self._buffer is None or not last:
            return
        if self._work is not None:
            self._work.wait()
            self._work = None
        for slot, view in zip(self.slots, self._views, strict=True):
            if slot.arrived:
                slot.parameter.grad = view
        # As long as a gradient is kept, so is the buffer that holds it.
        self._last = weakref.ref(self._buffer)
        self._buffer, self._views = None, []

    def abandon(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._buffer, self._views, self._work = None, [], None


class ScatteredBucket(Bucket):
    """ZeRO 1 to 3: gradients reduce-scattered where they are summed, then summed over the axes
    beyond."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        super().__init__(slots)
        place = slots[0].placement
        self.each = place.stage >= 2
        self._parts, self._rows = place.parts, place.rows
        self._summed, self._beyond = place.summed, place.beyond
        # Created on all ranks in the same order.
        if self._summed:
            self._mesh.group(self._summed)
        if self._beyond:
            self._mesh.group(self._beyond)
        self._widths = [slot.placement.shard for slot in slots]
        self._buffer: torch.Tensor | None = None
        self._columns: Sequence[torch.Tensor] = ()
        self._scattered: torch.Tensor | None = None
        self._sum: torch.Tensor | None = None
        self._work: Any = None

    def take(self, slot: Slot, gradient: torch.Tensor) -> None:
        self.waiting -= 1
        if self._buffer is None:
            width = sum(self._widths)
            alone = len(self.slots) == 1 and gradient.is_contiguous()
            if alone and gradient.numel() == self._parts * width:
                self._buffer = gradient.view(self._parts, width)
                self._columns = (self._buffer,)
                slot.arrived = slot.filled = True
                return
            self._buffer = torch.empty((self._parts, width), dtype=self._dtype, device=self._device)
            self._columns = self._buffer.split(self._widths, dim=1)
            for each in self.slots:
                each.filled = False
        _lay(self._columns[slot.number], gradient, slot.filled)
        slot.arrived = slot.filled = True

    def launch(self, last: bool) -> None:
        if self._buffer is None or not (last or self.each):
            return
        for slot, column in zip(self.slots, self._columns, strict=True):
            if not slot.filled:
                column.zero_()
        terms = self._buffer
        if len(self._rows) < self._parts:
            terms = terms[self._rows]
        # From here on only the collective holds it, as long as it needs it.
        self._buffer, self._columns = None, ()
        if not self._summed:
            self._scattered = terms.view(-1)
            return
        self._scattered = terms.new_empty(terms.shape[1])
        group = self._mesh.group(self._summed)
        self._work = scatter.reduce_scatter(
            dist, self._scattered, terms.view(-1), group, spare=True, async_op=True
        )

    def release(self) -> None:
        scattered, self._scattered = self._scattered, None
        if scattered is None:
            return
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._sum = scattered if self._sum is None else self._sum.add_(scattered)

    def settle(self, last: bool) -> None:
        if last and self._sum is not None and self._beyond:
            group = self._mesh.group(self._beyond)
            self._work = dist.all_reduce(self._sum, group=group, async_op=True)

    def deliver(self, last: bool) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None
        if not last or self._sum is None:
            return
        for slot, column in zip(self.slots, self._sum.split(self._widths), strict=True):
            _deliver(slot, column[: len(slot.placement.own)])
        self._sum = None

    def abandon(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._buffer = self._scattered = self._sum = self._work = None
        self._columns = ()


def _lay(column: torch.Tensor, gradient: torch.Tensor, add: bool) -> None:
    """Writes a gradient into `column` (parts, shard), row by row; the rest is padding."""
    parts, shard = column.shape
    if gradient.numel() == parts * shard:
        pieces = [(column, gradient.reshape(parts, shard))]
    else:
        flat = gradient.reshape(-1)
        rows = flat.numel() // max(shard, 1)
        rest = flat.numel() - rows * shard
        pieces = [(column[:rows], flat[: rows * shard].view(rows, shard))]
        if rest:
            pieces.append((column[rows, :rest], flat[rows * shard :]))
    for to, of in pieces:
        if add:
            to.add_(of)
        else:
            to.copy_(of)


class OwnedBucket(Bucket):
    """Gradients reduced to what each rank owns where weights say so, server or uneven shards.

    The buffer has, rank after rank along the repeated axes, what it owns of every slot. Under stage
    0 the sums come back to all ranks.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        super().__init__(slots)
        place = slots[0].placement
        self.each = place.stage >= 2
        self._axes, self._stage = place.repeated, place.stage
        self._mesh.group(self._axes)  # created on all ranks in the same order
        members = self._mesh.members(self._axes)
        self._ranks = [self._mesh.world_rank(rank) for rank in members]
        self._me = self._mesh.index(self._axes)
        self._shares = [slot.placement.owned for slot in slots]
        self._sizes = [sum(len(s[rank]) for s in self._shares) for rank in range(len(members))]
        self._buffer: torch.Tensor | None = None
        self._pieces: list[list[torch.Tensor]] = []
        self._sum: torch.Tensor | None = None
        self._works: list[Any] = []

    def take(self, slot: Slot, gradient: torch.Tensor) -> None:
        self.waiting -= 1
        if self._buffer is None:
            self._open()
        flat = gradient.reshape(-1)
        for piece, share in zip(self._pieces[slot.number], self._shares[slot.number], strict=True):
            given = flat[share.start : share.stop]
            if slot.filled:
                piece.add_(given)
            else:
                piece.copy_(given)
        slot.arrived = slot.filled = True

    def _open(self) -> None:
        buffer = torch.empty(sum(self._sizes), dtype=self._dtype, device=self._device)
        self._buffer, self._pieces = buffer, [[] for _ in self.slots]
        for rank, owned in enumerate(buffer.split(self._sizes)):
            pieces = owned.split([len(shares[rank]) for shares in self._shares])
            for of_slot, piece in zip(self._pieces, pieces, strict=True):
                of_slot.append(piece)
        for slot in self.slots:
            slot.filled = False

    def launch(self, last: bool) -> None:
        if self._buffer is None or not (last or self.each):
            return
        for slot, pieces in zip(self.slots, self._pieces, strict=True):
            for piece in pieces if not slot.filled else ():
                piece.zero_()
        group = self._mesh.group(self._axes)
        self._works = [
            dist.reduce(owned, rank, group=group, async_op=True)
            for owned, rank in zip(self._buffer.split(self._sizes), self._ranks, strict=True)
            if owned.numel()
        ]

    def release(self) -> None:
        if self._buffer is None or not self._works:
            return
        self._wait()
        if not self._stage:
            return
        own = self._buffer.split(self._sizes)[self._me]
        self._sum = own.clone() if self._sum is None else self._sum.add_(own)
        self._buffer, self._pieces = None, []

    def settle(self, last: bool) -> None:
        if self._stage or self._buffer is None or not last:
            return
        group = self._mesh.group(self._axes)
        self._works = [
            dist.broadcast(owned, rank, group=group, async_op=True)
            for owned, rank in zip(self._buffer.split(self._sizes), self._ranks, strict=True)
            if owned.numel()
        ]

    def deliver(self, last: bool) -> None:
        self._wait()
        if not last:
            return
        if self._stage and self._sum is not None:
            own = self._sum.split([len(shares[self._me]) for shares in self._shares])
            for slot, piece in zip(self.slots, own, strict=True):
                _deliver(slot, piece)
            self._sum = None
        elif self._buffer is not None:
            for slot, pieces in zip(self.slots, self._pieces, strict=True):
                # In the order of ranks, which is that of elements.
                _deliver(slot, torch.cat(pieces).view(slot.placement.local_shape))
            self._buffer, self._pieces = None, []

    def _wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []

    def abandon(self) -> None:
        self._wait()
        self._buffer = self._sum = None
        self._pieces = []


class AbsentBucket(Bucket):
    """Gradients of parameters that this rank does not have: empty ones, so that its optimizer makes
    as many steps as those of the others."""

    def take(self, slot: Slot, gradient: torch.Tensor) -> None:
        self.waiting -= 1
        slot.arrived = True

    def launch(self, last: bool) -> None:
        """Does nothing: other ranks communicate."""

    def release(self) -> None:
        """Does nothing: other ranks communicate."""

    def settle(self, last: bool) -> None:
        """Does nothing: other ranks communicate."""

    def deliver(self, last: bool) -> None:
        for slot in self.slots if last else ():
            if slot.arrived:
                slot.parameter.grad = torch.empty_like(slot.parameter)

    def abandon(self) -> None:
        """Does nothing."""


def _deliver(slot: Slot, piece: torch.Tensor) -> None:
    """Gives a parameter the sum of this step's gradients, added to what it has of earlier ones."""
    if not slot.arrived:
        return
    if slot.parameter.grad is None:
        slot.parameter.grad = piece
    else:
        slot.parameter.grad.add_(piece)


def buckets_of(
    slots: Sequence[Slot], first_bytes: int, most_bytes: int, lone_bytes: int
) -> list[Bucket]:
    """Groups slots, given in order of arrival, into buckets, returned in order of readiness.

    The first bucket of each kind is small, so that communication begins early. A gradient that is
    summed with no other, or has at least `lone_bytes`, gets its own bucket: it is summed, or
    scattered, from where autograd left it.
    """
    closed: list[tuple[int, list[Slot]]] = []
    filling: dict[tuple[Any, ...], list[Slot]] = {}
    begun: set[tuple[Any, ...]] = set()
    for number, slot in enumerate(slots):
        alone = not slot.placement.stage and not slot.placement.repeated
        if alone or slot.bytes >= lone_bytes:
            closed.append((number, [slot]))
            continue
        group = filling.setdefault(slot.key, [])
        group.append(slot)
        limit = most_bytes if slot.key in begun else first_bytes
        if sum(s.bytes for s in group) >= limit:
            begun.add(slot.key)
            closed.append((number, filling.pop(slot.key)))
    places = {slot: number for number, slot in enumerate(slots)}
    closed += [(places[group[-1]], group) for group in filling.values()]
    closed.sort(key=lambda pair: pair[0])
    return [_bucket(group) for _, group in closed]


def _bucket(slots: Sequence[Slot]) -> Bucket:
    place = slots[0].placement
    if not place.present:
        return AbsentBucket(slots)
    if place.shares is not None:
        return OwnedBucket(slots)
    return ScatteredBucket(slots) if place.stage else SummedBucket(slots)
