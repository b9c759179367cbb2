"""Columns that are computed on first use, with a record of what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.sharding.layout import Floats

Asked = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A column that a step program needs: method of a table, arguments, keyword arguments."""


@dataclass(frozen=True)
class TableStructure:
    """What a step program read from a table besides values.

    `columns` are the numbered columns in order of first use; `facts` are other answers that decided
    what was written.
    """

    columns: Mapping[Asked, int]
    facts: Mapping[tuple[str, Any], Any]


class Columns(ABC):
    """Numbered columns of `count` rows. Methods that number one are marked with `column`."""

    def __init__(self, count: int) -> None:
        self.asked: dict[Asked, int] = {}
        self.inside = False
        self._count = count
        self._columns: list[Floats] = []
        self._known: dict[Hashable, int] = {}

    def structure(self) -> TableStructure:
        """Returns the columns and facts that the program has read."""
        return TableStructure(dict(self.asked), self._facts())

    def follows(self, structure: TableStructure) -> bool:
        """Returns whether a program that read this from another table can read it from this one.

        If so, all columns of that program have the same numbers here.
        """
        for what, where in structure.facts:
            self._find(what, where)
        if self._facts() != structure.facts:
            return False
        return all(
            getattr(self, name)(*args, **dict(keywords)) == number
            for (name, args, keywords), number in structure.columns.items()
        )

    def values(self) -> Floats:
        """Returns all columns, shape (count, columns)."""
        if not self._columns:
            return np.zeros((self._count, 0))
        return np.stack(self._columns, axis=1)

    @abstractmethod
    def _facts(self) -> dict[tuple[str, Any], Any]:
        """Returns the facts that were read."""

    @abstractmethod
    def _find(self, fact: str, where: tuple[int, ...]) -> None:
        """Reads a fact."""

    @abstractmethod
    def _present(self, values: Floats) -> Floats:
        """Returns a column where the table's operators exist."""

    def _column(self, key: Hashable, make: Callable[[], Floats | NDArray[np.bool_]]) -> int:
        if key not in self._known:
            # A column may be computed from others, which are then numbered first.
            made = np.broadcast_to(make(), (self._count,))
            column = made.astype(np.float64)
            if made.dtype != np.bool_:
                column = self._present(column)
            self._known[key] = len(self._columns)
            self._columns.append(column)
        return self._known[key]


P = ParamSpec("P")
T = TypeVar("T", bound=Columns)


def column(method: Callable[Concatenate[T, P], int]) -> Callable[Concatenate[T, P], int]:
    """Makes a method record its numbered columns in order."""

    name = method.__name__

    def numbered(self: T, /, *args: P.args, **kwargs: P.kwargs) -> int:
        asked = (name, args, tuple(kwargs.items()) if kwargs else ())
        known = self.asked.get(asked)
        if known is not None:
            return known
        outermost, self.inside = not self.inside, True
        try:
            number = method(self, *args, **kwargs)
        finally:
            self.inside = not outermost
        if outermost:
            self.asked[asked] = number
        return number

    update_wrapper(numbered, method)
    return numbered
