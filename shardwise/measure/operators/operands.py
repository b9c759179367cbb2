"""Operands for a call: of the right shapes, laid out in memory as in the graph, with valid values.

Integers are drawn below what the call can take: rows of a table, classes, positions along a
dimension; if nothing says how many there are, 0 and 1 are always valid.
"""

from __future__ import annotations

from math import prod
from typing import Any

from shardwise.hardware.operator_tables import Shapes
from shardwise.measure.operators.needed import OperatorItem
from shardwise.sharding.strides import strides_of

ALONG = ("gather", "scatter", "index_select", "take_along_dim", "index_add", "index_copy")
"""Operators whose index counts along their attribute `dim`."""


def operands(torch: Any, item: OperatorItem, device: Any) -> dict[str, Any]:
    """Returns the tensors of a call by argument name; those that get a gradient require it."""
    family = item.family
    tensors = {}
    for i, name in enumerate(family.arguments):
        bound = _bound(item, name)
        tensor = _tensor(torch, item.shapes[i], family.dtypes[i], family.strides[i], bound, device)
        tensors[name] = tensor.requires_grad_(True) if family.gradients[i] else tensor
    return tensors


def bytes_of(item: OperatorItem, item_bytes: Any) -> float:
    """Returns the bytes of operands and outputs, without gradients; `item_bytes` is by dtype."""
    inputs = zip(item.shapes, item.family.dtypes, strict=False)
    taken = sum(prod(shape) * item_bytes[dtype] for shape, dtype in inputs)
    outputs: Shapes = item.shapes[len(item.family.dtypes) :]
    widest = max((item_bytes[dtype] for dtype in item.family.dtypes), default=4)
    return float(taken + sum(prod(shape) for shape in outputs) * widest)


def _tensor(
    torch: Any, shape: tuple[int, ...], dtype: str, strides: str, bound: int, device: Any
) -> Any:
    steps = strides_of(shape, strides)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True) if n > 0)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        # A mask that hides everything would leave a softmax without elements.
        flat = torch.rand(extent, device=device) < 0.9
    elif kind.is_floating_point or kind.is_complex:
        flat = torch.rand(extent, device=device).add_(0.5).to(kind)
    else:
        flat = torch.randint(0, max(bound, 1), (extent,), device=device).to(kind)
    return torch.as_strided(flat, shape, steps)


def _bound(item: OperatorItem, name: str) -> int:
    """Returns the bound that integers of this argument must stay below."""
    family = item.family
    shape_of = dict(zip(family.arguments, item.shapes, strict=False))
    stem = family.kind.split(".")[1] if "." in family.kind else family.kind
    first = item.shapes[0] if item.shapes else ()
    if "embedding" in stem:
        return shape_of["weight"][0] if "weight" in shape_of else first[0]
    if name == "target" and first:
        return first[1] if len(first) > 1 else first[0]
    if any(stem.startswith(word) for word in ALONG):
        return first[item.attributes.get("dim", 0)] if first else 2
    base, _, place = name.partition(".")
    if base == "indices" and place and stem.startswith(("index", "_unsafe_index")):
        return min(first, default=2)
    if "num_classes" in item.attributes:
        return int(item.attributes["num_classes"])
    return 2
