"""What a graph says of the training step that it is: its batch, its sequences, dtype and loss.

The optimizer is not in a graph, which is forward only: each question chooses it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardwise.graph.graph import Graph, Operator, Tensor

INTEGERS = frozenset({"int32", "int64"})
_LOSSES = ("cross_entropy", "loss", "kl_div")
"""Parts of the names of operators that compare predictions with targets."""


@dataclass(frozen=True)
class Step:
    """`batch` counts samples, `seq` the tokens of the longest sequence of a sample.

    `dtype` is that of most parameters, `loss` the kind of the operator that makes the loss
    (`aten.cross_entropy_loss.default`); each is None where the graph does not say.
    `predicts_tokens` holds for language models: the loss has a class for every token.
    """

    batch: int | None
    seq: int | None
    dtype: str | None
    loss: str | None
    predicts_tokens: bool


def step_of(graph: Graph) -> Step:
    """Returns what the graph says of its step."""
    loss = _loss(graph)
    sequences = [t.shape[1 - (t.batch_dim or 0)] for t in _token_ids(graph)]
    return Step(
        batch=graph.batch_size,
        seq=max(sequences, default=None),
        dtype=_dtype(graph),
        loss=None if loss is None else loss.kind,
        predicts_tokens=bool(sequences) and loss is not None and _classifies_tokens(loss, graph),
    )


def loss_name(kind: str) -> str:
    """Returns `cross entropy` for `aten.cross_entropy_loss.default`."""
    name = kind.partition(".")[2].partition(".")[0] or kind
    words = name.strip("_").removesuffix("_loss").removesuffix("_with_logits")
    return words.replace("_", " ")


def _token_ids(graph: Graph) -> list[Tensor]:
    """Returns the inputs that are whole numbers in two dimensions: samples and tokens."""
    return [
        tensor
        for tensor in graph.tensors.values()
        if tensor.role == "input" and tensor.dtype in INTEGERS and len(tensor.shape) == 2
    ]


def _dtype(graph: Graph) -> str | None:
    elements: Counter[str] = Counter()
    for tensor in graph.tensors.values():
        if tensor.role == "parameter":
            elements[tensor.dtype] += tensor.elements
    return max(elements, key=elements.__getitem__, default=None)


def _loss(graph: Graph) -> Operator | None:
    """Returns the loss: the last one among the operators that scalar outputs are made of."""
    scalars = [t.name for t in graph.tensors.values() if t.role == "output" and t.elements == 1]
    seen: set[str] = set()
    while scalars:
        name = scalars.pop()
        operator = graph.producer.get(name)
        if operator is None or name in seen:
            continue
        seen.add(name)
        if any(part in operator.kind for part in _LOSSES):
            return operator
        scalars += [n for n in operator.inputs if graph.tensors[n].elements == 1]
    return None


def _classifies_tokens(loss: Operator, graph: Graph) -> bool:
    """Returns whether a cross entropy has more targets than there are samples."""
    if "cross_entropy" not in loss.kind and "nll_loss" not in loss.kind:
        return False
    targets = [t for n in loss.inputs[1:2] if (t := graph.tensors[n]).dtype in INTEGERS]
    return any(target.elements > (graph.batch_size or 1) for target in targets)
