"""Convolutions computed with fewer operations than by definition.

Winograd's minimal filtering computes an m × m tile of a 3 × 3 convolution of stride 1 with (m + 2)²
products per channel pair in place of 9 m² (Lavin & Gray 2016, §4): 2.25 times fewer for m = 2. The
factor of a device's library is in its profile (`fast_convolution_saving`), by dtype. Without it
VGG16 on a V100 would be twice as slow as measured (docs/reference/paper.md).
"""

from __future__ import annotations

from shardwise.graph.graph import Graph, Operator
from shardwise.hardware.device import Device

_KINDS = ("aten.conv2d.default", "aten.conv2d.padding")


def saving(device: Device, graph: Graph, operator: Operator, dtype: str) -> float:
    """Returns the factor by which this operator takes fewer operations than by definition.

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
