"""Conditions of scripts: `[ ]`, `[[ ]]` and `(( ))`, true, false or unknown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from shardwise.trainers.shell.expansion import Expander, matches
from shardwise.trainers.shell.tree import Word
from shardwise.trainers.shell.values import Unknown, known

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_WHOLE = re.compile(r"\s*-?[0-9]{1,18}\s*")
_UNARY = re.compile(r"-[a-zA-Z]")


class Conditions:
    """Reads conditions of a script, and remembers what the last unknown one depends on."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self.cause = Unknown("a condition")

    def blame(self, text: str, values: Sequence[str] = ()) -> None:
        """Remembers the unknown in a text, and the values that it is compared with."""
        unknown = next(self._expander.texts.inside(text), None)
        if unknown is None:
            return
        given = (value for value in values if known(value))
        before = self.cause.values if self.cause.what == unknown.what else ()
        compared = tuple(dict.fromkeys((*before, *unknown.values, *given)))
        self.cause = Unknown(unknown.what, compared)

    def blame_test(self, test: str) -> None:
        """Remembers the unknown in a test; the test itself where there is none in it."""
        self.cause = Unknown(f"[ {test[:40]} ]")
        self.blame(test)

    def blame_command(self, words: Sequence[str]) -> None:
        """Remembers that a condition is what a command finds."""
        self.cause = Unknown(f"`{' '.join(words)[:40]}`")

    def truth(self, value: str) -> bool | None:
        """Returns whether a number is not 0."""
        if known(value):
            return value.strip() not in ("", "0")
        self.blame(value)
        return None

    def words(self, words: Sequence[Word], closed: bool = False) -> bool | None:
        """Returns what the words of a test say; `closed` where the last is its bracket."""
        flat: list[tuple[str, bool]] = []
        for word in words:
            quoted = any(part.quoted for part in word)
            if len(word) == 1 and word[0].kind == "parameter" and not quoted and closed:
                flat += [(text, True) for text in self._expander.fields(word)]
            else:
                plain = not quoted and all(part.kind == "text" for part in word)
                flat.append((self._expander.text(word), not plain))
        if closed and flat and flat[-1][0] == "]":
            flat.pop()
        reader = _Test(self, flat, self._expander)
        return reader.all()


class _Test:
    """The words of a test, read by precedence: `||`, `&&`, `!`, one comparison."""

    def __init__(
        self, conditions: Conditions, words: list[tuple[str, bool]], expander: Expander
    ) -> None:
        self._conditions = conditions
        self._words = words
        self._expander = expander
        self._at = 0

    def all(self) -> bool | None:
        value = self._any_of()
        return value if self._at >= len(self._words) else self._unread()

    def _unread(self) -> bool | None:
        self._conditions.blame_test(" ".join(word for word, _ in self._words))
        return None

    def _is(self, *operators: str) -> bool:
        if self._at >= len(self._words):
            return False
        text, literal = self._words[self._at]
        return text in operators and not literal

    def _any_of(self) -> bool | None:
        value = self._all_of()
        while self._is("||", "-o"):
            self._at += 1
            other = self._all_of()
            value = True if value or other else None if None in (value, other) else False
        return value

    def _all_of(self) -> bool | None:
        value = self._one()
        while self._is("&&", "-a"):
            self._at += 1
            other = self._one()
            value = False if False in (value, other) else None if None in (value, other) else True
        return value

    def _one(self) -> bool | None:
        if self._is("!"):
            self._at += 1
            value = self._one()
            return None if value is None else not value
        if self._is("("):
            self._at += 1
            value = self._any_of()
            if self._is(")"):
                self._at += 1
            return value
        words = [text for text, _ in self._words[self._at : self._at + 3]]
        if len(words) > 1 and not self._words[self._at][1] and _UNARY.fullmatch(words[0]):
            self._at += 2
            return self._unary(words[0], words[1])
        if len(words) == 3 and not self._words[self._at + 1][1] and self._compares(words[1]):
            self._at += 3
            return self._compared(*words)
        self._at += 1
        return not self._expander.texts.is_empty(words[0]) if words else False

    @staticmethod
    def _compares(word: str) -> bool:
        return word in ("=", "==", "!=", "=~", "<", ">") or word in _NUMBERS

    def _unary(self, test: str, text: str) -> bool | None:
        if test in ("-z", "-n"):
            return self._expander.texts.is_empty(text) == (test == "-z")
        if test == "-v":
            return text in self._expander.variables
        self._conditions.blame_test(f"{test} {text}")
        return None

    def _compared(self, left: str, test: str, right: str) -> bool | None:
        if test in ("=", "==", "!=") and not right and self._expander.texts.is_empty(left):
            return test != "!="
        if not known(left) or not known(right):
            self._conditions.blame(left + right, [text for text in (left, right) if known(text)])
            return None
        if test in _NUMBERS:
            if not _WHOLE.fullmatch(left) or not _WHOLE.fullmatch(right):
                return False
            return _NUMBERS[test](int(left), int(right))
        if test in ("<", ">"):
            return left < right if test == "<" else left > right
        if test == "=~":
            return self._unread()
        same = matches(left[:1000], right[:100])
        return same if test != "!=" else not same
