"""Changes of shares: a tensor keeps its layout while its proportion becomes another.

    shard(d)     every rank sends what it has of the rows that another is to have; all rows are
                 sent once, those that stay are copied
    replicate    blocks that are to have it and do not get it from those that have it, in turn
    partial      the terms of blocks that are to have none are added at those that are to have one,
                 in turn; one that had none begins with zeros

Which block sends what to which follows from integers of the plan alone (`flows_between` in
cost/mixed/flows.py prices the same), so every rank knows it beforehand. All that is sent in a
change goes by one all_to_all among the ranks that have a part before or after it; where nothing is
sent there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import product
from math import prod

import torch
import torch.distributed as dist

from shardwise.execute.block_mesh import BLOCKS, support_of
from shardwise.execute.peers import Members, group_of
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.sharding.layout import REPLICATE

RESHARE = "reshare"
"""The operation of a plan's step that changes the shares."""


class Reshare:
    """A change from the shares of mesh `here` to those of `there`, of a tensor of global `shape`
    whose layout stays the same.

    Its peers are the ranks that may send each other something: those of all blocks of either mesh
    at the same place inside, or at any place along inner axes that split the same dimension.
    """

    def __init__(
        self, here: RankMesh, there: RankMesh, layout: Layout, shape: Sequence[int]
    ) -> None:
        self._here, self._there = here, there
        self._layout, self._shape = layout, tuple(shape)
        self._dim = layout[BLOCKS] if layout[BLOCKS] >= 0 else None

    @property
    def concerns(self) -> bool:
        """Whether this rank has a part before or after."""
        return self._here.present or self._there.present

    @cached_property
    def _place(self) -> tuple[int, ...]:
        """This rank's coordinates on the inner axes."""
        return self._here.coordinates[1:]

    @cached_property
    def _block(self) -> int:
        """This rank's block."""
        mesh = self._here if self._here.present else self._there
        return support_of(mesh)[mesh.coordinates[BLOCKS]]

    @cached_property
    def _peers(self) -> list[tuple[int, ...]]:
        """Blocks and inner coordinates of all peers, in order of their ranks."""
        sizes = self._here.sizes
        blocks = sorted({*support_of(self._here), *support_of(self._there)})
        inner = [
            range(sizes[a]) if self._dim is not None and state == self._dim else (place,)
            for a, (state, place) in enumerate(
                zip(self._layout[1:], self._place, strict=True), start=1
            )
        ]
        return list(product(blocks, *inner))

    @cached_property
    def _me(self) -> int:
        return self._peers.index((self._block, *self._place))

    @cached_property
    def members(self) -> Members:
        """The ranks of the peers, in their order."""
        sizes = self._here.sizes
        ranks = []
        for block, *place in self._peers:
            rank = block
            for size, c in zip(sizes[1:], place, strict=True):
                rank = rank * size + c
            ranks.append(rank)
        return tuple(ranks)

    @cached_property
    def sends(self) -> bool:
        """Whether any of the peers sends anything."""
        if self._dim is None:
            return bool(self._flows)
        pairs = product(range(len(self._peers)), repeat=2)
        return any(i != j and len(_common(self._has[i], self._gets[j])) for i, j in pairs)

    @cached_property
    def _has(self) -> list[range]:
        """By peer the rows of the shared dimension that it has before."""
        return [self._rows(self._here, peer) for peer in self._peers]

    @cached_property
    def _gets(self) -> list[range]:
        """By peer the rows that it has afterwards."""
        return [self._rows(self._there, peer) for peer in self._peers]

    def _rows(self, mesh: RankMesh, peer: tuple[int, ...]) -> range:
        block, *place = peer
        support = support_of(mesh)
        if block not in support:
            return range(0)
        dim = self._layout[BLOCKS]
        at = (support.index(block), *place)
        return mesh.share(self._shape[dim], axes_of(self._layout, dim), at)

    @cached_property
    def _flows(self) -> dict[int, int]:
        """Maps each block that gets (of terms: gives) something to the block on the other side."""
        here, there = support_of(self._here), support_of(self._there)
        copied = self._layout[BLOCKS] == REPLICATE
        more, fewer = (there, here) if copied else (here, there)
        lacking = [block for block in more if block not in fewer]
        return {block: fewer[n % len(fewer)] for n, block in enumerate(lacking)}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns this rank's part with the new shares, in memory of its own; empty if it has
        none."""
        wire = x.view(torch.uint8) if x.dtype is torch.bool else x
        dim = self._dim
        moved = self._moved_whole(wire) if dim is None else self._moved_rows(wire, dim)
        return moved.view(torch.bool) if x.dtype is torch.bool else moved

    def _moved_rows(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        own = self._has[self._me]
        sent = [_common(own, rows) for rows in self._gets]
        got = [_common(rows, self._gets[self._me]) for rows in self._has]
        pieces = [_cut(x, dim, rows, own) if len(rows) else x.new_empty(0) for rows in sent]
        shapes = [(*self._part[:dim], len(rows), *self._part[dim + 1 :]) for rows in got]
        counts = [prod(shape) if len(rows) else 0 for shape, rows in zip(shapes, got, strict=True)]
        received = self._swap(x, pieces, counts)
        if not self._there.present:
            return x.new_empty(0)
        # Peers are in the order of their rows, on either mesh.
        parts = [
            part.reshape(shape)
            for part, shape, rows in zip(received, shapes, got, strict=True)
            if len(rows)
        ]
        return torch.cat(parts, dim) if parts else x.new_empty(self._part)

    def _moved_whole(self, x: torch.Tensor) -> torch.Tensor:
        copied = self._layout[BLOCKS] == REPLICATE
        # Blocks from which something goes, and to which.
        pairs = {(b, a) if copied else (a, b) for a, b in self._flows.items()}
        if self._there.present and self._here.present:
            kept = x.clone(memory_format=torch.contiguous_format)
        else:
            kept = x.new_zeros(self._part if self._there.present else (0,))
        if not pairs:
            return kept
        blocks = [block for block, *_ in self._peers]
        nothing, size = x.new_empty(0), prod(self._part)
        pieces = [x if (self._block, other) in pairs else nothing for other in blocks]
        counts = [size if (other, self._block) in pairs else 0 for other in blocks]
        for part, count in zip(self._swap(x, pieces, counts), counts, strict=True):
            if count:
                kept.add_(part.view(kept.shape))
        return kept

    @cached_property
    def _part(self) -> tuple[int, ...]:
        """The shape of this rank's part, on the new mesh if it is on that."""
        mesh = self._there if self._there.present else self._here
        return mesh.local_shape(self._shape, self._layout)

    def _swap(
        self, x: torch.Tensor, pieces: Sequence[torch.Tensor], counts: Sequence[int]
    ) -> list[torch.Tensor]:
        """Sends the other peers their pieces; returns what each has sent, `counts` elements."""
        own, pieces, counts = pieces[self._me], list(pieces), list(counts)
        pieces[self._me], counts[self._me] = x.new_empty(0), 0
        received = x.new_empty(sum(counts))
        if self.sends:
            given = torch.cat([piece.reshape(-1) for piece in pieces])
            sizes = [piece.numel() for piece in pieces]
            dist.all_to_all_single(received, given, counts, sizes, group=group_of(self.members))
        parts = list(received.split(counts))
        parts[self._me] = own
        return parts


@lru_cache(maxsize=4096)
def reshare_of(here: RankMesh, there: RankMesh, layout: Layout, shape: tuple[int, ...]) -> Reshare:
    """Returns the change, worked out once."""
    return Reshare(here, there, layout, shape)


def _cut(x: torch.Tensor, dim: int, rows: range, own: range) -> torch.Tensor:
    return x.narrow(dim, rows.start - own.start, len(rows))


def _common(a: range, b: range) -> range:
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    return range(start, stop) if start < stop else range(a.start, a.start)
