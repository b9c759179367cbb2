"""A note for language models that would be trained in float32."""

from __future__ import annotations

from shardwise.graph import Graph
from shardwise.graph.step import step_of
from shardwise.hardware import Hardware

CAPTURED = "captured"
_NARROW = {"bfloat16": "bf16", "float16": "fp16"}
"""What to train in instead, the better first, and what options call it."""


def float32_note(graph: Graph, hardware: Hardware, precision: str) -> str | None:
    """Returns a note if a language model is in float32 although its devices compute in 16 bits.

    Returns None where `precision` narrows the graph, or where 16 bits are not faster on all devices
    (a V100 has no units for bfloat16).
    """
    step = step_of(graph)
    if precision != CAPTURED or step.dtype != "float32" or not step.predicts_tokens:
        return None
    faster = (
        name
        for dtype, name in _NARROW.items()
        if all(device.peak(dtype) > device.peak("float32") for device in hardware.devices)
    )
    narrow = next(faster, None)
    if narrow is None:
        return None
    return (
        f"{graph.name} is trained in float32: {narrow} halves activations and computes faster; "
        f"capture with --dtype {narrow} or ask with --precision {narrow}"
    )
