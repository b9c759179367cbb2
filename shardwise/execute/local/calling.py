"""An overload whose arguments are put in place once, so that calling it costs no extra work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shardwise.errors import BadInput

Run = Callable[..., list[Any]]
"""Maps local inputs, in the order of the operator, to local outputs."""

HALVES = (torch.float16, torch.bfloat16)
"""Dtypes that sums and statistics are not computed in."""

NUMBERS = frozenset({"inf", "-inf", "nan"})
"""Numbers that a graph file writes as strings."""


def in_float(x: Any) -> Any:
    """Converts a tensor for summing: halves to float32, as torch's kernels do."""
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in HALVES else x


def complete_attributes(
    target: Any, attributes: Mapping[str, Any], tensors: Sequence[str]
) -> dict[str, Any]:
    """Returns attributes as torch expects them, schema defaults filled in."""
    given = {name.partition(".")[0] for name in tensors}
    complete = {}
    for argument in target._schema.arguments:
        name = argument.name
        if name in given:
            continue
        if name in attributes:
            complete[name] = _value(str(argument.type), attributes[name])
        elif argument.has_default_value():
            complete[name] = argument.default_value
        elif "Optional" in str(argument.type):
            complete[name] = None
    return complete


def _value(type_name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_value(type_name, item) for item in value]
    if not isinstance(value, str):
        return value
    if value in NUMBERS:
        return float(value)
    named = getattr(torch, value, None)
    return named if isinstance(named, torch.dtype) else value


def bind(
    target: Any,
    arguments: Sequence[str],
    attributes: Mapping[str, Any],
    outputs: int,
    instead: Callable[..., Any] | None = None,
) -> Run:
    """Returns `target` as a function of the tensors in `arguments`, with `outputs` results.

    `instead` is called in its place, with the same arguments.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    last = 0
    for argument in target._schema.arguments:
        value, is_default = _source(argument, arguments, attributes)
        if argument.kwarg_only:
            if not is_default:
                named[argument.name] = value
            continue
        positional.append(value)
        if not is_default:
            last = len(positional)
    positional = positional[:last]
    call = _call(target if instead is None else instead, positional, named)
    returns = [str(r.type) for r in target._schema.returns]
    if outputs == 1 and returns == ["Tensor"]:
        return lambda *x: [call(*x)]

    def run(*x: Any) -> list[Any]:
        return flat(call(*x))

    return run


def flat(result: Any) -> list[Any]:
    """Returns the tensors among results, in order; leaves out absent ones and numbers."""
    listed = result if isinstance(result, tuple | list) else (result,)
    items = [t for item in listed for t in (item if isinstance(item, tuple | list) else (item,))]
    return [t for t in items if isinstance(t, torch.Tensor)]


class _Input:
    """The position of an argument among the inputs."""

    def __init__(self, place: int) -> None:
        self.place = place


class _Inputs:
    """The positions of a list of tensors; None for an absent one."""

    def __init__(self, places: list[int | None]) -> None:
        self.places = places


def _source(
    argument: Any, arguments: Sequence[str], attributes: Mapping[str, Any]
) -> tuple[Any, bool]:
    """Returns what goes into an argument, and whether that is its default."""
    name = argument.name
    if name in arguments:
        return _Input(arguments.index(name)), False
    listed: list[int | None] = []
    for place, known in enumerate(arguments):
        base, _, number = known.partition(".")
        if base == name:
            listed += [None] * (int(number) - len(listed)) + [place]
    if listed:
        return _Inputs(listed), False
    if name in attributes:
        value = attributes[name]
        default = argument.default_value if argument.has_default_value() else argument
        return value, type(value) is type(default) and value == default
    if argument.has_default_value():
        return argument.default_value, True
    raise BadInput("is missing", field=name, expected=f"as {argument.name} of the operator")


def _call(target: Any, positional: list[Any], named: dict[str, Any]) -> Callable[..., Any]:
    count = sum(isinstance(p, _Input) for p in positional)
    in_order = [p.place for p in positional[:count] if isinstance(p, _Input)] == list(range(count))
    special = [*positional[count:], *named.values()]
    if in_order and not any(isinstance(p, _Input | _Inputs) for p in special):
        rest = tuple(positional[count:])
        if named:
            return lambda *x: target(*x, *rest, **named)
        return (lambda *x: target(*x, *rest)) if rest else target

    def take(source: Any, x: Sequence[Any]) -> Any:
        if isinstance(source, _Input):
            return x[source.place]
        if isinstance(source, _Inputs):
            return [None if p is None else x[p] for p in source.places]
        return source

    def call(*x: Any) -> Any:
        keywords = {name: take(source, x) for name, source in named.items()}
        return target(*[take(source, x) for source in positional], **keywords)

    return call
