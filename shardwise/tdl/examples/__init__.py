"""Small calls of every shipped description: what `verify`, the tests and docs/operators.md run.

One file per family, as in `descriptions`; importing this registers them.
"""

from shardwise.tdl.examples import (
    attention,
    convolution,
    elementwise,
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
    "linear_algebra",
    "lookup",
    "losses",
    "normalisation",
    "reductions",
    "views",
]
