"""Small calls of every shipped description: what `verify`, the tests and docs/operators.md run.

Importing this registers them.
"""

from shardwise.tdl.examples import (
    attention,
    complexes,
    convolution,
    elementwise,
    fused,
    linear_algebra,
    lookup,
    losses,
    normalisation,
    pointwise,
    pooling,
    products,
    rearranging,
    recurrent,
    reductions,
    resampling,
    scans,
    scatter,
    views,
)

__all__ = [
    "attention",
    "complexes",
    "convolution",
    "elementwise",
    "fused",
    "linear_algebra",
    "lookup",
    "losses",
    "normalisation",
    "pointwise",
    "pooling",
    "products",
    "rearranging",
    "recurrent",
    "reductions",
    "resampling",
    "scans",
    "scatter",
    "views",
]
