"""The shipped descriptions, one file per family; importing this registers them."""

from shardwise.tdl.descriptions import (
    attention,
    convolution,
    elementwise,
    factories,
    linear_algebra,
    lookup,
    losses,
    normalisation,
    reductions,
    views,
)

__all__ = [
    "attention",
    "convolution",
    "elementwise",
    "factories",
    "linear_algebra",
    "lookup",
    "losses",
    "normalisation",
    "reductions",
    "views",
]
