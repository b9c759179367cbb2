"""The network's parameters, by name and shape: the one definition for numpy and torch.

attention.i.*     graph attention over operator groups and places (Veličković et al. 2018)
unit.*            g_n = σ(Σ W e_o) over the groups of a unit (HeteroG §4.1.1)
layer.i.*         the strategy network, a Transformer over units, norms first
action.*          embedding of an action from its shares at the places
score.*           the bilinear score of a unit and an action
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP_FEATURES = 18
PLACE_FEATURES = 9
EDGE_VALUES = 2
RELATIONS = 6
"""Kinds of edges: to itself, data, data backwards, link, group to place, place to group."""
UNIT_FEATURES = 10
SHARE_FEATURES = 7
"""Of an action at a place."""
ACTION_FEATURES = 12

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Size:
    """The numbers of layers and heads, and the widths, of encoder and strategy network.

    At most `most_units` units are decided; with `by_class` like layers are one unit.
    """

    name: str
    attention_layers: int
    attention_heads: int
    width: int
    layers: int
    heads: int
    hidden: int
    most_units: int
    by_class: bool


STANDARD = Size("standard", 4, 4, 64, 4, 4, 128, 64, by_class=True)
PAPER = Size("paper", 12, 8, 128, 8, 8, 256, 2000, by_class=False)
"""HeteroG §5: 12 attention layers of 8 heads, 8 Transformer layers, 2000 groups; it gives no
widths."""
SIZES: Mapping[str, Size] = {size.name: size for size in (STANDARD, PAPER)}


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by name; those named `.b` are added, not multiplied."""
    width, hidden, heads = size.width, size.hidden, size.attention_heads
    found: dict[str, tuple[int, ...]] = {
        "group.w": (GROUP_FEATURES, width), "group.b": (width,),
        "place.w": (PLACE_FEATURES, width), "place.b": (width,),
    }  # fmt: skip
    edge = RELATIONS + EDGE_VALUES
    for i in range(size.attention_layers):
        found |= {
            f"attention.{i}.w": (width, width), f"attention.{i}.b": (width,),
            f"attention.{i}.source": (heads, width // heads),
            f"attention.{i}.target": (heads, width // heads),
            f"attention.{i}.edge": (edge, heads), f"attention.{i}.message": (edge, width),
        }  # fmt: skip
    found |= {
        "unit.w": (width, hidden), "unit.b": (hidden,), "unit.features": (UNIT_FEATURES, hidden),
    }  # fmt: skip
    for i in range(size.layers):
        found |= {
            f"layer.{i}.qkv.w": (hidden, 3 * hidden), f"layer.{i}.qkv.b": (3 * hidden,),
            f"layer.{i}.out.w": (hidden, hidden), f"layer.{i}.out.b": (hidden,),
            f"layer.{i}.up.w": (hidden, 4 * hidden), f"layer.{i}.up.b": (4 * hidden,),
            f"layer.{i}.down.w": (4 * hidden, hidden), f"layer.{i}.down.b": (hidden,),
        }  # fmt: skip
    return found | {
        "action.share.w": (SHARE_FEATURES, hidden), "action.share.b": (hidden,),
        "action.place.w": (width, hidden), "action.sum.w": (hidden, hidden),
        "action.w": (ACTION_FEATURES, hidden), "action.b": (hidden,),
        "action.out.w": (hidden, hidden), "action.out.b": (hidden,),
        "score.w": (hidden, hidden), "score.action": (hidden,),
    }  # fmt: skip


def initial(size: Size, seed: int) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters before any training; the same seed gives the same."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(size).items():
        if name.endswith(".b"):
            found[name] = np.zeros(shape, dtype=np.float32)
        else:
            values = draw.standard_normal(shape) / np.sqrt(shape[0])
            found[name] = values.astype(np.float32)
    return found
