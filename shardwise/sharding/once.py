"""What is made when it is first asked for, and then kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Things by their keys, each made once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what `make` returns, made once."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made
