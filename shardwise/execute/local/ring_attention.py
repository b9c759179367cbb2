"""Attention in blocks of queries and keys, of which some ranks have others: merged as they come.

The rows of a rank see the keys block by block. Each block gives a result and ℓ, the logarithm of
the sum of its exponents; two are merged in float32 at least (Milakov and Gimelshein 2018):

    ℓ = log(e^ℓ₁ + e^ℓ₂),  o = e^(ℓ₁-ℓ) o₁ + e^(ℓ₂-ℓ) o₂

Backward of a block needs the merged result and ℓ alone (FlashAttention-2, §3.1). In a ring (Liu et
al. 2023) keys and values go from rank to rank while a block is computed; in backward so do the
gradients of those that are not the rank's own, which are at home after as many steps. Under a
causal mask pairs of blocks are whole, on the diagonal, or left out; positions are those of the
sequence, whatever the order in which its shares lie (`sharding/zigzag.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from shardwise.execute.communication import counted
from shardwise.execute.rank_mesh import RankMesh
from shardwise.sharding.zigzag import zigzag_order

_HALF = (torch.float16, torch.bfloat16)


class Piece(NamedTuple):
    """Rows of a part that lie together in the sequence: where in the part, and their positions."""

    start: int
    positions: range


class Block(NamedTuple):
    """A pair of rows of queries and rows of keys; on the diagonal, query s sees keys 0 to s."""

    queries: slice
    keys: slice
    diagonal: bool


def pieces_of_rows(rows: range, extent: int, pieces: int) -> list[Piece]:
    """Returns what rows of a sequence of `extent` are that lies in that many zigzag pieces (0: as
    it is)."""
    found, start = [], 0
    for whole in zigzag_order(extent, pieces) if pieces else [range(extent)]:
        first, last = max(rows.start, start), min(rows.stop, start + len(whole))
        if first < last:
            found.append(Piece(first - rows.start, whole[first - start : last - start]))
        start += len(whole)
    return found


def positions_of(pieces: Sequence[Piece]) -> list[int]:
    """Returns the position of every row."""
    return [position for piece in pieces for position in piece.positions]


def blocks_of(queries: Sequence[Piece], keys: Sequence[Piece], *, causal: bool) -> list[Block]:
    """Returns the pairs of rows that see each other, neighbours in one."""
    if not causal:
        return [Block(_together(queries), _together(keys), False)]
    ends = {end for piece in (*queries, *keys) for end in _ends(piece.positions)}
    found: list[Block] = []
    for query in _cut(queries, ends):
        for key in _cut(keys, ends):
            if key.positions.start > query.positions.start:
                continue
            block = Block(_rows(query), _rows(key), key.positions == query.positions)
            last = found[-1] if found else None
            if last is not None and _continues(last, block):
                found[-1] = last._replace(keys=slice(last.keys.start, block.keys.stop))
            else:
                found.append(block)
    return found


def _ends(positions: range) -> tuple[int, int]:
    return positions.start, positions.stop


def _together(pieces: Sequence[Piece]) -> slice:
    return slice(0, sum(len(piece.positions) for piece in pieces))


def _rows(piece: Piece) -> slice:
    return slice(piece.start, piece.start + len(piece.positions))


def _continues(last: Block, block: Block) -> bool:
    alike = last.queries == block.queries and last.keys.stop == block.keys.start
    return alike and not last.diagonal and not block.diagonal


def _cut(pieces: Sequence[Piece], ends: set[int]) -> list[Piece]:
    """Returns the pieces cut at these positions."""
    found = []
    for piece in pieces:
        first, last = _ends(piece.positions)
        inner = sorted(end for end in ends if first < end < last)
        for start, stop in zip((first, *inner), (*inner, last), strict=True):
            found.append(Piece(piece.start + start - first, range(start, stop)))
    return found


@dataclass(frozen=True)
class Ring:
    """What a rank does in turn: `blocks[s]` with the keys of the share `index - s`.

    `axes` are those of `mesh` along which keys go round, none where a rank has them all; `rows`
    counts the keys of each share. `scale` multiplies scores.
    """

    blocks: Sequence[Sequence[Block]]
    mesh: RankMesh
    axes: tuple[int, ...]
    rows: Sequence[int]
    scale: float | None

    @property
    def index(self) -> int:
        """This rank's number in the ring."""
        return self.mesh.index(self.axes)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        """Returns the result of this rank's queries, [batch, heads, queries, width]."""
        return _Attention.apply(query, key, value, self)

    def rows_at(self, step: int) -> int:
        """Returns how many keys the block of a step has."""
        return self.rows[(self.index - step) % len(self.rows)]

    def send(self, tensor: Any, into: Any, tag: int) -> Callable[[], Any]:
        """Begins to send a tensor to the next rank, and to receive `into` from the one before; the
        returned call waits for both and returns what came."""
        members, index = self.mesh.members(self.axes), self.index
        after, before = (
            self.mesh.world_rank(members[place % len(members)]) for place in (index + 1, index - 1)
        )
        group = self.mesh.group(self.axes)
        if dist.get_backend(group) == dist.Backend.NCCL:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, tensor, after, group),
                    dist.P2POp(dist.irecv, into, before, group),
                ]
            )
        else:
            # Never in a batch on gloo, where it hangs (pytorch/pytorch issue 132644).
            works = [
                dist.isend(tensor, after, group=group, tag=tag),
                dist.irecv(into, before, group=group, tag=tag),
            ]

        def ended() -> Any:
            _wait(works, tensor)
            return into

        return ended


@counted
def _wait(works: Sequence[Any], sent: Any) -> None:
    """Waits for messages, one of which sends a tensor that must live until then."""
    for work in works:
        work.wait()


KEYS, GRADIENTS = 0, 1
"""Tags of messages."""


class _Pair:
    """Keys and values in one message: [batch, heads, rows, width] each."""

    def __init__(self, key: Any, value: Any) -> None:
        self._shapes: tuple[Any, Any] = tuple(key.shape), tuple(value.shape)
        self.wire = torch.cat([key.reshape(-1), value.reshape(-1)])

    def like(self, rows: int) -> _Pair:
        """Returns an empty one of as many rows."""
        other = _Pair.__new__(_Pair)
        key, value = self._shapes
        other._shapes = (*key[:2], rows, key[3]), (*value[:2], rows, value[3])
        other.wire = self.wire.new_empty(sum(torch.Size(s).numel() for s in other._shapes))
        return other

    @property
    def both(self) -> tuple[Any, Any]:
        """Keys and values, as views."""
        sizes = [torch.Size(shape).numel() for shape in self._shapes]
        key, value = self.wire.split(sizes)
        return key.view(self._shapes[0]), value.view(self._shapes[1])


def _wide(x: Any) -> Any:
    """Returns the dtype in which results are merged and gradients add up."""
    return torch.promote_types(x.dtype, torch.float32)


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, ring: Ring) -> Any:
        steps, wide = len(ring.blocks), _wide(query)
        shape = (*query.shape[:-1], value.shape[-1])
        merged = query.new_zeros(shape, dtype=wide)
        sums = query.new_full(query.shape[:-1], -torch.inf, dtype=wide)
        pair = _Pair(key, value) if steps > 1 else None
        for step, blocks in enumerate(ring.blocks):
            ended = None
            if pair is not None and step + 1 < steps:
                coming = pair.like(ring.rows_at(step + 1))
                ended = ring.send(pair.wire, coming.wire, KEYS)
            keys, values = (key, value) if pair is None else pair.both
            for block in blocks:
                q, k, v = (
                    query[:, :, block.queries],
                    keys[:, :, block.keys],
                    values[:, :, block.keys],
                )
                out, more = _forward(q, k, v, ring.scale, block.diagonal)
                at = merged[:, :, block.queries], sums[:, :, block.queries]
                total = torch.logaddexp(at[1], more)
                at[0].mul_((at[1] - total).exp().unsqueeze(-1))
                at[0].add_(out * (more - total).exp().unsqueeze(-1))
                at[1].copy_(total)
            if ended is not None:
                ended()
                pair = coming
        result = merged.to(query.dtype)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, result, sums = ctx.saved_tensors
        ring, wide = ctx.ring, _wide(query)
        steps = len(ring.blocks)
        of_query = torch.zeros_like(query, dtype=wide)
        own = [torch.zeros_like(x, dtype=wide) for x in (key, value)]
        pair = _Pair(key, value) if steps > 1 else None
        gradients: Callable[[], Any] | None = None
        going = coming_home = None
        for step, blocks in enumerate(ring.blocks):
            ended = None
            if pair is not None and step + 1 < steps:
                coming = pair.like(ring.rows_at(step + 1))
                ended = ring.send(pair.wire, coming.wire, KEYS)
            keys, values = (key, value) if pair is None else pair.both
            of_block = (
                own if step == 0 else [torch.zeros_like(x, dtype=wide) for x in (keys, values)]
            )
            for block in blocks:
                q, k, v = (
                    query[:, :, block.queries],
                    keys[:, :, block.keys],
                    values[:, :, block.keys],
                )
                of_rows = tuple(x[:, :, block.queries] for x in (grad, result, sums))
                parts = _backward(of_rows, q, k, v, ring.scale, block.diagonal)
                of_query[:, :, block.queries].add_(parts[0])
                of_block[0][:, :, block.keys].add_(parts[1])
                of_block[1][:, :, block.keys].add_(parts[2])
            if step > 0:
                going = _Pair(*of_block)
                if gradients is not None:
                    going.wire.add_(gradients())
                coming_home = going.like(ring.rows_at(step + 1))
                gradients = ring.send(going.wire, coming_home.wire, GRADIENTS)
            if ended is not None:
                ended()
                pair = coming
        if gradients is not None and coming_home is not None:
            gradients()
            for mine, part in zip(own, coming_home.both, strict=True):
                mine.add_(part)
        made = (of_query, *own)
        return (*(g.to(x.dtype) for g, x in zip(made, (query, key, value), strict=True)), None)


def _forward(q: Any, k: Any, v: Any, scale: float | None, diagonal: bool) -> tuple[Any, Any]:
    """Returns the result of one block and ℓ, in the dtype in which they are merged."""
    k, v = (_repeated(x, q) for x in (k, v))
    if _has_flash(q, v):
        kernel = (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            if q.device.type == "cpu"
            else torch.ops.aten._scaled_dot_product_flash_attention
        )
        out, sums = kernel(q, k, v, 0.0, diagonal, scale=scale)[:2]
        return out.to(_wide(q)), sums.to(_wide(q))
    scores = _scores(q, k, scale, diagonal)
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp() @ v.to(scores.dtype), sums


def _backward(
    of_rows: tuple[Any, Any, Any], q: Any, k: Any, v: Any, scale: float | None, diagonal: bool
) -> tuple[Any, Any, Any]:
    """Returns the gradients of one block's queries, keys and values; `of_rows` are the result's
    gradient, the result and ℓ of all blocks."""
    heads, (grad, out, sums) = k.shape[1], of_rows
    k, v = (_repeated(x, q) for x in (k, v))
    if _has_flash(q, v) and q.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        of_q, of_k, of_v = kernel(grad, q, k, v, out, sums, 0.0, diagonal, scale=scale)
    elif _has_flash(q, v):
        none = torch.empty(0, dtype=torch.uint64, device=q.device)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward
        most = q.shape[2], k.shape[2]
        args = (grad.contiguous(), q, k, v, out, sums.contiguous(), None, None, *most)
        of_q, of_k, of_v = kernel(*args, 0.0, diagonal, none, none, scale=scale)
    else:
        wide, by = _wide(q), 1 / sqrt(q.shape[-1]) if scale is None else scale
        grad, out, q_, k_, v_ = (x.to(wide) for x in (grad, out, q, k, v))
        shares = (_scores(q, k, scale, diagonal) - sums.unsqueeze(-1)).exp()
        of_v = shares.mT @ grad
        of_shares = grad @ v_.mT - (grad * out).sum(-1, keepdim=True)
        of_scores = shares * of_shares * by
        of_q, of_k = of_scores @ k_, of_scores.mT @ q_
    return of_q, _summed(of_k, heads), _summed(of_v, heads)


def _has_flash(q: Any, v: Any) -> bool:
    """Returns whether torch has a kernel that keeps no scores: on GPUs of 16 bits alone."""
    alike = q.shape[-1] == v.shape[-1]
    return bool(alike and (q.device.type == "cpu" or (q.is_cuda and q.dtype in _HALF)))


def _scores(q: Any, k: Any, scale: float | None, diagonal: bool) -> Any:
    wide = _wide(q)
    scores = (q.to(wide) @ k.to(wide).mT) * (1 / sqrt(q.shape[-1]) if scale is None else scale)
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _repeated(x: Any, q: Any) -> Any:
    """Returns keys or values once for each head of the queries (grouped-query attention)."""
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def _summed(grad: Any, heads: int) -> Any:
    if grad.shape[1] == heads:
        return grad
    return grad.unflatten(1, (heads, -1)).sum(2)
