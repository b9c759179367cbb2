"""Operators that multiply two of their inputs: each factor is kept for the gradient of the other.

What backward keeps (`sharding/pattern.py`), computes (`sharding/pattern.py`, `cost/`) and reads
follows from which of the two needs a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

FACTORS: Mapping[str, tuple[int, int]] = {
    "aten.mul.Tensor": (0, 1),
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.matmul.default": (0, 1),
    "aten.linear.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
    "aten.conv1d.default": (0, 1),
    "aten.conv2d.default": (0, 1),
    "aten.conv3d.default": (0, 1),
    "shardwise.expert_linear.default": (0, 1),
}
"""The positions of the factors among the inputs, by kind of operator."""
