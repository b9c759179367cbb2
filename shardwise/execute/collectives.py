"""Collectives on local parts of tensors, as a plan's steps name them (advise/reschedule.py).

`change` takes a local part from one layout to another by one step; `run` takes it along a path.
None of them records anything for autograd: `crossing.py` pairs a forward with a backward path.
Shares may be uneven (rank_mesh.py): they travel padded to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwise.advise.layout import REPLICATE
from shardwise.errors import ShardwiseError
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of


@dataclass(frozen=True)
class Change:
    """One step: the collective, the axes that it runs over, the layouts before and after."""

    operation: str
    axes: tuple[int, ...]
    before: Layout
    after: Layout


def parse_layout(words: Sequence[str]) -> Layout:
    """The file form of a layout, one word per axis, as numbers (advise/layout.py `describe`)."""
    known = {"replicate": -1, "partial": -2}
    return tuple(
        known[word] if word in known else int(word.removeprefix("shard(").removesuffix(")"))
        for word in words
    )


def parse_path(mesh: RankMesh, start: Layout, steps: Sequence[dict[str, Any]]) -> list[Change]:
    """A plan's sequence of steps from layout `start`."""
    path = []
    for step in steps:
        after = parse_layout(step["result"])
        path.append(Change(step["operation"], mesh.numbers(step["axes"]), start, after))
        start = after
    return path


def run(x: torch.Tensor, path: Sequence[Change], mesh: RankMesh, shape: Sequence[int]) -> Any:
    """The local part of a tensor of global `shape` after every step of the path."""
    for step in path:
        x = change(x, step, mesh, shape)
    return x


def change(x: torch.Tensor, step: Change, mesh: RankMesh, shape: Sequence[int]) -> torch.Tensor:
    """The local part after one step."""
    state = step.before[step.axes[0]]
    target = step.after[step.axes[0]]
    match step.operation:
        case "slice":
            return narrow(x, target, mesh, step.axes)
        case "mask":
            return x if mesh.index(step.axes) == 0 else torch.zeros_like(x)
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
    """The extent of `dim` on this rank once the step's axes no longer split it."""
    left = [REPLICATE if a in step.axes else s for a, s in enumerate(step.before)]
    return len(mesh.share(shape[dim], axes_of(tuple(left), dim)))


def narrow(x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int]) -> torch.Tensor:
    """This rank's share of `dim`; contiguous, so that it keeps no more than itself."""
    share = mesh.share(x.shape[dim], axes)
    return x.narrow(dim, share.start, len(share)).contiguous()


def all_reduce(
    x: torch.Tensor, mesh: RankMesh, axes: Sequence[int], operation: Any = None
) -> torch.Tensor:
    """The sum (or `operation`, a `dist.ReduceOp`) over the axes, in a new tensor."""
    whole = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole, operation or dist.ReduceOp.SUM, group=mesh.group(axes))
    return whole


def all_gather(
    x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int], extent: int
) -> torch.Tensor:
    """The shares of `dim` (together `extent` elements) of all ranks along the axes, in order."""
    lengths = mesh.shares(extent, axes)
    parts = len(lengths)
    x = _front(x, dim)
    step = max(lengths)
    own = _padded(x, step)
    flat = own.new_empty((parts * step, *own.shape[1:]))
    dist.all_gather_into_tensor(flat, own, group=mesh.group(axes))
    return _back(_without_padding(flat, lengths, step), dim)


def reduce_scatter(x: torch.Tensor, dim: int, mesh: RankMesh, axes: Sequence[int]) -> torch.Tensor:
    """This rank's share of `dim` of the sum over the axes."""
    lengths = mesh.shares(x.shape[dim], axes)
    step = max(lengths)
    given = _with_padding(_front(x, dim), lengths, step)
    made = given.new_empty((step, *given.shape[1:]))
    dist.reduce_scatter_tensor(made, given, group=mesh.group(axes))
    return _back(made[: lengths[mesh.index(axes)]], dim)


def all_to_all(
    x: torch.Tensor, state: int, target: int, mesh: RankMesh, axes: Sequence[int], extent: int
) -> torch.Tensor:
    """From shares of dimension `state` (together `extent`) to shares of dimension `target`."""
    sent = mesh.shares(x.shape[target], axes)
    got = mesh.shares(extent, axes)
    mine = mesh.index(axes)
    pieces = [piece.contiguous().view(-1) for piece in x.split(sent, dim=target)]
    shape = list(x.shape)
    shape[target] = sent[mine]
    others = []
    for length in got:
        shape[state] = length
        others.append(tuple(shape))
    counts = [torch.Size(s).numel() for s in others]
    flat = x.new_empty(sum(counts))
    dist.all_to_all_single(
        flat,
        torch.cat(pieces),
        counts,
        [piece.numel() for piece in pieces],
        group=mesh.group(axes),
    )
    received = [part.view(s) for part, s in zip(flat.split(counts), others, strict=True)]
    return torch.cat(received, dim=state)


def _front(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.movedim(dim, 0).contiguous()


def _back(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.movedim(0, dim).contiguous()


def _padded(x: torch.Tensor, length: int) -> torch.Tensor:
    if x.shape[0] == length:
        return x
    whole = x.new_zeros((length, *x.shape[1:]))
    whole[: x.shape[0]] = x
    return whole


def _with_padding(x: torch.Tensor, lengths: Sequence[int], step: int) -> torch.Tensor:
    if all(length == step for length in lengths):
        return x
    return torch.cat([_padded(piece, step) for piece in x.split(list(lengths))])


def _without_padding(flat: torch.Tensor, lengths: Sequence[int], step: int) -> torch.Tensor:
    if all(length == step for length in lengths):
        return flat
    pieces = [flat[p * step : p * step + length] for p, length in enumerate(lengths)]
    return torch.cat(pieces)
