"""Descriptions: what a person writes about an operator, and the table of all that are written.

`op` and `replicated` register a description. Those of `shardwise.tdl.descriptions` are registered
when `shardwise.tdl` is imported, so that those of other packages are checked against them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeVar

from shardwise.errors import BadInput
from shardwise.graph.semantics import OperatorSemantics
from shardwise.tdl.example import Example
from shardwise.tdl.language import TensorHandle

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
    """Returns flops in proportion to the output, backward as much as forward."""

    def flops(call: Call) -> tuple[float, float]:
        work = per_element * call.output_elements
        return work, work

    return flops


def not_differentiated(call: Call) -> tuple[float, float]:
    """Returns one flop per element of the output, and no gradient: comparisons, roundings."""
    return float(call.output_elements), 0.0


def no_flops(call: Call) -> tuple[float, float]:
    """Returns no flops: data is only moved."""
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
        """The name of the describing module, without its packages."""
        return self.function.__module__.rpartition(".")[2]


DESCRIPTIONS: dict[str, Description] = {}
"""By kind."""

ANALYSED: dict[object, OperatorSemantics] = {}
"""Semantics by call, for as long as no description is added."""


def kind_of(name: str) -> str:
    """Returns `mylib.my_op.default` for `mylib::my_op`, as in the operators of a captured graph."""
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
    """Registers a description for one or several operator kinds (Tofu's `@tofu.op`).

    A kind is written `mylib::my_op`, `mylib::my_op.overload` or as in a graph,
    `mylib.my_op.default`. Without `saves` backward is taken to need every input; without `flops`
    one flop per output element is counted each way. `examples` are what `verify` runs. A kind
    that is described elsewhere already is refused unless `replace` is set.
    """

    def register(function: Function) -> Function:
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
    """Registers kinds that cannot be split, and says why: every device repeats the work."""

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
    old = DESCRIPTIONS.get(new.kind)
    if old is not None and not replace and _origin(old) != _origin(new):
        raise BadInput(
            f"{new.kind} is described already, by {'.'.join(_origin(old))}",
            expected="another kind, or replace=True",
        )
    DESCRIPTIONS[new.kind] = new
    ANALYSED.clear()


def _origin(description: Description) -> tuple[str, str]:
    """Returns where a description is defined, which is the same if it is loaded a second time."""
    return description.function.__module__, description.function.__qualname__
