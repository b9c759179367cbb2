"""The graph of one training step: its types, its canonical file form, its content id."""

from shardwise.graph.document import (
    canonical_json,
    content_id,
    graph_document,
    graph_from_document,
    graph_from_json,
    graph_id,
)
from shardwise.graph.files import read_graph, write_graph
from shardwise.graph.graph import DTYPE_BYTES, FLOAT_DTYPES, Graph, Operator, Tensor

__all__ = [
    "DTYPE_BYTES",
    "FLOAT_DTYPES",
    "Graph",
    "Operator",
    "Tensor",
    "canonical_json",
    "content_id",
    "graph_document",
    "graph_from_document",
    "graph_from_json",
    "graph_id",
    "read_graph",
    "write_graph",
]
