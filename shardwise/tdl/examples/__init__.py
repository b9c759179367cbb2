"""Small calls of every shipped description, for `verify`, tests and tools/operators_table.py.

`verification.examples_of` loads them; nothing else at run time does.
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
