"""The graph of one training step: its types, its canonical file form, its content id."""

from shardwise.graph.graph import DTYPE_BYTES, FLOAT_DTYPES, Graph, Operator, Tensor

__all__ = ["DTYPE_BYTES", "FLOAT_DTYPES", "Graph", "Operator", "Tensor"]
