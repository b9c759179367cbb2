"""Expansions of words: variables, defaults, arithmetic (POSIX shell, 2.6, with bash's arrays)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.trainers.shell.arithmetic import value_of
from shardwise.trainers.shell.syntax import parse
from shardwise.trainers.shell.tree import Part, Simple, Word
from shardwise.trainers.shell.values import Texts, Unknown, known
from shardwise.trainers.shell.words import DEEPEST, parse_word

Value = str | list[str]
"""What a variable holds: a text, or the texts of an array."""

_PARAMETER = re.compile(
    r"(?P<prefix>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<index>[^\]]{1,40})\])?(?P<operator>:?[-=?+]|##?|%%?|//?|\^\^?|,,?|:)?",
)
_PRINTING = ("echo ", "expr ", "cat ")
_SHOWN = 40


@dataclass
class Expander:
    """Variables and arguments of a script, and what words make of them."""

    texts: Texts
    variables: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] | None = None
    sourced: str = ""
    """A sourced file, which may set variables that this script does not set."""
    depth: int = 0

    def text(self, word: Word) -> str:
        """Returns a word as one text, as in an assignment."""
        return self.texts.made("".join(self._joined(part) for part in word))

    def fields(self, word: Word) -> list[str]:
        """Returns the words that a word becomes: what is not in quotes is split at spaces."""
        made: list[str] = []
        current: str | None = None
        for part in word:
            values = self._value(part)
            if isinstance(values, str) and not part.quoted and part.kind != "text":
                lead, tail = values[:1].isspace(), values[-1:].isspace()
                values = values.split()
                if lead and current is not None:
                    made.append(current)
                    current = None
            else:
                values, lead, tail = [values] if isinstance(values, str) else values, False, False
            for number, value in enumerate(values):
                if number:
                    made.append(current or "")
                    current = None
                current = (current or "") + value
            if tail and current is not None:
                made.append(current)
                current = None
        if current is not None:
            made.append(current)
        return [self.texts.made(one) for one in made]

    def _joined(self, part: Part) -> str:
        value = self._value(part)
        return value if isinstance(value, str) else " ".join(value)

    def _value(self, part: Part) -> Value:
        if part.kind == "text":
            return part.text
        if part.kind == "parameter":
            return self._parameter(part.text, part.quoted)
        if part.kind == "arithmetic":
            return self.arithmetic(part.text)
        printed = self._printed(part.text)
        return self.texts.mark(Unknown(f"$({_short(part.text)})")) if printed is None else printed

    def _printed(self, script: str) -> str | None:
        """Returns what a command prints, if it is one that only prints its words, the value of its
        arithmetic or its here-document; None where that is unknown."""
        if self.depth >= DEEPEST or not script.lstrip().startswith(_PRINTING):
            return None
        commands = parse(script).commands
        command = commands[0] if len(commands) == 1 else None
        if not isinstance(command, Simple) or command.assignments:
            return None
        self.depth += 1
        name, *words = [one for word in command.words for one in self.fields(word)]
        documents = [self.text(one) for one in command.documents]
        self.depth -= 1
        if name == "cat" and not words and len(documents) == 1:
            return documents[0].rstrip("\n")
        if documents or (words and words[0].startswith("-")):
            return None
        if name == "echo":
            return self.texts.made(" ".join(words))
        return self.arithmetic(" ".join(words)) if name == "expr" and len(words) > 1 else None

    def arithmetic(self, expression: str) -> str:
        """Returns the value of an arithmetic expression as a text."""
        unknown: list[Unknown] = []
        plain = self.text(parse_word(expression, True, self.depth))

        def variable(name: str) -> int | None:
            value = self._named(name)
            value = value if isinstance(value, str) else (value or [""])[0]
            if re.fullmatch(r"-?\d{1,18}", value):
                return int(value)
            unknown.extend(self.texts.inside(value))
            return None

        value = value_of(plain, variable)
        if value is not None:
            return str(value)
        unknown.extend(self.texts.inside(plain))
        known_cause = unknown[0] if unknown else Unknown(f"$(({_short(expression)}))")
        return self.texts.mark(Unknown(known_cause.what, known_cause.values))

    def _named(self, name: str) -> Value:
        """Returns what a variable or an argument holds; a mark where the script does not set it."""
        if name in ("@", "*"):
            return list(self.arguments or ())
        if name == "0":
            return "script"
        if name.isdecimal() and self.arguments is not None:
            index = int(name[:6]) - 1
            return self.arguments[index] if index < len(self.arguments) else ""
        if name == "#" and self.arguments is not None:
            return str(len(self.arguments))
        if name in self.variables:
            return self.variables[name]
        unset = name not in "#?$!-"
        file = self.sourced if unset and not name.isdecimal() else ""
        return self.texts.mark(Unknown(f"${name}", unset=unset, file=file))

    def _parameter(self, inner: str, quoted: bool) -> Value:
        """Returns what `${inner}` is."""
        match = _PARAMETER.match(inner)
        if match is None:
            return self._unread(inner)
        value, operator = self._indexed(match["name"], match["index"]), match["operator"]
        rest = inner[match.end() :]
        if match["prefix"] == "#":
            return str(len(value)) if rest == "" and not operator else self._unread(inner)
        if match["prefix"] or (operator is None and rest):
            return self._unread(inner)
        if operator is None:
            return value
        empty = self._is_empty(value, operator)
        if operator in (":-", "-", ":=", "="):
            if not empty:
                return value
            default = self._default(rest, quoted)
            if operator in (":=", "="):
                self.variables[match["name"]] = default
            return default
        if operator in (":+", "+"):
            return "" if empty else self._default(rest, quoted)
        if operator in (":?", "?"):
            return value
        return self._changed(value, operator, rest, inner)

    def _is_empty(self, value: Value, operator: str) -> bool:
        if isinstance(value, list):
            return not value
        unset = self.texts.only(value)
        return (unset is not None and unset.unset) or (operator[0] == ":" and not value)

    def _indexed(self, name: str, index: str | None) -> Value:
        value = self._named(name)
        if index in ("@", "*"):
            return value if isinstance(value, list) else self._of_text(value)
        if isinstance(value, str):
            return value if index in (None, "0") else self._unread(f"{name}[{index}]")
        if index is None:
            return value[0] if value and name not in ("@", "*") else value
        number = value_of(index, lambda one: None)
        if number is None or not -len(value) <= number < len(value):
            return self._unread(f"{name}[{index}]")
        return value[number]

    def _of_text(self, value: str) -> list[str]:
        return [] if self.texts.is_empty(value) else [value]

    def _default(self, text: str, quoted: bool) -> str:
        if self.depth >= DEEPEST:
            return self._unread(text)
        self.depth += 1
        made = self.text(parse_word(text, quoted, self.depth))
        self.depth -= 1
        return made

    def _changed(self, value: Value, operator: str, rest: str, inner: str) -> Value:
        """Returns a value without a prefix or suffix, in another case, or with parts replaced."""
        if not isinstance(value, str) or not known(value):
            return value
        if operator in ("^^", ",,") and not rest:
            return value.upper() if operator == "^^" else value.lower()
        pattern = self._default(rest, False)
        if not known(pattern) or len(value) > 1000 or len(pattern) > 100:
            return self._unread(inner)
        if operator in ("%", "%%", "#", "##"):
            return _stripped(value, pattern, operator)
        old, _, new = pattern.partition("/")
        if operator in ("/", "//") and old and not set("*?[") & set(old):
            return value.replace(old, new, -1 if operator == "//" else 1)
        return self._unread(inner)

    def _unread(self, inner: str) -> str:
        return self.texts.mark(Unknown(f"${{{_short(inner)}}}"))


def matches(text: str, pattern: str) -> bool:
    """Returns whether a text matches a pattern of `*`, `?` and `[ ]`."""
    return fnmatch.fnmatchcase(text, pattern)


def _stripped(value: str, pattern: str, operator: str) -> str:
    ends = range(len(value) + 1)
    if operator[0] == "#":
        order: Sequence[int] = ends if operator == "#" else ends[::-1]
        return next((value[end:] for end in order if matches(value[:end], pattern)), value)
    order = ends[::-1] if operator == "%" else ends
    return next((value[:start] for start in order if matches(value[start:], pattern)), value)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
