"""Symbols: a graph file that holds for a range of batches and sequence lengths.

In a document of version 2 with `symbols`, a text that is an expression as a whole, such as `{B}` or
`{2*B*S-1}`, stands for a whole number: a polynomial of the batch B (samples of a step) and of the
sequence length S (tokens of a sample) with whole coefficients.

    "symbols": {"batch": {"captured": 64, "least": 1, "most": 1048576}, "seq": {…}}

`captured` is what the document has unless another size is asked for, `least` and `most` bound what
it is known to hold for. A graph that has no sequence has no `seq`. Inputs have no `batch_dim` in
such a document: those with the extent of the first one get it, as in a capture (`mark_batch`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.graph.graph import Tensor
from shardwise.step_sizes import StepSizes

SYMBOLS = "symbols"
MOST_VALUE = 2**63 - 1
MOST_DEPTH = 24
"""Levels of a row; attributes have fewer (`document.py`)."""

_FACTOR = r"[BS](?:\^[2-4])?"
_TERM = rf"(?:[0-9]{{1,18}}(?:\*{_FACTOR}){{0,2}}|{_FACTOR}(?:\*{_FACTOR})?)"
_EXPRESSION = re.compile(rf"\{{-?{_TERM}(?:[+-]{_TERM}){{0,7}}\}}")
_TERMS = re.compile(rf"([+-]?)({_TERM})")

Monomial = tuple[int, int]
"""The powers of B and of S."""


class Symbol(msgspec.Struct, frozen=True):
    """The captured value of a size, and the least and the most that the document holds for."""

    captured: int
    least: int
    most: int


class Symbols(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sizes of a document; None where the graph has no such size."""

    batch: Symbol | None = None
    seq: Symbol | None = None

    def chosen(self, sizes: StepSizes) -> dict[str, int]:
        """Returns the values of B and S. Raises `BadInput` for a size that the document does not
        hold for."""
        for name, value in sizes.asked.items():
            symbol: Symbol | None = getattr(self, name)
            if symbol is None:
                raise BadInput(
                    f"got {value}", field=name, expected="none: the model has no such size"
                )
            if not symbol.least <= value <= symbol.most:
                raise self._refusal(name, value, symbol)
        return {
            letter: value
            for letter, symbol, value in (
                ("B", self.batch, sizes.batch),
                ("S", self.seq, sizes.seq),
            )
            if symbol is not None
            for value in (symbol.captured if value is None else value,)
        }

    def _refusal(self, name: str, value: int, symbol: Symbol) -> BadInput:
        captured = ", ".join(
            f"{key} {known.captured}"
            for key, known in (("batch", self.batch), ("seq", self.seq))
            if known is not None
        )
        held = (
            f"only {symbol.captured}"
            if symbol.least == symbol.most
            else f"{symbol.least} to {symbol.most}"
        )
        return BadInput(
            f"this graph, captured with {captured}, does not hold for {value}",
            field=name,
            expected=f"{held}; for other values capture the model again, which needs torch: "
            f"shardwise capture MODEL --{name} {value} -o graph.json",
        )


def is_expression(text: str) -> bool:
    """Returns whether a text is an expression as a whole."""
    return text.startswith("{") and _EXPRESSION.fullmatch(text) is not None


def written(terms: Mapping[Monomial, int]) -> str:
    """Returns the expression of a polynomial: its coefficients, none of them 0, by monomial."""
    parts = []
    for (batch, seq), factor in sorted(terms.items(), reverse=True):
        names = [
            name if power == 1 else f"{name}^{power}"
            for name, power in (("B", batch), ("S", seq))
            if power
        ]
        number = [] if abs(factor) == 1 and names else [str(abs(factor))]
        parts.append(("-" if factor < 0 else "+") + "*".join((*number, *names)))
    return f"{{{''.join(parts).removeprefix('+')}}}"


def value_of(text: str, values: Mapping[str, int]) -> int:
    """Returns what an expression is with the values of B and S.

    Raises `BadInput` for a symbol without a value and for more than 63 bits.
    """
    total = 0
    for sign, term in _TERMS.findall(text):
        value = -1 if sign == "-" else 1
        for part in term.split("*"):
            name, _, power = part.partition("^")
            if not name.isdigit() and name not in values:
                raise BadInput(f"got {text[:80]!r}", field=SYMBOLS, expected=f"a symbol {name}")
            value *= (int(name) if name.isdigit() else values[name]) ** int(power or 1)
        total += value
    if abs(total) > MOST_VALUE:
        raise BadInput(
            f"{text[:80]} is more than 2^63 - 1 with {values}",
            field="batch, seq",
            expected="a smaller batch or shorter sequences",
        )
    return total


def with_values(rows: list[Any], values: Mapping[str, int], field: str) -> list[Any]:
    """Returns rows with every expression replaced by what it is with the values of B and S."""
    known: dict[str, int] = {}

    def replaced(item: Any, depth: int) -> Any:
        if isinstance(item, str):
            if not is_expression(item):
                return item
            if item not in known:
                known[item] = value_of(item, values)
            return known[item]
        if depth > MOST_DEPTH:
            raise BadInput("nested too deeply", field=field, expected=f"{MOST_DEPTH} levels")
        if isinstance(item, list):
            return [replaced(one, depth + 1) for one in item]
        if isinstance(item, dict):
            return {key: replaced(one, depth + 1) for key, one in item.items()}
        return item

    return [replaced(row, 0) for row in rows]


def mark_batch(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors with dimension 0 of inputs marked as the batch if its extent is that of the
    first input."""
    inputs = [t for t in tensors.values() if t.role == "input" and t.shape]
    marked = {t.name: replace(t, batch_dim=0) for t in inputs if t.shape[0] == inputs[0].shape[0]}
    return {name: marked.get(name, tensor) for name, tensor in tensors.items()}
