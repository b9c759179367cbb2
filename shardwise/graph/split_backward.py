"""Operators whose backward is in two parts: gradients of inputs, I, and those of weights, W.

Schedules that split backward (Qi et al. 2024, zero bubble) run I before another stage waits for it,
and W where a rank would wait itself. Products, convolutions and look-ups in a table are split where
weight and bias are parameters. What executes them (`execute/local/deferred.py`) and what prices
them (`cost/backward_parts.py`, `replay/backward.py`) asks here which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardwise.graph.graph import Operator, Tensor

_CONVOLUTIONS = (
    *(f"conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
    "convolution.default",
)

ARGUMENTS: Mapping[str, tuple[str, str, str]] = {
    "aten.linear.default": ("input", "weight", "bias"),
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.mm.default": ("self", "mat2", ""),
    "aten.matmul.default": ("self", "other", ""),
    "aten.embedding.default": ("indices", "weight", ""),
    **{f"aten.{name}": ("input", "weight", "bias") for name in _CONVOLUTIONS},
}
"""The arguments of operators that are split: data, weight and bias."""


_SCHEMAS = {
    "aten.addmm.default": ("self", "mat1", "mat2"),
    "aten.embedding.default": ("weight", "indices"),
}
"""The order of arguments where it is not that of data, weight and bias."""


class Ports(NamedTuple):
    """Positions of inputs: data, and the weight with the bias, if any, whose gradients are W."""

    data: int
    weights: tuple[int, ...]


def split_ports(
    op: Operator, arguments: Sequence[str], tensors: Mapping[str, Tensor]
) -> Ports | None:
    """Returns the ports of an operator whose backward is split, None where it is not; `arguments`
    are the names of its inputs in its schema."""
    names = ARGUMENTS.get(op.kind)
    if names is None:
        return None
    place = {name: position for position, name in enumerate(arguments)}
    data, weight, bias = (place.get(name) for name in names)
    if data is None or weight is None:
        return None
    weights = (weight,) if bias is None else (weight, bias)
    if any(tensors[op.inputs[port]].role != "parameter" for port in weights):
        return None
    dims = [len(tensors[op.inputs[port]].shape) for port in (data, weight)]
    if op.kind == "aten.matmul.default" and (dims[0] < 2 or dims[1] != 2):
        return None
    # A product that is scaled has gradients of its own form.
    scales = (op.attributes.get(name) for name in ("alpha", "beta"))
    if any(scale not in (None, 1) for scale in scales):
        return None
    return Ports(data, weights)


def arguments_of(op: Operator) -> Sequence[str]:
    """Returns the names of an operator's inputs in its schema, as far as `split_ports` reads
    them: those of the graph, or the schema's first."""
    named = op.attributes.get("tensor_arguments")
    if named is not None:
        return [str(name) for name in named]
    return _SCHEMAS.get(op.kind, ARGUMENTS.get(op.kind, ()))[: len(op.inputs)]
