"""Attention on shares of batch, heads and queries; keys and values of a share's heads are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.plain import plain
from shardwise.execute.local.random_numbers import seeded
from shardwise.execute.local.registry import form
from shardwise.execute.local.ring_attention import (
    Piece,
    Ring,
    blocks_of,
    pieces_of_rows,
    positions_of,
)
from shardwise.execute.local.share import NotLocal, Share


@form(
    "scaled_dot_product_attention.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
    "_scaled_dot_product_attention_math.default",
)
def attention(share: Share) -> Run:
    """Runs the overload; a share of the queries gets its own part of the causal mask, block by
    block where that is exact, and keys and values go round where they are split with the queries.
    """
    merging, dims = share.semantics.merging, len(share.inputs[0].shape)
    rows = share.input_rows(0, dims - 2)
    causal = bool(share.attributes["is_causal"])
    if merging is not None and merging.ring is not None:
        if share.axes(merging.ring):
            return _in_a_ring(share, rows, merging.pieces, share.axes(merging.ring), causal)
        if causal and (merging.pieces or share.input_axes(0, dims - 2)):
            return _in_blocks(share, rows, merging.pieces)
        return plain(share)
    split = bool(share.input_axes(0, dims - 2))
    run = _masked(share, [*rows]) if split and causal else plain(share)
    if share.attributes["dropout_p"]:
        run = seeded(share, run, share.axes(*share.variables))
    return run


def _in_a_ring(share: Share, rows: range, pieces: int, axes: tuple[int, ...], causal: bool) -> Run:
    """Attends to the keys of one rank after the other."""
    extent, mesh = share.inputs[1].shape[-2], share.exchange.mesh
    counts = mesh.shares(extent, axes)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    index = mesh.index(axes)
    queries = pieces_of_rows(rows, extent, pieces)
    of_shares = [
        pieces_of_rows(range(start, start + count), extent, pieces)
        for start, count in zip(starts, counts, strict=True)
    ]
    in_turn = [of_shares[(index - step) % len(counts)] for step in range(len(counts))]
    blocks = [blocks_of(queries, keys, causal=causal) for keys in in_turn]
    ring = Ring(blocks, mesh, axes, counts, share.attributes["scale"])
    return lambda q, k, v: [ring.attend(q, k, v)]


def _in_blocks(share: Share, rows: range, pieces: int) -> Run:
    """Attends to those of all keys that causal queries see; where the sequence is in zigzag order,
    keys are put in their own first."""
    extent = share.inputs[1].shape[-2]
    queries, whole = (pieces_of_rows(r, extent, pieces) for r in (rows, range(extent)))
    positions = positions_of(whole)
    masked = _masked(share, positions_of(queries), positions if pieces else None)
    share.is_plain = False
    blocks = blocks_of(queries, [Piece(0, range(extent))], causal=True)
    ring = Ring([blocks], share.mesh, (), [extent], share.attributes["scale"])
    places = [0] * extent
    for place, position in enumerate(positions):
        places[position] = place
    natural: dict[Any, torch.Tensor] = {}

    def run(q: Any, k: Any, v: Any) -> list[Any]:
        if torch.compiler.is_compiling():
            return masked(q, k, v)
        if pieces:
            if k.device not in natural:
                natural[k.device] = torch.tensor(places, device=k.device)
            k, v = (x.index_select(2, natural[k.device]) for x in (k, v))
        return [ring.attend(q, k, v)]

    return run


@form("shardwise.sink_attention.default")
def sink_attention(share: Share) -> Run:
    """Runs the operator, which is told the position of the first query of a share."""
    rows = share.input_rows(0, 2)
    return plain(share, {"first": share.attributes["first"] + rows.start})


def _masked(share: Share, rows: Sequence[int], columns: Sequence[int] | None = None) -> Run:
    """Lets a query see keys of its position and before; a mask replaces `is_causal`, which counts
    local rows. `rows` and `columns` are positions."""
    mask_name = {"aten._scaled_dot_product_efficient_attention.default": "attn_bias"}.get(
        share.op.kind, "attn_mask"
    )
    named = [a.name for a in share.target._schema.arguments]
    if mask_name not in named or share.argument(mask_name) is not None or "bias" in mask_name:
        raise NotLocal("shares of the queries of a causal kernel without a mask")
    plain(share)
    keys = columns or range(share.inputs[1].shape[-2])
    attributes = {k: v for k, v in share.attributes.items() if k != mask_name}
    attributes["is_causal"] = False
    whole = bind(share.target, [*share.arguments, mask_name], attributes, len(share.outputs))
    boolean = share.op.kind == "aten.scaled_dot_product_attention.default"
    masks: dict[Any, torch.Tensor] = {}

    def mask_of(x: torch.Tensor) -> torch.Tensor:
        # Made where it is used: a region that is traced may not take a tensor from outside.
        before = torch.tensor([*keys], device=x.device)[None, :]
        allowed = before <= torch.tensor([*rows], device=x.device)[:, None]
        if boolean:
            return allowed
        return torch.zeros_like(allowed, dtype=x.dtype).masked_fill_(~allowed, -torch.inf)

    def run(*x: Any) -> list[Any]:
        if torch.compiler.is_compiling():
            return whole(*x, mask_of(x[0]))
        key = (x[0].device, x[0].dtype)
        if key not in masks:
            masks[key] = mask_of(x[0])
        return whole(*x, masks[key])

    return run
