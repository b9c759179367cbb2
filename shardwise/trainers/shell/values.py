"""Texts of which parts are not known: what variables of a script hold before it has run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.errors import BadInput

LONGEST_VALUE = 2**16
MOST_CHARACTERS = 2**24
"""Characters of all values and words that a script may make."""

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True)
class Unknown:
    """What a script does not say: `what` in words, and which `values` its conditions name.

    `unset`: the script never sets it, so that a default stands for it; `file` is another one that
    it reads before, which may. `texts` are what branches make of it where they differ.
    """

    what: str
    values: tuple[str, ...] = ()
    unset: bool = False
    texts: tuple[str, ...] = ()
    file: str = ""

    @property
    def in_words(self) -> str:
        """The unknown and the values that it is compared with."""
        named = ", ".join(value[:20] for value in self.values[:6])
        return f"{self.what} ({named})" if named else self.what


@dataclass
class Texts:
    """The unknowns of one script; each stands in texts as a mark."""

    unknowns: list[Unknown] = field(default_factory=list)
    _made: int = 0

    def mark(self, unknown: Unknown) -> str:
        """Returns a text that stands for what is unknown."""
        self.unknowns.append(unknown)
        return self.made(f"{_OPEN}{len(self.unknowns) - 1}{_CLOSE}")

    def made(self, text: str) -> str:
        """Returns a text that a script makes. Raises `BadInput` where texts grow without end."""
        self._made += len(text) + 1
        if len(text) > LONGEST_VALUE or self._made > MOST_CHARACTERS:
            raise BadInput("its variables grow too long", expected="a launch script")
        return text

    def only(self, text: str) -> Unknown | None:
        """Returns the unknown that is all of a text, if it is."""
        match = _MARK.fullmatch(text)
        return None if match is None else self.unknowns[int(match[1])]

    def inside(self, text: str) -> Iterator[Unknown]:
        """Yields the unknowns in a text."""
        for match in _MARK.finditer(text):
            yield self.unknowns[int(match[1])]

    def without(self, text: str, what: str) -> str:
        """Returns a text in which an unknown that nothing sets is empty, as a shell has it."""
        return _MARK.sub(lambda m: "" if self._is_unset(int(m[1]), what) else m[0], text)

    def _is_unset(self, index: int, what: str) -> bool:
        return self.unknowns[index].unset and self.unknowns[index].what == what

    def is_empty(self, text: str) -> bool:
        """Returns whether a text is empty as far as the script says."""
        only = self.only(text)
        return not text or (only is not None and only.unset)


def known(text: str) -> bool:
    """Returns whether all of a text is known."""
    return _OPEN not in text


def without_marks(text: str) -> str:
    """Returns a script without characters that would be taken for marks."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")
