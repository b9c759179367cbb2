"""Words of shell scripts: quotes, escapes, and what begins with `$` (POSIX shell, 2.2 and 2.6)."""

from __future__ import annotations

from shardwise.errors import BadInput
from shardwise.trainers.shell.tree import Part, Word

DEEPEST = 24
"""Levels of nested commands, quotes and expansions."""

_SPACE = " \t"
ENDS_WORD = " \t\n;&|<>()"
_ESCAPED_IN_QUOTES = '$`"\\\n'
NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
NAME = NAME_START | frozenset("0123456789")
_SPECIAL = frozenset("@*#?$!-0123456789")


def parse_word(text: str, quoted: bool, depth: int) -> Word:
    """Returns a text, such as a default inside `${ }`, as one word with its spaces."""
    return Words(text, depth).whole(quoted)


class Words:
    """A position in a text, and the words that can be read there."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self._depth = depth

    def error(self, problem: str) -> BadInput:
        line = self.text.count("\n", 0, self.at) + 1
        return BadInput(problem, field=f"line {line}", expected="a shell script")

    def _ahead(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def _take(self, what: str) -> bool:
        if not self._ahead(what):
            return False
        self.at += len(what)
        return True

    def _spaces(self) -> None:
        """Skips blanks, continued lines and comments."""
        text, size = self.text, len(self.text)
        while self.at < size:
            if text[self.at] in _SPACE:
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] == "#" and (self.at == 0 or text[self.at - 1] in ENDS_WORD):
                end = text.find("\n", self.at)
                self.at = size if end < 0 else end
            else:
                return

    def _word_ahead(self) -> bool:
        self._spaces()
        if self._ahead("<(") or self._ahead(">("):
            return True
        return self.at < len(self.text) and self.text[self.at] not in ENDS_WORD

    def whole(self, quoted: bool) -> Word:
        """Reads all of the text as one word, its spaces with it."""
        return self._parts("" if quoted else "\0", quoted, own_quotes=not quoted)

    def _word(self, ends: str = ENDS_WORD) -> Word:
        if self._ahead("<(") or self._ahead(">("):
            self.at += 2
            return (Part("command", self._until_closed("(", ")"), True),)
        return self._parts(ends, False, own_quotes=True)

    def _parts(self, ends: str, quoted: bool, own_quotes: bool) -> Word:
        """Reads parts up to one of the characters `ends`, which is left."""
        text, size = self.text, len(self.text)
        parts: list[Part] = []
        plain: list[str] = []

        def flush(as_quoted: bool = quoted) -> None:
            if plain:
                parts.append(Part("text", "".join(plain), as_quoted))
                plain.clear()

        while self.at < size:
            character = text[self.at]
            if character in ends:
                break
            if character == "\\":
                following = text[self.at + 1 : self.at + 2]
                self.at += 2
                if following == "\n":
                    continue
                if quoted and following not in _ESCAPED_IN_QUOTES:
                    plain.append("\\")
                plain.append(following)
            elif character == "'" and own_quotes:
                end = text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("a quote without its end")
                flush()
                parts.append(Part("text", text[self.at + 1 : end], True))
                self.at = end + 1
            elif character == '"' and own_quotes:
                flush()
                self.at += 1
                self._depth += 1
                if self._depth > DEEPEST:
                    raise self.error(f"nested more than {DEEPEST} deep")
                inner = self._parts('"', True, own_quotes=False)
                self._depth -= 1
                parts.extend(inner or (Part("text", "", True),))
                if not self._take('"'):
                    raise self.error("a quote without its end")
            elif character in "$`":
                part = self._expansion(quoted, own_quotes)
                if part is None:
                    plain.append(character)
                    self.at += 1
                else:
                    flush()
                    parts.append(part)
            else:
                plain.append(character)
                self.at += 1
        flush()
        return tuple(parts)

    def _expansion(self, quoted: bool, own_quotes: bool) -> Part | None:
        """Takes what begins with `$` or a backquote; None where that stands for itself."""
        text = self.text
        if self._take("`"):
            end = text.find("`", self.at)
            if end < 0:
                raise self.error("a backquote without its end")
            inner, self.at = text[self.at : end], end + 1
            return Part("command", inner, quoted)
        if self._take("$(("):
            return Part("arithmetic", self._until_closed("((", "))"), quoted)
        if self._take("$("):
            return Part("command", self._until_closed("(", ")"), quoted)
        if self._take("${"):
            return Part("parameter", self._until_closed("{", "}"), quoted)
        if own_quotes and self._ahead("$'"):
            end = text.find("'", self.at + 2)
            if end < 0:
                raise self.error("a quote without its end")
            inner, self.at = text[self.at + 2 : end], end + 1
            return Part("text", inner, True)
        following = text[self.at + 1 : self.at + 2]
        if following in _SPECIAL and following:
            self.at += 2
            return Part("parameter", following, quoted)
        if following not in NAME_START or not following:
            return None
        end = self.at + 1
        while end < len(text) and text[end] in NAME:
            end += 1
        name, self.at = text[self.at + 1 : end], end
        return Part("parameter", name, quoted)

    def _until_closed(self, opening: str, closing: str) -> str:
        """Takes a text up to its closing bracket, quotes and brackets inside it with it."""
        text, size, start = self.text, len(self.text), self.at
        bracket, close, open_ones = opening[0], closing[0], len(opening)
        while self.at < size:
            character = text[self.at]
            if character == "\\":
                self.at += 1
            elif character in "'\"" and bracket != "{":
                end = text.find(character, self.at + 1)
                self.at = size if end < 0 else end
            elif character == bracket:
                open_ones += 1
            elif character == close:
                open_ones -= 1
                if not open_ones:
                    inner = text[start : self.at + 1 - len(closing)]
                    self.at += 1
                    return inner
            self.at += 1
        raise self.error(f"{opening!r} without {closing!r}")
