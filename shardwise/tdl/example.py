"""Small calls of an operator that its description is checked on.

Whole numbers and truth values among the inputs are drawn below a bound that the example gives;
all other inputs are floating point. Fixed extents are numbers; a letter is an extent that is drawn
at random in each trial, the same wherever the letter occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput

Shape = tuple[int | str, ...]

EXTENTS = (4, 6, 8, 12)
"""What letters are drawn from: extents with several even shares."""

TRUTH = frozenset({"mask", "condition"})
"""Arguments whose whole numbers are truth values."""


@dataclass(frozen=True)
class Example:
    """One call: `shapes` of the tensor arguments by schema name, `attributes` the others.

    Lists of tensors are `tensors.0`, `tensors.1`. `integers` bounds whole numbers (exclusive);
    `truths` names inputs of truth values, `complexes` complex ones; `given` fixes the values of
    an input (offsets that must ascend). With `positive` floats are away from zero. `dtype` is
    what floats are computed in where the operator refuses float64, `tolerance` how far results
    may then be apart; `whole` is the dtype of whole numbers. `needs` is "cuda" where only that
    implementation exists.
    """

    shapes: Mapping[str, Shape]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[str, int] = field(default_factory=dict)
    positive: bool = False
    complexes: frozenset[str] = frozenset()
    truths: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    tolerance: float = 1e-8
    needs: str = ""
    whole: str = "int64"

    def sized(self, random: np.random.Generator) -> Example:
        """Returns the example with numbers in place of letters."""
        letters: dict[str, int] = {}
        shapes: dict[str, Shape] = {}
        for name, shape in self.shapes.items():
            places = []
            for extent in shape:
                if isinstance(extent, str):
                    extent = letters.setdefault(extent, int(random.choice(EXTENTS)))
                places.append(extent)
            shapes[name] = tuple(places)
        return replace(self, shapes=shapes)

    def draw(self, random: np.random.Generator) -> list[NDArray[Any]]:
        """Returns random inputs, in the order of `shapes`; the extents must be numbers."""
        return [self._draw_one(name, shape, random) for name, shape in self.shapes.items()]

    def _draw_one(self, name: str, shape: Shape, random: np.random.Generator) -> NDArray[Any]:
        extents = [int(extent) for extent in shape]
        if name in self.given:
            return np.asarray(self.given[name]).reshape(extents)
        if name in self.truths or (name in self.integers and name in TRUTH):
            return random.integers(0, 2, extents).astype(bool)
        if name in self.integers:
            return random.integers(0, self.integers[name], extents).astype(self.whole)
        values = random.standard_normal(extents)
        if self.positive:
            values = np.abs(values) + 0.5
        if name in self.complexes:
            return np.asarray(values + 1j * random.standard_normal(extents))
        return np.asarray(values)


def read_shape(text: str) -> tuple[str, Shape]:
    """Parses `x=4,n,8` from the command line."""
    name, separator, extents = text.partition("=")
    if not separator or not name:
        raise BadInput(f"{text!r} is not a tensor", expected="name=4,n,8")
    parts: Sequence[str] = [part.strip() for part in extents.split(",") if part.strip()]
    shape: list[int | str] = []
    for part in parts:
        if part.isdecimal() and int(part) > 0:
            shape.append(int(part))
        elif part.isalpha():
            shape.append(part)
        else:
            raise BadInput(f"{part!r} is not an extent", field=name, expected="a number or letters")
    return name, tuple(shape)
