"""The registry of descriptions, and the semantics of an operator by its description.

Descriptions come from `shardwise.tdl.descriptions` and from installed packages (see `plugins`);
both are loaded when the registry is first asked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from math import prod
from typing import Any, Literal, TypeVar

from shardwise.errors import BadInput, UnknownOperator
from shardwise.graph.graph import Operator, Tensor
from shardwise.tdl.analysis import Splits, analyse_lambdas
from shardwise.tdl.example import Example
from shardwise.tdl.intervals import NotAffine
from shardwise.tdl.language import NotCovered, TensorHandle
from shardwise.tdl.semantics import OperatorSemantics

Function = TypeVar("Function", bound=Callable[..., Any])
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


def not_differentiated(call: Call) -> tuple[float, float]:
    """One flop per element of the output, and no gradient: comparisons, roundings."""
    return float(call.output_elements), 0.0


def no_flops(call: Call) -> tuple[float, float]:
    """Moves data only."""
    return 0.0, 0.0


Saves = tuple[str, ...] | Callable[[Call], Collection[str]]
"""Names of the arguments that backward needs kept; `*` for all inputs, `output` for all results,
`output.1` for the second one alone."""


@dataclass(frozen=True)
class Description:
    """One registered description; `replicated` is the reason why it is never split, if it is not.

    `examples` are small calls that the description is checked on.
    """

    kind: str
    function: Callable[..., Any]
    category: Category
    saves: Saves
    flops: Flops
    note: str = ""
    replicated: str = ""
    examples: tuple[Example, ...] = ()

    @property
    def family(self) -> str:
        """The last part of the module that describes it."""
        return self.function.__module__.rpartition(".")[2]


UNFIT = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""What a description raises on attributes of wrong types or ranges; they come from files."""

MOST_EMPTY = 64
"""Dimensions that an index may skip; torch tensors have no more."""

_DESCRIPTIONS: dict[str, Description] = {}
_CACHE: dict[object, OperatorSemantics] = {}


def kind_of(name: str) -> str:
    """`mylib.my_op.default` for `mylib::my_op`, as the operators of a captured graph say it."""
    namespace, separator, rest = name.partition("::")
    if not separator:
        return name
    return f"{namespace}.{rest}" if "." in rest else f"{namespace}.{rest}.default"


def op(
    *kinds: str,
    category: Category = "heavy",
    saves: Saves | None = None,
    flops: Flops | None = None,
    note: str = "",
    examples: Collection[Example] = (),
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Register a description for one or several operator kinds (Tofu's `@tofu.op`).

    A kind is written `mylib::my_op`, `mylib::my_op.overload` or as in a graph,
    `mylib.my_op.default`. Without `saves` backward is taken to need every input; without `flops`
    one flop per output element is counted each way. `examples` are what `verify` runs. A kind
    that something else describes already is refused unless `replace` says so.
    """

    def register(function: Function) -> Function:
        if not function.__module__.startswith("shardwise.tdl."):
            _load_shipped()
        for kind in map(kind_of, kinds):
            _add(
                Description(
                    kind,
                    function,
                    category,
                    ("*",) if saves is None else saves,
                    flops or pointwise(1.0),
                    note,
                    examples=tuple(examples),
                ),
                replace,
            )
        return function

    return register


def replicated(
    *kinds: str,
    reason: str,
    category: Category = "light",
    saves: Saves = (),
    flops: Flops = no_flops,
    examples: Collection[Example] = (),
) -> None:
    """Register kinds that cannot be split, and say why: every device repeats the work."""

    def function(*tensors: TensorHandle) -> None:
        """every output needs every input whole"""

    function.__module__ = sys._getframe(1).f_globals["__name__"]
    for kind in map(kind_of, kinds):
        _add(
            Description(
                kind,
                function,
                category,
                saves,
                flops,
                replicated=reason,
                examples=tuple(examples),
            ),
            False,
        )


def _add(new: Description, replace: bool) -> None:
    old = _DESCRIPTIONS.get(new.kind)
    if old is not None and not replace and _origin(old) != _origin(new):
        raise BadInput(
            f"{new.kind} is described already, by {'.'.join(_origin(old))}",
            expected="another kind, or replace=True",
        )
    _DESCRIPTIONS[new.kind] = new
    _CACHE.clear()


def _origin(found: Description) -> tuple[str, str]:
    """Where a description stands; one that is loaded a second time has the same origin."""
    return found.function.__module__, found.function.__qualname__


def give_examples(kind: str, *examples: Example) -> None:
    """Add examples to a description that stands elsewhere."""
    found = _DESCRIPTIONS.get(kind)
    if found is None:
        raise UnknownOperator(f"{kind} has no description to give examples to")
    _DESCRIPTIONS[kind] = dataclass_replace(found, examples=found.examples + examples)


def described_kinds() -> tuple[str, ...]:
    """Every kind with a description, sorted; those that are never split are among them."""
    _load()
    return tuple(sorted(_DESCRIPTIONS))


def description(kind: str) -> Description | None:
    """The description of a kind (`mylib::my_op` or `mylib.my_op.default`), or None."""
    _load()
    return _DESCRIPTIONS.get(kind_of(kind))


def descriptions() -> tuple[Description, ...]:
    """Every description, sorted by kind."""
    _load()
    return tuple(found for _, found in sorted(_DESCRIPTIONS.items()))


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
        try:
            _CACHE[key] = analyse_strictly(operator, tensors)
        except NotCovered:
            _CACHE[key] = _undescribed(operator)
    return _CACHE[key]


def analyse_strictly(operator: Operator, tensors: Mapping[str, Tensor]) -> OperatorSemantics:
    """As `analyse`, not cached; raises `NotCovered` with the reason instead of replicating.

    `NotAffine` says that the description itself is at fault, here and in `analyse`.
    """
    found = description(operator.kind)
    if found is None:
        raise NotCovered(f"{operator.name}: {operator.kind} has no description")
    try:
        return _analyse(found, operator, tensors)
    except UNFIT as error:
        raise NotCovered(f"{operator.name}: {operator.kind}: {error}") from error
    except (NotCovered, NotAffine) as error:
        raise type(error)(f"{operator.name}: {operator.kind}: {error}") from error


def _load() -> None:
    from shardwise.tdl.plugins import load_plugins

    _load_shipped()
    load_plugins()


def _load_shipped() -> None:
    # Descriptions register themselves on import; late, because they import this module.
    import shardwise.tdl.descriptions
    import shardwise.tdl.examples  # noqa: F401


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
    if found.replicated:
        nothing: tuple[dict[int, Any], ...] = ({},)
        splits = Splits((), nothing * len(handles), nothing * len(shapes), ())
    else:
        splits = _splits(found, operator, names, handles, shapes)
    call = Call(
        {argument: h.shape for argument, h in zip(names, handles, strict=True)},
        shapes,
        operator.attributes,
        frozenset(
            argument
            for argument, name in zip(names, operator.inputs, strict=True)
            if tensors[name].differentiable or tensors[name].dtype.startswith("complex")
        ),
    )
    forward, backward = found.flops(call)
    saved = found.saves(call) if callable(found.saves) else found.saves
    return OperatorSemantics(
        splits.variables,
        splits.inputs,
        splits.outputs,
        tuple("*" in saved or _base(n) in saved for n in names),
        tuple("output" in saved or f"output.{o}" in saved for o in range(len(shapes))),
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
        parameters = inspect.signature(found.function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            positional = [f"input{i}" for i in range(len(operator.inputs))]
        named = positional[: len(operator.inputs)]
    if len(named) != len(operator.inputs):
        raise NotCovered("tensor_arguments does not name every input")
    return [str(n) for n in named]


def _splits(
    found: Description,
    operator: Operator,
    names: list[str],
    handles: list[TensorHandle],
    shapes: tuple[tuple[int, ...], ...],
) -> Splits:
    parameters = inspect.signature(found.function).parameters
    keywords: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name == "out":
                keywords[name] = shapes if len(shapes) > 1 else shapes[0]
            elif name in operator.attributes:
                keywords[name] = operator.attributes[name]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        described = found.function(*handles, **keywords)
    else:
        described = found.function(**_arguments(names, handles), **keywords)
    lambdas = described if isinstance(described, tuple | list) else (described,)
    if len(lambdas) != len(shapes):
        raise NotCovered(f"{operator.kind} describes {len(lambdas)} outputs, not {len(shapes)}")
    return analyse_lambdas(handles, list(zip(lambdas, shapes, strict=True)))


def _arguments(names: list[str], handles: list[TensorHandle]) -> dict[str, Any]:
    """Tensors by argument; `tensors.0`, `tensors.2` make a list, None where a place is empty."""
    arguments: dict[str, Any] = {}
    for argument, handle in zip(names, handles, strict=True):
        base, _, place = argument.partition(".")
        if not place:
            arguments[base] = handle
            continue
        listed = arguments.setdefault(base, [])
        if not place.isdecimal() or not len(listed) <= int(place) < len(listed) + MOST_EMPTY:
            raise NotCovered(f"{argument} is no place in a list of tensors")
        listed += [None] * (int(place) - len(listed)) + [handle]
    return arguments
