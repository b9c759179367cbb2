"""The registry of descriptions, and the semantics of an operator by its description.

Descriptions come from `shardwise.tdl.descriptions` and from installed packages (see `plugins`),
which are loaded when the registry is first asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import shardwise.tdl.descriptions  # noqa: F401 (it registers what comes with this package)
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.tdl.analysis import Splits, analyse_lambdas
from shardwise.tdl.describe import ANALYSED, DESCRIPTIONS, Call, Description, kind_of
from shardwise.tdl.intervals import NotAffine
from shardwise.tdl.language import NotCovered, TensorHandle
from shardwise.tdl.plugins import load_plugins

UNFIT = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""What a description raises on attributes of wrong types or ranges; they come from files."""

MOST_EMPTY = 64
"""Dimensions that an index may skip; torch tensors have no more."""


def described_kinds() -> tuple[str, ...]:
    """Returns every kind with a description, sorted; those that are never split are among them."""
    load_plugins()
    return tuple(sorted(DESCRIPTIONS))


def description(kind: str) -> Description | None:
    """Returns the description of a kind (`mylib::my_op` or `mylib.my_op.default`), or None."""
    load_plugins()
    return DESCRIPTIONS.get(kind_of(kind))


def descriptions() -> tuple[Description, ...]:
    """Returns every description, sorted by kind."""
    load_plugins()
    return tuple(entry for _, entry in sorted(DESCRIPTIONS.items()))


def analyse(operator: Operator, tensors: Mapping[str, Tensor]) -> OperatorSemantics:
    """Returns the splits, kept tensors and flops of one operator.

    An operator without a description, or whose arguments its description does not cover, has
    no variables: it is replicated and `described` is false. Nothing is guessed.
    """
    key = (
        operator.kind,
        repr(sorted(operator.attributes.items())),
        tuple((tensors[n].shape, tensors[n].dtype) for n in operator.inputs),
        tuple((tensors[n].shape, tensors[n].dtype) for n in operator.outputs),
    )
    if key not in ANALYSED:
        try:
            ANALYSED[key] = analyse_strictly(operator, tensors)
        except NotCovered:
            ANALYSED[key] = _undescribed(operator)
    return ANALYSED[key]


def analyse_strictly(operator: Operator, tensors: Mapping[str, Tensor]) -> OperatorSemantics:
    """Analyses without a cache. Raises `NotCovered` with the reason instead of replicating.

    `NotAffine` says that the description itself is at fault, here and in `analyse`.
    """
    entry = description(operator.kind)
    if entry is None:
        raise NotCovered(f"{operator.name}: {operator.kind} has no description")
    try:
        return _analyse(entry, operator, tensors)
    except UNFIT as error:
        raise NotCovered(f"{operator.name}: {operator.kind}: {error}") from error
    except (NotCovered, NotAffine) as error:
        raise type(error)(f"{operator.name}: {operator.kind}: {error}") from error


def _undescribed(operator: Operator) -> OperatorSemantics:
    return OperatorSemantics(
        (),
        tuple({} for _ in operator.inputs),
        tuple({} for _ in operator.outputs),
        tuple(True for _ in operator.inputs),
        tuple(False for _ in operator.outputs),
        0.0,
        0.0,
        "heavy",
        described=False,
    )


def _analyse(
    entry: Description, operator: Operator, tensors: Mapping[str, Tensor]
) -> OperatorSemantics:
    names = _argument_names(entry, operator)
    handles = [TensorHandle(i, tensors[name].shape) for i, name in enumerate(operator.inputs)]
    shapes = tuple(tensors[name].shape for name in operator.outputs)
    if entry.replicated:
        nothing: tuple[dict[int, Any], ...] = ({},)
        splits = Splits((), nothing * len(handles), nothing * len(shapes), ())
    else:
        splits = _splits(entry, operator, names, handles, shapes)
    call = Call(
        {argument: h.shape for argument, h in zip(names, handles, strict=True)},
        shapes,
        operator.attributes,
        frozenset(
            argument
            for argument, name in zip(names, operator.inputs, strict=True)
            if tensors[name].differentiable
        ),
    )
    forward, backward = entry.flops(call)
    saved = entry.saves(call) if callable(entry.saves) else entry.saves
    return OperatorSemantics(
        splits.variables,
        splits.inputs,
        splits.outputs,
        tuple("*" in saved or _base(n) in saved for n in names),
        tuple("output" in saved or f"output.{o}" in saved for o in range(len(shapes))),
        float(forward),
        float(backward),
        entry.category,
        True,
        splits.statistics,
        splits.merging,
    )


def _base(argument: str) -> str:
    return argument.partition(".")[0]


def _argument_names(entry: Description, operator: Operator) -> list[str]:
    named = operator.attributes.get("tensor_arguments")
    if named is None:
        parameters = inspect.signature(entry.function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            positional = [f"input{i}" for i in range(len(operator.inputs))]
        named = positional[: len(operator.inputs)]
    if len(named) != len(operator.inputs):
        raise NotCovered("tensor_arguments does not name every input")
    return [str(n) for n in named]


def _splits(
    entry: Description,
    operator: Operator,
    names: list[str],
    handles: list[TensorHandle],
    shapes: tuple[tuple[int, ...], ...],
) -> Splits:
    parameters = inspect.signature(entry.function).parameters
    keywords: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name == "out":
                keywords[name] = shapes if len(shapes) > 1 else shapes[0]
            elif name in operator.attributes:
                keywords[name] = operator.attributes[name]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        described = entry.function(*handles, **keywords)
    else:
        described = entry.function(**_arguments(names, handles), **keywords)
    lambdas = described if isinstance(described, tuple | list) else (described,)
    if len(lambdas) != len(shapes):
        raise NotCovered(f"{operator.kind} describes {len(lambdas)} outputs, not {len(shapes)}")
    return analyse_lambdas(handles, list(zip(lambdas, shapes, strict=True)))


def _arguments(names: list[str], handles: list[TensorHandle]) -> dict[str, Any]:
    """Returns tensors by argument.

    `tensors.0`, `tensors.2` make a list, None where a place is empty.
    """
    arguments: dict[str, Any] = {}
    for argument, handle in zip(names, handles, strict=True):
        base, _, place = argument.partition(".")
        if not place:
            arguments[base] = handle
            continue
        listed = arguments.setdefault(base, [])
        if not place.isdecimal() or not len(listed) <= int(place) < len(listed) + MOST_EMPTY:
            raise NotCovered(f"{argument} is not a place in a list of tensors")
        listed += [None] * (int(place) - len(listed)) + [handle]
    return arguments
