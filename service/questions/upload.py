"""Uploaded graphs, and reading those in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.base.json_body import read_json
from service.questions.cost_model import MOST_DIMS
from shardwise.errors import BadInput
from shardwise.folding import unfolded_count
from shardwise.graph import Graph, canonical_json, graph_from_document, graph_id
from shardwise.step_sizes import NAMES, StepSizes


@dataclass(frozen=True)
class Upload:
    """A graph that was read: content id, canonical JSON, summary for lists."""

    id: str
    canonical: bytes
    summary: dict[str, Any]


def read_json_upload(
    body: bytes, max_depth: int, max_operators: int, sizes: Mapping[str, int]
) -> Upload:
    """Returns the graph of a JSON body. Raises BadInput or a Problem with the reason."""
    return document_upload(read_json(body, max_depth), max_operators, sizes)


def document_upload(document: object, max_operators: int, sizes: Mapping[str, int]) -> Upload:
    """Returns the graph of a decoded body, of these sizes. Raises BadInput with the reason."""
    if unknown := sizes.keys() - set(NAMES):
        raise BadInput(
            "applies only to ONNX files", field=min(unknown), expected=" or ".join(NAMES)
        )
    operators = document.get("operators") if isinstance(document, dict) else None
    if isinstance(operators, list):
        require_operators(unfolded_count(operators), max_operators)
    return upload_of(graph_from_document(document, sizes=StepSizes(**sizes)))


def require_operators(number: int, most: int) -> None:
    """Raises BadInput for a graph with more than `most` operators."""
    if number > most:
        raise BadInput(f"{number} operators", field="operators", expected=f"at most {most}")


def upload_of(graph: Graph) -> Upload:
    """Returns a checked graph in the form in which it is stored."""
    roles: dict[str, int] = {}
    parameters = 0
    parameter_bytes = 0
    for tensor in graph.tensors.values():
        roles[tensor.role] = roles.get(tensor.role, 0) + 1
        if tensor.role == "parameter":
            parameters += tensor.elements
            parameter_bytes += tensor.size_bytes
    summary = {
        "name": graph.name,
        "operators": len(graph.operators),
        "tensors": roles,
        "parameters": parameters,
        "parameter_bytes": parameter_bytes,
        "batch_size": graph.batch_size,
        MOST_DIMS: max(
            (len(t.shape) for t in graph.tensors.values() if t.role == "parameter"), default=0
        ),
    }
    return Upload(graph_id(graph), canonical_json(graph), summary)
