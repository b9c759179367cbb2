"""Collectives on local parts of tensors, as a plan's steps name them (cost/reschedule.py).

`change` takes a local part from one layout to another in one step; `run` takes it along a path.
Neither records anything for autograd: `crossing.py` pairs a forward path with a backward path.
Shares may be uneven (rank_mesh.py): they travel padded to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwise.documents.common import Step
from shardwise.errors import ShardwiseError
from shardwise.execute.block_mesh import Proportions
from shardwise.execute.communication import counted
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.execute.reshare import RESHARE, reshare_of
from shardwise.measure import scatter
from shardwise.sharding.layout import REPLICATE

CONTIGUOUS = torch.contiguous_format


@dataclass(frozen=True)
class Change:
    """One step: the collective, the axes it runs over, the layouts before and after.

    With devices of several kinds `mesh` is that of the result's shares; a step that changes shares
    comes from those of `source`.
    """

    operation: str
    axes: tuple[int, ...]
    before: Layout
    after: Layout
    mesh: RankMesh | None = None
    source: RankMesh | None = None


def parse_layout(words: Sequence[str]) -> Layout:
    """Parses the file form of a layout, one word per axis (sharding/layout.py `describe`)."""
    known = {"replicate": -1, "partial": -2}
    return tuple(
        known[word] if word in known else int(word.removeprefix("shard(").removesuffix(")"))
        for word in words
    )


def parse_path(
    proportions: Proportions, mesh: RankMesh, start: Layout, steps: Sequence[Step]
) -> list[Change]:
    """Parses a plan's sequence of steps, starting from layout `start` with the shares of `mesh`."""
    path = []
    for step in steps:
        after, there = parse_layout(step.result), proportions.at(step.proportion)
        axes = mesh.numbers(step.axes)
        source = mesh if step.operation == RESHARE else None
        path.append(Change(step.operation, axes, start, after, there, source))
        start, mesh = after, there
    return path


def run(x: torch.Tensor, path: Sequence[Change], mesh: RankMesh, shape: Sequence[int]) -> Any:
    """Returns the local part of a tensor of global `shape` after every step of the path."""
    for step in path:
        x = change(x, step, mesh, shape)
    return x


@counted
def change(x: torch.Tensor, step: Change, mesh: RankMesh, shape: Sequence[int]) -> torch.Tensor:
    """Returns the local part after one step; where this rank has none it is an empty tensor."""
    if step.mesh is not None:
        mesh = step.mesh
        if step.source is not None:
            moved = reshare_of(step.source, mesh, step.after, tuple(shape))
            return moved(x) if moved.concerns else x.new_empty(0)
        if not mesh.present:
            return x.new_empty(0)
        if mesh.parts(step.axes) == 1:
            return x.clone(memory_format=CONTIGUOUS)
    state = step.before[step.axes[0]]
    target = step.after[step.axes[0]]
    match step.operation:
        case "slice":
            return narrow(x, target, mesh, step.axes)
        case "mask":
            # A separate tensor on every rank: rebuilding identifies tensors by storage
            # (`saved.py`).
            return x.clone() if mesh.index(step.axes) == 0 else torch.zeros_like(x)
        case "all_reduce":
            return all_reduce(x, mesh, step.axes)
        case "all_gather":
            return all_gather(x, state, mesh, step.axes, _gathered(mesh, shape, step, state))
        case "reduce_scatter":
            return reduce_scatter(x, target, mesh, step.axes)
        case "all_to_all":
            extent = _gathered(mesh, shape, step, state)
            return all_to_all(x, state, target, mesh, step.axes, extent)
    raise ShardwiseError(f"the plan names an unknown collective {step.operation!r}")


def _gathered(mesh: RankMesh, shape: Sequence[int], step: Change, dim: int) -> int:
    """Returns the extent of `dim` on this rank once the step's axes no longer split it."""
    left = [REPLICATE if a in step.axes else s for a, s in enumerate(step.before)]
    return len(mesh.share(shape[dim], axes_of(tuple(left), dim)))


def narrow(x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int]) -> torch.Tensor:
    """Returns this rank's share of `dim` in its own memory, so that it keeps nothing else alive."""
    share = mesh.share(x.shape[dim], axes)
    return x.narrow(dim, share.start, len(share)).clone(memory_format=CONTIGUOUS)


def all_reduce(
    x: torch.Tensor, mesh: RankMesh, axes: Sequence[int], operation: Any = None
) -> torch.Tensor:
    """Returns the sum (or `operation`, a `dist.ReduceOp`) over the axes, in a new tensor."""
    whole = x.clone(memory_format=CONTIGUOUS)
    dist.all_reduce(whole, operation or dist.ReduceOp.SUM, group=mesh.group(axes))
    return whole


def all_gather(
    x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int], extent: int
) -> torch.Tensor:
    """Gathers the shares of `dim` (`extent` elements in all) along the axes, in order."""
    if mesh.parts(axes) == 1:
        return x.contiguous()
    lengths = mesh.shares(extent, axes)
    step = max(lengths)
    own = _padded(x, dim, step)
    blocks = own.new_empty((len(lengths), *own.shape))
    dist.all_gather_into_tensor(blocks.view(-1), own.view(-1), group=mesh.group(axes))
    if _outermost(x.shape, dim) and lengths.count(step) == len(lengths):
        return blocks.view(_with(x.shape, dim, extent))
    return torch.cat([b.narrow(dim, 0, n) for b, n in zip(blocks, lengths, strict=True)], dim)


def reduce_scatter(x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int]) -> torch.Tensor:
    """Returns this rank's share of `dim` of the sum over the axes."""
    lengths = mesh.shares(x.shape[dim], axes)
    step = max(lengths)
    packed = not _outermost(x.shape, dim) or lengths.count(step) != len(lengths)
    given = _blocks(x, dim, lengths, step) if packed else x.contiguous()
    reduced = x.new_empty(_with(x.shape, dim, step))
    group = mesh.group(axes)
    scatter.reduce_scatter(dist, reduced.view(-1), given.view(-1), group, spare=packed)
    own = lengths[mesh.index(axes)]
    # A narrowed view would not have a storage of its own (`saved.py`).
    return reduced if own == step else reduced.narrow(dim, 0, own).clone(memory_format=CONTIGUOUS)


def all_to_all(
    x: torch.Tensor, state: int, target: int, mesh: RankMesh, axes: Sequence[int], extent: int
) -> torch.Tensor:
    """Turns shares of dimension `state` (`extent` elements in all) into shares of `target`."""
    sent = mesh.shares(x.shape[target], axes)
    got = mesh.shares(extent, axes)
    pieces = x.split(sent, dim=target)
    own = _with(x.shape, target, sent[mesh.index(axes)])
    others = [_with(own, state, length) for length in got]
    counts = [other.numel() for other in others]
    buffer = x.new_empty(sum(counts))
    dist.all_to_all_single(
        buffer,
        x.contiguous().view(-1) if _outermost(x.shape, target) else _packed(pieces),
        counts,
        [piece.numel() for piece in pieces],
        group=mesh.group(axes),
    )
    if _outermost(own, state):
        return buffer.view(_with(own, state, extent))
    received = zip(buffer.split(counts), others, strict=True)
    return torch.cat([part.view(shape) for part, shape in received], dim=state)


def _outermost(shape: Sequence[int], dim: int) -> bool:
    """Returns whether shares of a dimension are adjacent in memory and need no packing."""
    return all(extent == 1 for extent in shape[:dim])


def _with(shape: Sequence[int], dim: int, extent: int) -> torch.Size:
    return torch.Size((*shape[:dim], extent, *shape[dim + 1 :]))


def _packed(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates the pieces in memory, copying each once."""
    packed = pieces[0].new_empty(sum(piece.numel() for piece in pieces))
    places = packed.split([piece.numel() for piece in pieces])
    for place, piece in zip(places, pieces, strict=True):
        place.view(piece.shape).copy_(piece)
    return packed


def _blocks(x: torch.Tensor, dim: int, lengths: Sequence[int], step: int) -> torch.Tensor:
    """Concatenates the shares of `dim`, copying each once and padding each to `step` with zeros."""
    shape = (len(lengths), *_with(x.shape, dim, step))
    blocks = x.new_empty(shape) if lengths.count(step) == len(lengths) else x.new_zeros(shape)
    for block, piece in zip(blocks, x.split(lengths, dim), strict=True):
        block.narrow(dim, 0, piece.shape[dim]).copy_(piece)
    return blocks


def _padded(x: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """Returns a contiguous tensor whose `dim` has `length` elements: those of x, then zeros."""
    if x.shape[dim] == length:
        return x.contiguous()
    whole = x.new_zeros(_with(x.shape, dim, length))
    whole.narrow(dim, 0, x.shape[dim]).copy_(x)
    return whole
