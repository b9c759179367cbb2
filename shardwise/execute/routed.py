"""Rows that lie where their expert is: moves between tokens and experts (`sharding/routing.py`).

A part of such a tensor is the rows (a copy of a token each) whose token, copy and expert are this
rank's under its layout, in the order of the whole tensor; between products they are its first
dimension, and the second has one element. Which rows these are follows from the experts that all
tokens of the ranks concerned have chosen, so every rank knows what every other one has and wants:
nothing but rows is sent, and none is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.collectives import Change, all_reduce, change, narrow
from shardwise.execute.communication import counted
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.sharding.layout import PARTIAL, REPLICATE

TOKEN, COPY = 0, 1


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor of global `shape`, sent among `experts`.

    `known` is the layout in which the tensor of chosen experts, [tokens, copies], is given: that
    part of it which all ranks have that a move concerns.
    """

    shape: tuple[int, ...]
    experts: int
    known: Layout

    @classmethod
    def of(cls, shape: Sequence[int], experts: int, path: Sequence[Change]) -> Rows | None:
        """Returns the rows that some step of a path sends, or None where none does."""
        sent = len(shape)
        layouts = [layout for step in path for layout in (step.before, step.after)]
        if not any(sent in layout for layout in layouts):
            return None
        moved = {axis for step in path for axis in step.axes}
        moved |= {axis for layout in layouts for axis in axes_of(layout, sent)}
        known = [REPLICATE] * len(layouts[0])
        for dim in (TOKEN, COPY):
            for axis in axes_of(layouts[0], dim):
                # An axis further inside cuts what this one has left.
                if axis in moved or any(layout[axis] != dim for layout in layouts):
                    break
                known[axis] = dim
        return cls(tuple(shape), experts, tuple(known))

    @property
    def sent(self) -> int:
        """The number that layouts give the dimension of experts."""
        return len(self.shape)

    def concerns(self, step: Change) -> bool:
        """Returns whether a step changes which rows a rank has, where some are sent."""
        ends = step.before, step.after
        states = {layout[axis] for layout in ends for axis in step.axes}
        rows = any(self._is_of_rows(state) for state in states)
        return rows and any(self.sent in layout for layout in ends)

    @counted
    def change(self, x: Any, step: Change, mesh: RankMesh, chosen: Any) -> Any:
        """Returns the local part after a step that `concerns` rows; `chosen` are the experts."""
        before, after, axes = step.before, step.after, step.axes
        state, target = before[axes[0]], after[axes[0]]
        whole = tuple(REPLICATE if axis in axes else s for axis, s in enumerate(before))
        if not self._is_of_rows(state):
            if state == PARTIAL:
                x = all_reduce(x, mesh, axes)
            elif state != REPLICATE:
                x = change(x, Change("all_gather", axes, before, whole), mesh, self.shape)
            return self._shaped(self._cut(x, whole, after, mesh, chosen), after, mesh)
        reached = after if self._is_of_rows(target) else whole
        x = self._shaped(self._swapped(x, before, reached, mesh, axes, chosen), reached, mesh)
        return x if reached == after else narrow(x, target, mesh, axes)

    def _is_of_rows(self, state: int) -> bool:
        return state in (TOKEN, COPY, self.sent)

    def _cut(self, x: Any, before: Layout, after: Layout, mesh: RankMesh, chosen: Any) -> Any:
        """Returns those of this rank's rows that are its own in another layout."""
        have = self._numbers(before, mesh, mesh.coordinates, chosen)
        want = self._numbers(after, mesh, mesh.coordinates, chosen)
        return self._flat(x)[torch.searchsorted(have, want)]

    def _swapped(
        self,
        x: Any,
        before: Layout,
        after: Layout,
        mesh: RankMesh,
        axes: Sequence[int],
        chosen: Any,
    ) -> Any:
        """Returns this rank's rows in another layout, sent by the ranks along the axes."""
        if mesh.parts(axes) == 1:
            return self._flat(x).clone()
        places = [mesh.coordinates_of(rank) for rank in mesh.members(axes)]
        have = self._numbers(before, mesh, mesh.coordinates, chosen)
        want = self._numbers(after, mesh, mesh.coordinates, chosen)
        given = [
            torch.isin(have, self._numbers(after, mesh, place, chosen)).nonzero().flatten()
            for place in places
        ]
        got = [_common(self._numbers(before, mesh, place, chosen), want) for place in places]
        rows = self._flat(x)
        width = prod(rows.shape[1:])
        received = rows.new_empty((len(want), *rows.shape[1:]))
        dist.all_to_all_single(
            received.view(-1),
            torch.cat([rows[numbers] for numbers in given]).view(-1),
            [len(numbers) * width for numbers in got],
            [len(numbers) * width for numbers in given],
            group=mesh.group(axes),
        )
        return received[torch.argsort(torch.cat(got))]

    def _numbers(self, layout: Layout, mesh: RankMesh, at: Sequence[int], chosen: Any) -> Any:
        """Returns which rows of the known part a rank has under a layout, ascending."""
        tokens, copies = (self._within(layout, mesh, at, dim) for dim in (TOKEN, COPY))
        experts = mesh.share(self.experts, axes_of(layout, self.sent), at)
        part = chosen[tokens.start : tokens.stop, copies.start : copies.stop]
        token, copy = torch.nonzero((part >= experts.start) & (part < experts.stop), as_tuple=True)
        return (token + tokens.start) * chosen.shape[1] + copy + copies.start

    def _within(self, layout: Layout, mesh: RankMesh, at: Sequence[int], dim: int) -> range:
        """Returns a rank's share of a dimension, counted from where the known part begins."""
        share = mesh.share(self.shape[dim], axes_of(layout, dim), at)
        first = mesh.share(self.shape[dim], axes_of(self.known, dim), at).start
        return range(share.start - first, share.stop - first)

    def _flat(self, x: Any) -> Any:
        return x.reshape(-1, *x.shape[2:])

    def _shaped(self, rows: Any, layout: Layout, mesh: RankMesh) -> Any:
        """Returns rows as operators read them: by token and copy, unless they are sent."""
        if self.sent in layout:
            return rows.unsqueeze(1)
        first = [len(mesh.share(self.shape[d], axes_of(layout, d))) for d in (TOKEN, COPY)]
        return rows.view(*first, *rows.shape[1:])


def _common(a: Any, b: Any) -> Any:
    """Returns the numbers that are in both."""
    return a[torch.isin(a, b)]
