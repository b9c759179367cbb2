"""Typed access to the fields of a TOML table; each error names the field's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadInput
from shardwise.sizes import format_size, parse_size


class Fields:
    """A table whose fields are taken one by one; `nothing_else` refuses the rest."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path
        self._taken: set[str] = set()

    def path(self, name: str) -> str:
        """Returns the field's path, for messages."""
        return f"{self._path}.{name}" if self._path else name

    def names(self) -> list[str]:
        """Returns the names of all fields, taken at once: of a table of tables."""
        self._taken.update(self._values)
        return list(self._values)

    def raw(self, name: str, default: Any) -> Any:
        """Returns the value unchecked."""
        self._taken.add(name)
        return self._values.get(name, default)

    def table(self, name: str) -> Fields:
        """Returns a table within, empty when it is missing."""
        value = self.raw(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "a table")
        return Fields(value, self.path(name))

    def text(self, name: str, default: str) -> str:
        """Returns a string without NUL."""
        value = self.raw(name, default)
        if not isinstance(value, str) or "\0" in value:
            raise self._wrong(name, value, "a string")
        return value

    def strings(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Returns a list of strings."""
        value = self.raw(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, value, "a list of strings")
        return tuple(value)

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        """Returns a whole number from `low` to `high`."""
        value = self.raw(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def integers(self, name: str, default: tuple[int, ...], *, count: int) -> tuple[int, ...]:
        """Returns a list of `count` whole numbers."""
        value = self.raw(name, default)
        if (
            not isinstance(value, list | tuple)
            or len(value) != count
            or not all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        ):
            raise self._wrong(name, value, f"{count} whole numbers")
        return tuple(value)

    def seconds(self, name: str, default: float) -> float:
        """Returns a duration in seconds, not negative."""
        value = self.raw(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            raise self._wrong(name, value, "seconds, 0 or more")
        return float(value)

    def size(self, name: str, default: int, *, low: int = 0, high: int = 2**62) -> int:
        """Returns bytes, from a whole number or a string such as 64MiB or 8GB."""
        value = self.raw(name, default)
        size_bytes = parse_size(value, self.path(name))
        if not low <= size_bytes <= high:
            raise BadInput(
                f"got {value!r}",
                field=self.path(name),
                expected=f"{format_size(low)} to {format_size(high)}",
            )
        return size_bytes

    def nothing_else(self) -> None:
        """Refuses fields that were not taken: a misspelt limit would limit nothing."""
        for name in self._values:
            if name not in self._taken:
                raise BadInput(
                    "unknown", field=self.path(name), expected=", ".join(sorted(self._taken))
                )

    def _wrong(self, name: str, value: Any, expected: str) -> BadInput:
        return BadInput(f"got {value!r}", field=self.path(name), expected=expected)
