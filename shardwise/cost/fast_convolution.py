"""Convolutions that libraries compute with fewer operations than their definition has.

Winograd's minimal filtering computes an m × m tile of a 3 × 3 convolution of stride 1 with
(m + 2)² products a channel pair in place of 9 m² (Lavin & Gray 2016, §4): 2.25 times fewer for
m = 2. How many fewer a device's library takes is in its profile (`fast_convolution_saving`),
by dtype. Counting the definition's operations against the peak makes VGG16 on a V100 twice as
slow as it is measured (docs/reference/paper.md).
"""

from __future__ import annotations

from shardwise.graph.graph import Graph, Operator
from shardwise.hardware.device import Device

_KINDS = ("aten.conv2d.default", "aten.conv2d.padding")


def saving(device: Device, graph: Graph, operator: Operator, dtype: str) -> float:
    """Returns how many times fewer operations than by its definition this operator takes.

    1 for most.
    """
    if not device.fast_convolution_saving or not has_fast_algorithm(graph, operator):
        return 1.0
    return device.fast_convolution_saving.get(dtype, 1.0)


def has_fast_algorithm(graph: Graph, operator: Operator) -> bool:
    """Returns whether it is a dense 3 × 3 convolution of stride 1."""
    if operator.kind not in _KINDS:
        return False
    names = operator.attributes["tensor_arguments"]
    window = graph.tensors[operator.inputs[names.index("weight")]].shape[2:]
    plain = all(
        set(_each(operator.attributes.get(name, 1))) == {1} for name in ("stride", "dilation")
    )
    return window == (3, 3) and plain and operator.attributes.get("groups", 1) == 1


def _each(value: int | list[int] | tuple[int, ...]) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
