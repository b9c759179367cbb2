"""TDL, the tensor description language (Tofu §4.1): tensors as lambdas over index variables.

    @tdl.op("mylib::conv1d")
    def conv1d(data, filters):
        return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])

The parameters of a description are the operator's tensor arguments by name; keyword-only
parameters are its attributes. A lambda with `*i` takes as many output indices as the output has
dimensions. What cannot be expressed is an opaque function: `Opaque()(matrix[b, :, :])[i, j]`.
"""

from __future__ import annotations

import inspect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.graph.semantics import Reducer
from shardwise.tdl.intervals import Interval, NotAffine

Ranges = Mapping[int, Interval]
Extents = Mapping[int, int]


class NotCovered(ShardwiseError):
    """A description that does not cover the arguments it was given."""


class Expression:
    """A scalar: an element, an index, a constant, or arithmetic on them."""

    children: tuple[Expression, ...] = ()

    def _with(self, other: Any, linear: bool) -> Combination:
        return Combination((self, as_expression(other)), linear)

    def __add__(self, other: Any) -> Expression:
        return self._with(other, linear=True)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expression:
        return self._with(other, linear=True)

    def __rsub__(self, other: Any) -> Expression:
        return as_expression(other)._with(self, linear=True)

    def __mul__(self, other: Any) -> Expression:
        return self._with(other, linear=isinstance(other, int | float))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        return self._with(other, linear=isinstance(other, int | float))

    def __rtruediv__(self, other: Any) -> Expression:
        return self._with(other, linear=False)

    def __pow__(self, other: Any) -> Expression:
        return self._with(other, linear=False)

    def __neg__(self) -> Expression:
        return Combination((self,), True)


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A number."""

    value: float


@dataclass(frozen=True, eq=False)
class Combination(Expression):
    """Arithmetic or a point-wise function of its children; `linear` when a sum passes through."""

    children: tuple[Expression, ...]
    linear: bool = False


class IndexExpression(Expression):
    """An affine expression of index variables; floor division and modulo by constants."""

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return Affine(((self, Fraction(1)),), other)
        if isinstance(other, IndexExpression):
            return Affine(((self, Fraction(1)), (other, Fraction(1))), 0)
        return super().__add__(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self + (-other)
        if isinstance(other, IndexExpression):
            return Affine(((self, Fraction(1)), (other, Fraction(-1))), 0)
        return super().__sub__(other)

    def __rsub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return Affine(((self, Fraction(-1)),), other)
        return super().__rsub__(other)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int):
            return Affine(((self, Fraction(other)),), 0)
        if isinstance(other, IndexExpression):
            raise NotAffine("an index expression multiplies two index variables")
        return super().__mul__(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Divided:
        return Divided(self, _positive(other))

    def __mod__(self, other: int) -> Remainder:
        return Remainder(self, _positive(other))

    def __eq__(self, other: object) -> bool:
        raise NotAffine("an index expression is compared")

    def __lt__(self, other: Any) -> bool:
        raise NotAffine("an index expression is compared")

    __ne__ = __eq__
    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise NotAffine("an index expression decides a condition")

    @abstractmethod
    def interval(self, ranges: Ranges, extents: Extents) -> Interval:
        """Returns the interval, given those of the variables and their extents, both by number."""

    @abstractmethod
    def slope(self, numbers: AbstractSet[int]) -> Fraction | None:
        """Returns the growth per step of these variables together; None where it is not steady."""

    @abstractmethod
    def variables(self) -> Iterator[Index]:
        """Yields every index variable inside, as often as it occurs."""


def _positive(k: int) -> int:
    if not isinstance(k, int) or k <= 0:
        raise NotAffine(f"an index expression divides by {k!r}, not by a positive constant")
    return k


@dataclass(eq=False)
class Index(IndexExpression):
    """An index variable; a reduction's extent is learned from the dimension that it indexes."""

    name: str
    number: int
    extent: int | None = None

    def interval(self, ranges: Ranges, extents: Extents) -> Interval:
        return ranges[self.number]

    def slope(self, numbers: AbstractSet[int]) -> Fraction | None:
        return Fraction(self.number in numbers)

    def variables(self) -> Iterator[Index]:
        yield self


@dataclass(frozen=True, eq=False)
class Affine(IndexExpression):
    """Σ coefficient · term + constant."""

    terms: tuple[tuple[IndexExpression, Fraction], ...]
    constant: int

    def interval(self, ranges: Ranges, extents: Extents) -> Interval:
        total = Interval.constant(self.constant)
        for term, coefficient in self.terms:
            total = total.plus(term.interval(ranges, extents).scale(coefficient))
        return total

    def slope(self, numbers: AbstractSet[int]) -> Fraction | None:
        total = Fraction(0)
        for term, coefficient in self.terms:
            part = term.slope(numbers)
            if part is None:
                return None
            total += part * coefficient
        return total

    def variables(self) -> Iterator[Index]:
        for term, _ in self.terms:
            yield from term.variables()


@dataclass(frozen=True, eq=False)
class Divided(IndexExpression):
    """⌊term / k⌋."""

    term: IndexExpression
    k: int

    def interval(self, ranges: Ranges, extents: Extents) -> Interval:
        return self.term.interval(ranges, extents).floor_divide(self.k, extents)

    def slope(self, numbers: AbstractSet[int]) -> Fraction | None:
        return _unless_inside(self.term, numbers)

    def variables(self) -> Iterator[Index]:
        yield from self.term.variables()


@dataclass(frozen=True, eq=False)
class Remainder(IndexExpression):
    """term mod k."""

    term: IndexExpression
    k: int

    def interval(self, ranges: Ranges, extents: Extents) -> Interval:
        return Interval.modulo(self.k)

    def slope(self, numbers: AbstractSet[int]) -> Fraction | None:
        return _unless_inside(self.term, numbers)

    def variables(self) -> Iterator[Index]:
        yield from self.term.variables()


def _unless_inside(term: IndexExpression, numbers: AbstractSet[int]) -> Fraction | None:
    return None if any(v.number in numbers for v in term.variables()) else Fraction(0)


@dataclass(frozen=True, eq=False)
class Element(Expression):
    """tensor[indices]; `None` stands for a whole dimension (`:`)."""

    tensor: TensorHandle
    indices: tuple[IndexExpression | int | None, ...]


@dataclass(frozen=True, eq=False)
class Reduction(Expression):
    """Sum, Max, Min or Prod of a body over index variables, or a merge (`Merge`).

    Of a merge, `rows` is the output variable whose rows merge, `together` says that it may be
    split together with the merge's own, and `causal` that row s merges elements 0 to s alone.
    """

    reducer: Reducer
    indices: tuple[Index, ...]
    body: Expression
    rows: Index | None = None
    together: bool = False
    causal: bool = False

    @property
    def children(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.body,)


@dataclass(frozen=True, eq=False)
class OpaqueResult(Expression):
    """What an opaque function gives; indexing it says nothing about its inputs."""

    children: tuple[Expression, ...]

    def __getitem__(self, indices: Any) -> OpaqueResult:
        return self


class Opaque:
    """A function that TDL does not describe (Tofu §4.1); its slices are needed whole."""

    def __call__(self, *arguments: Any) -> OpaqueResult:
        return OpaqueResult(tuple(as_expression(a) for a in arguments))


@dataclass(frozen=True, eq=False)
class TensorHandle:
    """An input as the description sees it."""

    position: int
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Element:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != self.rank:
            raise NotCovered(f"{len(given)} indices for a tensor of {self.rank} dimensions")
        return Element(self, tuple(self._place(dim, index) for dim, index in enumerate(given)))

    def _place(self, dim: int, index: Any) -> IndexExpression | int | None:
        size = self.shape[dim]
        if isinstance(index, IndexExpression):
            if isinstance(index, Index) and index.extent is None:
                index.extent = size
            return index
        if isinstance(index, slice):
            if index == slice(None):
                return None
            raise NotAffine("a slice is either whole (`:`) or written with an index variable")
        if isinstance(index, int):
            if not -size <= index < size:
                raise NotCovered(f"index {index} in a dimension of {size}")
            return index % size
        raise NotAffine(
            "an index is an affine expression of index variables, a number or `:`; "
            "indices that depend on data need an opaque function"
        )

    def at(self, indices: Sequence[IndexExpression | int]) -> Element:
        """Returns the element that broadcasting aligns with these output indices."""
        trailing = tuple(indices)[len(indices) - self.rank :]
        return self[
            tuple(0 if size == 1 else i for i, size in zip(trailing, self.shape, strict=True))
        ]


def as_expression(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    return Constant(float(value))


def apply(*arguments: Any) -> Expression:
    """Returns a point-wise function (exp, max of two, where, …) of its arguments."""
    return Combination(tuple(as_expression(a) for a in arguments))


_numbers = itertools.count(1)


def fresh(name: str, extent: int | None = None) -> Index:
    """Returns a new index variable, with a number that no other one has."""
    return Index(name, next(_numbers), extent)


def named(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Gives the last indices of a `*i` lambda names that a person reads in a plan."""

    def renamed(*indices: Any) -> Any:
        return function(*indices)

    renamed.index_names = names  # type: ignore[attr-defined]
    return renamed


def indices_of(function: Callable[..., Any], extents: Sequence[int | None]) -> list[Index]:
    """Returns index variables named as the lambda's parameters; `*i` takes i0, i1, …"""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            given = list(getattr(function, "index_names", ()))
            missing = len(extents) - len(names)
            given = given[max(len(given) - missing, 0) :]
            names += [f"d{k}" for k in range(len(names), len(extents) - len(given))] + given
        else:
            names.append(parameter.name)
    if len(names) != len(extents):
        raise NotCovered(f"a lambda of {len(names)} indices describes {len(extents)} dimensions")
    return [fresh(name, extent) for name, extent in zip(names, extents, strict=True)]


def is_numbered(name: str) -> bool:
    """Returns whether `indices_of` made the name, from the place of a dimension."""
    return name[:1] == "d" and name[1:].isdecimal()


def _reduction(
    reducer: Reducer, function: Callable[..., Any], extents: Sequence[int] | None
) -> Reduction:
    count = len(inspect.signature(function).parameters) if extents is None else len(extents)
    indices = indices_of(function, extents if extents is not None else [None] * count)
    return Reduction(reducer, tuple(indices), as_expression(function(*indices)))


def Sum(function: Callable[..., Any], extents: Sequence[int] | None = None) -> Reduction:
    """Returns Σ over the lambda's indices; extents are learned from the tensors unless given."""
    return _reduction("sum", function, extents)


def Max(function: Callable[..., Any], extents: Sequence[int] | None = None) -> Reduction:
    """Returns the maximum over the lambda's indices."""
    return _reduction("max", function, extents)


def Min(function: Callable[..., Any], extents: Sequence[int] | None = None) -> Reduction:
    """Returns the minimum over the lambda's indices."""
    return _reduction("min", function, extents)


def Prod(function: Callable[..., Any], extents: Sequence[int] | None = None) -> Reduction:
    """Returns the product over the lambda's indices."""
    return _reduction("prod", function, extents)


def Merge(
    function: Callable[..., Any], *, rows: Index, together: bool = False, causal: bool = False
) -> Reduction:
    """Returns the merge of the lambda over its index: partial results that are no terms of a sum.

    Attention over some of the keys is a result o with the logarithm ℓ of its scores' sum; two such
    parts are ℓ = log(e^ℓ₁ + e^ℓ₂), o = e^(ℓ₁-ℓ) o₁ + e^(ℓ₂-ℓ) o₂ (Milakov and Gimelshein 2018;
    Liu et al. 2023, Ring Attention, §3). The index alone is never split.
    `together` with the output variable `rows`, where that runs over as many elements, it may be:
    each share of rows then sees all elements in turn, as they go round (variable `ring`).
    """
    merged = _reduction("merge", function, None)
    return replace(merged, rows=rows, together=together, causal=causal)
