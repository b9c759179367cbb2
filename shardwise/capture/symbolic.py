"""Symbols for batch and sequence, found by comparing captures.

A model is captured at several batches and lengths. If the captures differ only in integers, each
integer is a polynomial of the batch B and the length S with at most `MOST_TERMS` terms of
`MONOMIALS`, found by exact arithmetic. There are at least two more captures than terms, so every
polynomial is checked on captures that were not used to fit it. The written file is read again at
every point and must reproduce that capture byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from shardwise.errors import BadInput
from shardwise.graph.document import (
    canonical_json,
    folded,
    graph_document,
    graph_from_document,
    json_of,
)
from shardwise.graph.graph import Graph
from shardwise.graph.symbols import (
    SYMBOLS,
    Monomial,
    is_expression,
    mark_batch,
    written,
)
from shardwise.step_sizes import StepSizes

MONOMIALS: tuple[Monomial, ...] = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0))
MOST_TERMS = 3
SPARE = 2
"""Captures beyond the terms of a polynomial, which check it."""


@dataclass(frozen=True)
class Sample:
    """A capture of `batch` samples of `seq` tokens; 0 for a model without a sequence."""

    batch: int
    seq: int
    graph: Graph

    @property
    def sizes(self) -> StepSizes:
        """The sizes, as a reader asks for them."""
        return StepSizes(self.batch, self.seq or None)


class _Varied(Exception):
    """What is not the same in two captures, or no polynomial."""


def symbolic_json(samples: Sequence[Sample]) -> bytes:
    """Returns the document of version 2 that holds for all samples; the first is as captured.

    Raises `BadInput` saying what is no polynomial of batch and sequence.
    """
    documents = [_unmarked(sample.graph) for sample in samples]
    fit = _Fit([(sample.batch, sample.seq) for sample in samples])
    try:
        rows = {
            name: fit.rows([document[name] for document in documents], name)
            for name in ("tensors", "operators")
        }
    except _Varied as reason:
        raise BadInput(str(reason), field=SYMBOLS, expected="a polynomial") from None
    document = folded({**documents[0], **rows, SYMBOLS: _ranges(samples)})
    for sample in samples:
        again = graph_from_document(document, sizes=sample.sizes)
        if canonical_json(again) != canonical_json(sample.graph):
            raise BadInput(
                f"at {sample.sizes} it is another graph", field=SYMBOLS, expected="the captured one"
            )
    return json_of(document)


def _ranges(samples: Sequence[Sample]) -> dict[str, Any]:
    """Returns the symbols of a document: the values of the first sample, the least and the most."""
    first = samples[0]
    return {
        name: {
            "captured": getattr(first, name),
            "least": min(getattr(sample, name) for sample in samples),
            "most": max(getattr(sample, name) for sample in samples),
        }
        for name in ("batch", "seq")
        if getattr(first, name)
    }


def _unmarked(graph: Graph) -> dict[str, Any]:
    """Returns a graph's document, without the batch dimensions of inputs. Raises `BadInput` where
    these are others than a reader marks."""
    tensors = {
        name: replace(tensor, batch_dim=None) if tensor.role == "input" else tensor
        for name, tensor in graph.tensors.items()
    }
    if mark_batch(tensors) != dict(graph.tensors):
        raise BadInput(
            "inputs have the batch elsewhere", field=SYMBOLS, expected="the batch in front"
        )
    return graph_document(Graph(graph.name, tensors, graph.operators))


def _require_plain(item: Any, place: str) -> None:
    """Raises `_Varied` for a text that a reader would take for an expression."""
    if isinstance(item, str):
        if is_expression(item):
            raise _Varied(f"{place}: the text {item}")
    elif isinstance(item, dict | list | tuple):
        for one in item.values() if isinstance(item, dict) else item:
            _require_plain(one, place)


class _Fit:
    """Makes one row of those that captures have in its place."""

    def __init__(self, points: Sequence[tuple[int, int]]) -> None:
        self._points = points
        self._known: dict[tuple[int, ...], str] = {}
        monomials = [one for one in MONOMIALS if points[0][1] or not one[1]]
        self._bases = [
            basis
            for terms in range(1, min(MOST_TERMS, len(points) - SPARE) + 1)
            for basis in combinations(monomials, terms)
        ]

    def rows(self, lists: Sequence[list[Any]], field: str) -> list[Any]:
        """Returns the rows of all captures. Raises `_Varied`."""
        if len({len(rows) for rows in lists}) > 1:
            raise _Varied(f"{' or '.join(str(len(rows)) for rows in lists)} {field}")
        for row in lists[0]:
            _require_plain(row, f"{field}: {row['name']}")
        return [self._one(row, f"{field}: {row[0]['name']}") for row in zip(*lists, strict=True)]

    def _one(self, items: Sequence[Any], place: str) -> Any:
        first = items[0]
        if all(item == first for item in items[1:]):
            return first
        if any(type(item) is not type(first) for item in items[1:]):
            raise _Varied(f"{place}: {', '.join(map(str, items))[:200]}")
        if isinstance(first, dict) and all(item.keys() == first.keys() for item in items):
            return {
                key: self._one([item[key] for item in items], f"{place}.{key}") for key in first
            }
        if isinstance(first, list | tuple) and len({len(item) for item in items}) == 1:
            return [
                self._one(row, f"{place}[{at}]") for at, row in enumerate(zip(*items, strict=True))
            ]
        if not all(type(item) is int for item in items):
            raise _Varied(f"{place}: {', '.join(map(str, items))[:200]}")
        return self._expression(tuple(items), place)

    def _expression(self, numbers: tuple[int, ...], place: str) -> str:
        if numbers not in self._known:
            found = next(
                filter(None, (self._polynomial(basis, numbers) for basis in self._bases)), None
            )
            if found is None:
                raise _Varied(f"{place}: {numbers} at {self._points}")
            self._known[numbers] = written(found)
        return self._known[numbers]

    def _polynomial(
        self, basis: Sequence[Monomial], numbers: Sequence[int]
    ) -> Mapping[Monomial, int] | None:
        """Returns the whole coefficients with which the monomials give all numbers, or None."""
        rows = [
            [Fraction(batch**b * seq**s) for b, s in basis] + [Fraction(number)]
            for (batch, seq), number in zip(self._points, numbers, strict=True)
        ]
        for column in range(len(basis)):
            pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
            if pivot is None:
                return None
            rows[column], rows[pivot] = rows[pivot], rows[column]
            top = [value / rows[column][column] for value in rows[column]]
            rows = [
                top if r == column else [a - row[column] * b for a, b in zip(row, top, strict=True)]
                for r, row in enumerate(rows)
            ]
        factors = [row[-1] for row in rows[: len(basis)]]
        if any(row[-1] for row in rows[len(basis) :]) or not all(
            f and f.denominator == 1 for f in factors
        ):
            return None
        return {one: int(factor) for one, factor in zip(basis, factors, strict=True)}
