"""Reading and writing at indices, and operators without inputs."""

from __future__ import annotations

import numpy as np

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _gather(b: Builder, n: Node) -> None:
    """Emits an embedding for rows of a table, a select for one known place, else indexing."""
    data, indices = n.inputs
    rank = b.rank(data)
    axis = n.attributes.get("axis", 0) % rank
    place = b.number(indices)
    if b.is_weight(data) and rank == 2 and axis == 0 and (place is None or b.rank(indices)):
        attributes = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
        given = [("weight", data), ("indices", indices)]
        b.emit("aten.embedding.default", given, attributes, n.outputs, n)
    elif place is not None and not b.rank(indices):
        index = int(place) % b.shape(data)[axis]
        attributes = {"dim": axis, "index": index}
        b.emit("aten.select.int", [("self", data)], attributes, n.outputs, n)
    elif _is_range(b, indices):
        array = b.constant(indices)
        first = 0 if array is None else int(array.reshape(-1)[0])
        attributes = {"dim": axis, "start": first, "end": first + b.shape(indices)[0], "step": 1}
        b.emit("aten.slice.Tensor", [("self", data)], attributes, n.outputs, n)
    elif b.rank(indices) == 1:
        given = [("self", data), ("index", indices)]
        b.emit("aten.index_select.default", given, {"dim": axis}, n.outputs, n)
    else:
        given = [("self", data), (f"indices.{axis}", indices)]
        b.emit("aten.index.Tensor", given, {}, n.outputs, n)


def _is_range(b: Builder, indices: str) -> bool:
    array = b.constant(indices)
    if array is None or array.ndim != 1 or not array.size or array[0] < 0:
        return False
    return bool(np.array_equal(array, np.arange(array[0], array[0] + array.size)))


def _gather_elements(b: Builder, n: Node) -> None:
    attributes = {"dim": n.attributes.get("axis", 0) % b.rank(n.inputs[0]), "sparse_grad": False}
    given = [("self", n.inputs[0]), ("index", n.inputs[1])]
    b.emit("aten.gather.default", given, attributes, n.outputs, n)


def _gather_nd(b: Builder, n: Node) -> None:
    """Splits the last dimension's index tuples; PyTorch has one tensor for each position."""
    data, indices = n.inputs
    if n.attributes.get("batch_dims", 0):
        raise NotTranslated("indices that differ by sample")
    shape = b.shape(indices)
    given: list[Argument] = [("self", data)]
    for place in range(shape[-1]):
        part = b.temporary(shape[:-1], b.dtype(indices))
        attributes = {"dim": len(shape) - 1, "index": place}
        b.emit("aten.select.int", [("self", indices)], attributes, [part], n)
        given.append((f"indices.{place}", part))
    b.emit("aten.index.Tensor", given, {}, n.outputs, n)


def _scatter_elements(b: Builder, n: Node) -> None:
    attributes: dict[str, object] = {"dim": n.attributes.get("axis", 0) % b.rank(n.inputs[0])}
    given = [("self", n.inputs[0]), ("index", n.inputs[1]), ("src", n.inputs[2])]
    how = n.attributes.get("reduction", "none")
    if how == "none":
        b.emit("aten.scatter.src", given, attributes, n.outputs, n)
    elif how == "add":
        b.emit("aten.scatter_add.default", given, attributes, n.outputs, n)
    else:
        raise NotTranslated(f"scatter with {how}")


def _range(b: Builder, n: Node) -> None:
    numbers = [b.number(name) for name in n.inputs]
    if None in numbers:
        raise NotTranslated("a computed range")
    attributes = dict(zip(("start", "end", "step"), numbers, strict=True))
    attributes["dtype"] = b.dtype(n.outputs[0])  # type: ignore[assignment]
    b.emit("aten.arange.start_step", [], attributes, n.outputs, n)


def _filled(b: Builder, n: Node) -> None:
    attributes = {"size": list(b.shape(n.outputs[0])), "dtype": b.dtype(n.outputs[0])}
    b.emit("aten.full.default", [], attributes, n.outputs, n)


RULES: dict[str, Rule] = {
    "Gather": Rule(
        _gather,
        "aten.embedding.default, aten.select.int, aten.slice.Tensor, aten.index_select.default, "
        "aten.index.Tensor",
    ),
    "GatherElements": Rule(_gather_elements, "aten.gather.default"),
    "GatherND": Rule(_gather_nd, "aten.index.Tensor"),
    "ScatterElements": Rule(_scatter_elements, "aten.scatter.src, aten.scatter_add.default"),
    "Range": Rule(_range, "aten.arange.start_step"),
    "ConstantOfShape": Rule(_filled, "aten.full.default"),
}
