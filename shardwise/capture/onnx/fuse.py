"""Fuses runs of nodes that exporters write for one PyTorch operator into one node.

- attention: `softmax(√s·q @ (√s·k)ᵀ + mask) @ v`, both factors scaled, is how exporters write
  scaled_dot_product_attention; attention that a model spells out itself scales once and stays.
- recurrent layers: exporters write one LSTM or GRU per layer, with the layout changed before and
  after; PyTorch has one operator for the stack.
- `x · sigmoid(x)` (silu), `x/2 · (1 + erf(x/√2))` (gelu), `1 / sqrt(x)` (rsqrt).
- `x @ Wᵀ + b` with a weight is one linear layer: see translate.

What backward keeps differs between a run and its operator, so this also affects memory.
"""

from __future__ import annotations

from shardwise.capture.onnx.activations import fuse_activations
from shardwise.capture.onnx.attention import fuse_attention
from shardwise.capture.onnx.program import Program
from shardwise.capture.onnx.recurrent import fuse_recurrent


def fuse(program: Program) -> None:
    """Replaces the runs above, in place."""
    for rule in (fuse_attention, fuse_recurrent, fuse_activations):
        rule(program)
        program.link()
