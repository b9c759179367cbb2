"""What a basic partition plan moves, counted element by element: an oracle for method `tofu`.

Every worker group has a mask of the elements that it stores, one of those that it needs and one
of those that it makes; what it needs and does not store is fetched, what it makes and does not
store is sent. Nothing here uses a formula of `shardwise.search.tofu`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.legality import Legality
from shardwise.graph import DTYPE_BYTES
from shardwise.graph.semantics import Access
from shardwise.search.search import Subject
from shardwise.sharding.coarsen import Member

Mask = NDArray[np.bool_]
UNSPLIT = -1
"""Where a tensor lies that is too small to be split: whole, with every worker group."""

Touch = tuple[Member, dict[int, Access], bool, bool]
"""A member, its accesses of one tensor, whether it makes it, whether backward needs it there."""


def share(shape: tuple[int, ...], dim: int, worker: int, k: int, halo: Access | None) -> Mask:
    """Returns the elements of one share, with the rows beyond it that a halo adds."""
    size = -(-shape[dim] // k)
    first, last = worker * size, (worker + 1) * size
    if halo is not None:
        first, last = first - halo.halo_before, last + halo.halo_after
    mask = np.zeros(shape, dtype=bool)
    mask[(*[slice(None)] * dim, slice(max(first, 0), last))] = True
    return mask


def _accesses(member: Member, accesses: dict[int, Access], variable: int) -> Access | None:
    return next((a for v, a in accesses.items() if member.variables[v] == variable), None)


def _region(touch: Touch, shape: tuple[int, ...], variable: int, worker: int, k: int) -> Mask:
    access = _accesses(touch[0], touch[1], variable)
    return np.ones(shape, bool) if access is None else share(shape, access.dim, worker, k, access)


def _sums(touch: Touch, variable: int) -> bool:
    """Returns whether splitting leaves terms of a sum: of the output or of an input's gradient."""
    member, accesses, is_output, _ = touch
    if _accesses(member, accesses, variable) is not None:
        return False
    own = [v for v, group in enumerate(member.variables) if group == variable]
    if is_output:
        return any(member.semantics.variables[v].is_reduction for v in own)
    return bool(own)


class Elements:
    """A graph at its first step among k worker groups."""

    def __init__(self, subject: Subject, k: int) -> None:
        self.k = k
        self.tensors = subject.graph.tensors
        self.carries: Callable[[str], bool] = subject.patterns.carries_gradient
        self.touches: dict[str, dict[int, list[Touch]]] = defaultdict(lambda: defaultdict(list))
        self.options: list[list[int]] = []
        for group in subject.coarsened.groups:
            legal = Legality(subject.graph, group).even
            count = range(len(group.variables))
            self.options.append([v for v in count if legal(v, k)] or [-1])
            for member in group.members:
                self._touch(group.index, member, subject)

    def _touch(self, group: int, member: Member, subject: Subject) -> None:
        op, sem = member.operator, member.semantics
        backward = any(self.carries(o) for o in op.outputs)
        for name, access, saved in zip(op.inputs, sem.inputs, sem.saves_inputs, strict=True):
            maker = subject.graph.producer.get(name)
            if self.tensors[name].role == "parameter" or maker is not None:
                self.touches[name][group].append((member, access, False, saved and backward))
        for name, access, saved in zip(op.outputs, sem.outputs, sem.saves_outputs, strict=True):
            self.touches[name][group].append((member, access, True, saved and backward))

    def plans(self) -> Iterator[tuple[int, ...]]:
        """Yields every choice of one variable for each group."""
        return product(*self.options)

    def least_bytes(self) -> float:
        """Returns the minimum over all plans and storages, by enumeration."""
        return min(self.plan_bytes(plan) for plan in self.plans())

    def plan_bytes(self, plan: tuple[int, ...]) -> float:
        """Returns what a plan moves when every tensor lies where that is least."""
        return sum(self._tensor(name, plan) for name in self.touches)

    def _tensor(self, name: str, plan: tuple[int, ...]) -> float:
        shape = self.tensors[name].shape
        dims = [d for d, extent in enumerate(shape) if extent >= self.k]
        forward = {d: self._forward(name, plan, d) for d in dims or [UNSPLIT]}
        backward = {d: self._backward(name, plan, d) for d in dims or [UNSPLIT]}
        if self.tensors[name].role == "parameter":
            elements = min(forward[d] + backward[d] for d in forward)
        else:
            elements = min(forward.values()) + min(backward.values())
        return elements * DTYPE_BYTES[self.tensors[name].dtype]

    def _stored(self, name: str, dim: int, worker: int) -> Mask:
        shape = self.tensors[name].shape
        return np.ones(shape, bool) if dim == UNSPLIT else share(shape, dim, worker, self.k, None)

    def _forward(self, name: str, plan: tuple[int, ...], dim: int) -> int:
        moved = 0
        for group, touches in self.touches[name].items():
            for worker in range(self.k):
                away = ~self._stored(name, dim, worker)
                moved += self._needed([t for t in touches if not t[2]], plan[group], worker, away)
                moved += self._needed([t for t in touches if t[3]], plan[group], worker, away)
                moved += self._produced([t for t in touches if t[2]], plan[group], worker, away)
        return moved

    def _backward(self, name: str, plan: tuple[int, ...], dim: int) -> int:
        if not self.carries(name):
            return 0
        moved = 0
        for group, touches in self.touches[name].items():
            passing = [t for t in touches if any(map(self.carries, t[0].operator.outputs))]
            for worker in range(self.k):
                away = ~self._stored(name, dim, worker)
                moved += self._needed([t for t in passing if t[2]], plan[group], worker, away)
                moved += self._produced([t for t in passing if not t[2]], plan[group], worker, away)
        return moved

    def _needed(self, touches: list[Touch], variable: int, worker: int, away: Mask) -> int:
        needed = np.zeros_like(away)
        for touch in touches:
            needed |= _region(touch, away.shape, variable, worker, self.k)
        return int((needed & away).sum())

    def _produced(self, touches: list[Touch], variable: int, worker: int, away: Mask) -> int:
        produced = np.zeros_like(away)
        sums = False
        for touch in touches:
            if _sums(touch, variable):
                produced[:] = sums = True
            elif _accesses(touch[0], touch[1], variable) is not None:
                produced |= _region(touch, away.shape, variable, worker, self.k)
        if away.any():
            return int((produced & away).sum())
        # All must end with the whole: one adds up and sends it to the others, k-1 each way.
        if sums:
            return 2 * (self.k - 1) * produced.size if worker == 0 else 0
        return (self.k - 1) * int(produced.sum())
