"""Attention on shares of batch, heads and queries; keys and values of a share's heads are whole."""

from __future__ import annotations

from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.plain import plain
from shardwise.execute.local.random_numbers import seeded
from shardwise.execute.local.registry import form
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
    """Runs the overload; a share of the queries gets its own part of the causal mask."""
    query = share.inputs[0].shape
    rows = share.input_rows(0, len(query) - 2)
    split = bool(share.input_axes(0, len(query) - 2))
    run = _causal(share, rows) if split and share.attributes["is_causal"] else plain(share)
    if share.attributes["dropout_p"]:
        run = seeded(share, run, share.axes(*share.variables))
    return run


@form("shardwise.sink_attention.default")
def sink_attention(share: Share) -> Run:
    """Runs the operator, which is told the position of the first query of a share."""
    rows = share.input_rows(0, 2)
    return plain(share, {"first": share.attributes["first"] + rows.start})


def _causal(share: Share, rows: range) -> Run:
    """Lets query r attend to keys 0 … r; a mask replaces `is_causal`, which counts local rows."""
    mask_name = {"aten._scaled_dot_product_efficient_attention.default": "attn_bias"}.get(
        share.op.kind, "attn_mask"
    )
    named = [a.name for a in share.target._schema.arguments]
    if mask_name not in named or share.argument(mask_name) is not None or "bias" in mask_name:
        raise NotLocal("shares of the queries of a causal kernel without a mask")
    plain(share)
    keys = share.inputs[1].shape[-2]
    attributes = {k: v for k, v in share.attributes.items() if k != mask_name}
    attributes["is_causal"] = False
    whole = bind(share.target, [*share.arguments, mask_name], attributes, len(share.outputs))
    boolean = share.op.kind == "aten.scaled_dot_product_attention.default"
    masks: dict[Any, torch.Tensor] = {}

    def mask_of(x: torch.Tensor) -> torch.Tensor:
        # Made where it is used: a region that is traced may not take a tensor from outside.
        keys_before = torch.arange(keys, device=x.device)[None, :]
        allowed = keys_before <= torch.arange(rows.start, rows.stop, device=x.device)[:, None]
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
