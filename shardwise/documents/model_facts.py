"""What a graph shows of a decoder, as far as a trainer's file has to say it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Norm = Literal["LayerNorm", "RMSNorm"]
Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]


class ModelFacts(msgspec.Struct, frozen=True):
    """The sizes and options of a decoder of equal blocks; null what its graph does not show.

    `dropout` is the probability outside of attention, `attention_dropout` that inside; 0 without.
    `bias` holds where products of blocks add one, `qkv_bias` where those of queries, keys and
    values do. `gated` feed-forward layers multiply the activation by another product.
    `position_rows` counts the rows of a table of learned positions. `query_key_norm`: queries and
    keys have norms of their own. `rotary_base` is of the preset, since a graph has no values;
    `rotary_share` is the part of a head that rotates. In a `parallel` block feed-forward does not
    read attention. A mixture has `experts` of `expert_feed_forward`, of which each token takes
    `experts_per_token`; its `feed_forward` is that of the experts that all tokens share, if any.
    """

    layers: int
    hidden: int
    vocabulary: int
    heads: int | None = None
    key_value_heads: int | None = None
    head_size: int | None = None
    feed_forward: int | None = None
    gated: bool | None = None
    activation: Activation | None = None
    norm: Norm | None = None
    norm_epsilon: float | None = None
    query_key_norm: bool = False
    bias: bool | None = None
    qkv_bias: bool | None = None
    positions: Positions | None = None
    position_rows: int | None = None
    rotary_base: float | None = None
    rotary_share: float | None = None
    tied: bool = False
    parallel: bool = False
    causal: bool | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    experts: int | UnsetType = UNSET
    experts_per_token: int | UnsetType = UNSET
    expert_feed_forward: int | UnsetType = UNSET


def facts_text(facts: ModelFacts) -> str:
    """Returns text such as `32 layers, RMSNorm, no biases, rotary positions, no dropout, …`."""
    parts = [
        f"{facts.layers} layers of width {facts.hidden:,}",
        facts.norm,
        {True: "biases", False: "no biases"}.get(bool(facts.bias or facts.qkv_bias)),
        f"{facts.positions} positions" if facts.positions else None,
        dropout_text(facts),
        f"{facts.experts} experts" if facts.experts else None,
        "tied embeddings" if facts.tied else "untied embeddings",
        f"{facts.vocabulary:,} words without padding",
    ]
    return ", ".join(part for part in parts if part)


def dropout_text(facts: ModelFacts) -> str | None:
    """Returns the probabilities of dropout, None where the graph has several or shows none."""
    if facts.dropout is None:
        return None
    inside = facts.attention_dropout
    if inside is None or inside == facts.dropout:
        return f"dropout {facts.dropout:g}" if facts.dropout else "no dropout"
    return f"dropout {facts.dropout:g}, in attention {inside:g}"


def differences(facts: ModelFacts, other: ModelFacts) -> dict[str, tuple[object, object]]:
    """Returns the members that both have and in which they differ, with the values of both."""
    pairs = {name: (getattr(facts, name), getattr(other, name)) for name in facts.__struct_fields__}
    return {
        name.replace("_", " "): (own, theirs)
        for name, (own, theirs) in pairs.items()
        if own != theirs and own is not None and theirs is not None
    }
