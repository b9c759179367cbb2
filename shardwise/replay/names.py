"""Translates operator and tensor names between layers, in a program's labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.replay.course import TEMPLATE, Unlike
from shardwise.replay.layers import EARLY, Folded
from shardwise.replay.record import Numbers

Place = tuple[int, int, int]
"""Where a name is: its repetition, the operator that makes or reads it, and which of the operator's
names it is: its own, those of its outputs and of its inputs."""

Places = list[tuple[int, Place]]

Move = tuple[list[str], Places]
"""A label's words, and which of them are names."""


class Names:
    """The names in layers, by repetition, layer and position."""

    def __init__(self, problem: SearchProblem, folded: Folded) -> None:
        self._operators = problem.context.graph.operators
        self._repetitions = folded.repetitions
        self._folded = folded

    @cached_property
    def _places(self) -> dict[str, Place]:
        places: dict[str, Place] = {}
        for number, r in enumerate(self._repetitions):
            made: dict[str, Place] = {}
            for at in range(r.operator, r.operator + EARLY * r.period):
                for which, name in enumerate(self._names(at)):
                    made.setdefault(name, (number, at, which))
            places = made | places
        return places

    def _names(self, operator: int) -> tuple[str, ...]:
        op = self._operators[operator]
        return (op.name, *op.outputs, *op.inputs)

    def parts(self, label: str) -> Move:
        """Returns a label's words, and which of them are names."""
        words = label.replace(", ", " , ").split(" ")
        places = self._places
        return words, [(n, places[word]) for n, word in enumerate(words) if word in places]

    def later(self, place: Place, layers: int) -> str:
        """Returns the name at the same position some layers later."""
        number, operator, which = place
        return self._names(operator + layers * self._repetitions[number].period)[which]


class Labels(Sequence[str]):
    """The labels of a whole program, derived on demand from those of the written layers."""

    def __init__(
        self,
        names: Names,
        labels: Sequence[str],
        sources: Numbers,
        layers: Numbers,
        rank: Numbers,
        like: tuple[Numbers, Numbers],
    ) -> None:
        """`labels` are those of written tasks or buffers, `rank` says of which layer each
        is, `sources` (n,) which stands for each of the whole program and `layers` in which layer;
        `like` are numbers of neighbouring layers that are alike. Raises `Unlike` where the names of
        one layer are not those of another."""
        self._names, self._written = names, labels
        self._sources, self._layers, self._rank = sources, layers, rank
        self._moves: dict[int, Move] = {}
        lower, upper = like
        for of in range(TEMPLATE - 1, EARLY):
            some = np.flatnonzero(rank[lower] == of)
            for one, other in zip(lower[some].tolist(), upper[some].tolist(), strict=True):
                if of >= TEMPLATE:
                    # What is read of a layer that was left out has another name here.
                    self._moves[other] = self._moves[one]
                    continue
                words, places = names.parts(labels[one])
                if labels[one] == labels[other]:
                    places = []
                elif self._text(words, places, 1) != labels[other]:
                    raise Unlike
                self._moves[other] = words, places

    def _text(self, words: list[str], places: Places, layers: int) -> str:
        text = list(words)
        for at, place in places:
            text[at] = self._names.later(place, layers)
        return " ".join(text).replace(" , ", ", ")

    @cached_property
    def _every(self) -> list[str]:
        return [self[number] for number in range(len(self))]

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self._every[at]
        source, layer = int(self._sources[at]), int(self._layers[at])
        move = self._moves.get(source)
        if move is None or layer == self._rank[source]:
            return self._written[source]
        words, places = move
        return self._text(words, places, layer - TEMPLATE + 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._every)
