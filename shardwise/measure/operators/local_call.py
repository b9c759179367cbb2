"""The attributes of a call on local shapes: a graph file has the sizes of whole tensors."""

from __future__ import annotations

from typing import Any

from shardwise.cost.operator_family import ARGUMENTS
from shardwise.graph.graph import Operator
from shardwise.hardware.operator_tables import Shapes

OF_OUTPUT = ("size", "sizes", "shape", "output_size")
"""Attributes that are the last extents of the first output."""


def local_attributes(operator: Operator, whole: Shapes, local: Shapes) -> dict[str, Any]:
    """Returns the attributes of `operator` if its inputs and outputs have `local` shapes.

    `whole` and `local` are the shapes of the inputs, then of the outputs.
    """
    given = {name: value for name, value in operator.attributes.items() if name != ARGUMENTS}
    first = local[0] if operator.inputs else ()
    outputs = local[len(operator.inputs) :]
    for name, value in given.items():
        if name == "normalized_shape":
            given[name] = list(first[len(first) - len(value) :])
        elif name in OF_OUTPUT and isinstance(value, list | tuple) and outputs:
            given[name] = list(outputs[0][len(outputs[0]) - len(value) :])
        elif name in ("groups", "num_groups", "group") and len(first) > 1:
            given[name] = max(value * first[1] // max(whole[0][1], 1), 1)
        elif name in ("N", "C") and len(first) > 1:
            given[name] = first[0] if name == "N" else first[1]
        elif name == "HxW" and len(first) > 1:
            count = 1
            for extent in first[2:]:
                count *= extent
            given[name] = count
        elif name == "repeats" and isinstance(value, list | tuple) and outputs:
            given[name] = _repeats(value, whole, local, len(operator.inputs))
        elif name == "num_classes" and outputs:
            given[name] = outputs[0][-1]
    return given


def _repeats(value: list[int] | tuple[int, ...], whole: Shapes, local: Shapes, inputs: int) -> Any:
    """Returns how often each dimension is repeated; input and output may be split."""
    padded = (1,) * (len(value) - len(local[0])) + local[0]
    output = local[inputs]
    return [out // max(extent, 1) for out, extent in zip(output, padded, strict=True)]
