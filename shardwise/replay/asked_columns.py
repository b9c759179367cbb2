"""Which columns of a table a step program asked for: what makes programs of other tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec

Asked = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A column that a step program needs: method of `GroupTable`, arguments, keyword arguments."""


@dataclass(frozen=True)
class TableStructure:
    """What a step program took from a table besides values.

    `columns` are those it asked for, with their numbers, in this order; `facts` what else decided
    what was written.
    """

    columns: Mapping[Asked, int]
    facts: Mapping[tuple[str, Any], Any]


P = ParamSpec("P")


def column(
    method: Callable[Concatenate[Any, P], int],
) -> Callable[Concatenate[Any, P], int]:
    """Makes a method that numbers a column remember what was asked for, in order."""

    name = method.__name__

    def numbered(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> int:
        asked = (name, args, tuple(kwargs.items()) if kwargs else ())
        known: int | None = self.asked.get(asked)
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
