"""The registry of descriptions, and the semantics of an operator by its description."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from shardwise.errors import ShardwiseError
from shardwise.graph.graph import Operator, Tensor
from shardwise.tdl.analysis import Splits, analyse_lambdas
from shardwise.tdl.language import TensorHandle
from shardwise.tdl.semantics import OperatorSemantics

Category = Literal["elementwise", "view", "light", "heavy"]


@dataclass(frozen=True)
class Call:
    """One operator as flops functions see it; shapes are by argument name."""

    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any]
    differentiable: frozenset[str]

    @property
    def output_elements(self) -> int:
        return sum(prod(shape) for shape in self.outputs)


Flops = Callable[[Call], tuple[float, float]]
"""(forward, backward) flops of a whole operator; a multiply and an add are two."""


def pointwise(per_element: float) -> Flops:
    """Flops in proportion to the output, backward as much as forward."""

    def flops(call: Call) -> tuple[float, float]:
        work = per_element * call.output_elements
        return work, work

    return flops


def no_flops(call: Call) -> tuple[float, float]:
    """Moves data only."""
    return 0.0, 0.0


@dataclass(frozen=True)
class Description:
    """One registered description; `saves` names arguments, or `output`, kept for backward."""

    kind: str
    function: Callable[..., Any]
    category: Category
    saves: tuple[str, ...]
    flops: Flops
    note: str = ""


_DESCRIPTIONS: dict[str, Description] = {}
_CACHE: dict[object, OperatorSemantics] = {}


def op(
    *kinds: str,
    category: Category = "heavy",
    saves: tuple[str, ...] | None = None,
    flops: Flops | None = None,
    note: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a description for one or several operator kinds (Tofu's `@tofu.op`).

    Without `saves` backward is taken to need every input; without `flops` one flop per output
    element is counted each way.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for kind in kinds:
            _DESCRIPTIONS[kind] = Description(
                kind,
                function,
                category,
                ("*",) if saves is None else saves,
                flops or pointwise(1.0),
                note,
            )
        _CACHE.clear()
        return function

    return register


def described_kinds() -> tuple[str, ...]:
    """Every kind with a description, sorted."""
    _load()
    return tuple(sorted(_DESCRIPTIONS))


def description(kind: str) -> Description | None:
    """The description of a kind, or None."""
    _load()
    return _DESCRIPTIONS.get(kind)


def analyse(operator: Operator, tensors: Mapping[str, Tensor]) -> OperatorSemantics:
    """The splits, kept tensors and flops of one operator.

    An operator without a description, or whose arguments its description does not cover, has
    no variables: it is replicated and `described` is false. Nothing is guessed.
    """
    key = (
        operator.kind,
        repr(sorted(operator.attributes.items())),
        tuple((tensors[n].shape, tensors[n].dtype) for n in operator.inputs),
        tuple((tensors[n].shape, tensors[n].dtype) for n in operator.outputs),
    )
    if key not in _CACHE:
        found = description(operator.kind)
        try:
            _CACHE[key] = (
                _undescribed(operator) if found is None else _analyse(found, operator, tensors)
            )
        except NotCovered:
            _CACHE[key] = _undescribed(operator)
    return _CACHE[key]


class NotCovered(ShardwiseError):
    """A description that does not cover the arguments it was given."""


def _load() -> None:
    # Descriptions register themselves on import; late, because they import this module.
    import shardwise.tdl.descriptions  # noqa: F401


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
    found: Description, operator: Operator, tensors: Mapping[str, Tensor]
) -> OperatorSemantics:
    names = _argument_names(found, operator)
    handles = [TensorHandle(i, tensors[name].shape) for i, name in enumerate(operator.inputs)]
    shapes = tuple(tensors[name].shape for name in operator.outputs)
    splits = _splits(found, operator, names, handles, shapes)
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
    forward, backward = found.flops(call)
    return OperatorSemantics(
        splits.variables,
        splits.inputs,
        splits.outputs,
        tuple("*" in found.saves or _base(n) in found.saves for n in names),
        tuple("output" in found.saves for _ in operator.outputs),
        float(forward),
        float(backward),
        found.category,
        True,
        splits.statistics,
    )


def _base(argument: str) -> str:
    return argument.partition(".")[0]


def _argument_names(found: Description, operator: Operator) -> list[str]:
    named = operator.attributes.get("tensor_arguments")
    if named is None:
        named = list(inspect.signature(found.function).parameters)[: len(operator.inputs)]
    if len(named) != len(operator.inputs):
        raise NotCovered(f"{operator.name}: tensor_arguments does not name every input")
    return [str(n) for n in named]


def _splits(
    found: Description,
    operator: Operator,
    names: list[str],
    handles: list[TensorHandle],
    shapes: tuple[tuple[int, ...], ...],
) -> Splits:
    arguments: dict[str, Any] = {}
    for argument, handle in zip(names, handles, strict=True):
        base, _, place = argument.partition(".")
        if place:
            arguments.setdefault(base, []).append(handle)
        else:
            arguments[argument] = handle
    parameters = inspect.signature(found.function).parameters
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    keywords: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name == "out":
                keywords[name] = shapes if len(shapes) > 1 else shapes[0]
            elif name in operator.attributes:
                keywords[name] = operator.attributes[name]
    unknown = set(arguments) - set(parameters)
    if unknown and not takes_any:
        raise NotCovered(f"{operator.kind} has no parameter {sorted(unknown)}")
    if takes_any:
        described = found.function(*handles, **keywords)
    else:
        described = found.function(**arguments, **keywords)
    lambdas = described if isinstance(described, tuple | list) else (described,)
    if len(lambdas) != len(shapes):
        raise NotCovered(f"{operator.kind} describes {len(lambdas)} outputs, not {len(shapes)}")
    return analyse_lambdas(handles, list(zip(lambdas, shapes, strict=True)))


def table() -> list[dict[str, Any]]:
    """One row per description, for the documentation."""
    _load()
    return [
        {
            "kind": d.kind,
            "category": d.category,
            "saves": ", ".join("every input" if s == "*" else s for s in d.saves) or "nothing",
            "note": d.note,
        }
        for _, d in sorted(_DESCRIPTIONS.items())
    ]
