"""Calls of real ATen operators with the arguments of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tdl_cases import Case

from shardwise.graph import Operator, Tensor


def overload(kind: str) -> Any:
    """torch.ops.aten.<name>.<overload> of `aten.<name>.<overload>`."""
    _, name, form = kind.split(".")
    return getattr(getattr(torch.ops.aten, name), form)


def call(case: Case, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Every output; argument places as in the operator's schema."""
    target = overload(case.kind)
    values: dict[str, Any] = dict(case.attributes)
    if "dtype" in values:
        values["dtype"] = getattr(torch, values["dtype"])
    for argument, tensor in inputs.items():
        base, _, place = argument.partition(".")
        if place:
            listed = values.setdefault(base, [])
            listed += [None] * (int(place) - len(listed)) + [tensor]
        else:
            values[base] = tensor
    positional = []
    named = {}
    for argument in target._schema.arguments:
        if argument.name not in values and not argument.has_default_value():
            raise AssertionError(f"{case.kind} needs {argument.name}")
        value = values.pop(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    assert not values, f"{case.kind} has no {sorted(values)}"
    result = target(*positional, **named)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def draw(case: Case, random: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Inputs of one case; positive ones are away from zero."""
    drawn = []
    for argument, shape in case.shapes.items():
        bound = case.integers.get(argument)
        if bound is not None:
            integers = random.integers(0, bound, shape)
            is_mask = argument in ("mask", "condition")
            drawn.append(integers.astype(bool if is_mask else np.int64))
        else:
            values = random.standard_normal(shape)
            drawn.append(np.abs(values) + 0.5 if case.positive else values)
    return drawn


def graph_of(case: Case) -> tuple[Operator, dict[str, Tensor]]:
    """The case as one operator of a graph; output shapes are those of the real operator."""
    arrays = draw(case, np.random.default_rng(0))
    inputs = {n: torch.from_numpy(a) for n, a in zip(case.shapes, arrays, strict=True)}
    names = [f"in.{argument}" for argument in inputs]
    tensors = {
        name: Tensor(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), "activation")
        for name, t in zip(names, inputs.values(), strict=True)
    }
    outputs = []
    for position, t in enumerate(call(case, {n: t.clone() for n, t in inputs.items()})):
        outputs.append(f"out.{position}")
        dtype = str(t.dtype).removeprefix("torch.")
        tensors[outputs[-1]] = Tensor(outputs[-1], tuple(t.shape), dtype, "activation")
    attributes = {"tensor_arguments": list(case.shapes), **case.attributes}
    return Operator("op", case.kind, tuple(names), tuple(outputs), attributes), tensors


def run(case: Case, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The case on these arrays, which stay as they are."""
    inputs = {n: torch.from_numpy(a.copy()) for n, a in zip(case.shapes, arrays, strict=True)}
    return [t.numpy() for t in call(case, inputs)]
