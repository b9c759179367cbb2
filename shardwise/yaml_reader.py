"""YAML from outside as plain values: the one reader of all files and tasks in YAML.

PyYAML's parser gives events, and values are made of them here, so that a short text never becomes
a large value: no aliases, no tags but the core ones, one document, bounded in length, depth and
number of values. `%TAG` is refused before anything is parsed, since libyaml compares each of them
with all before it. Plain scalars are null, truths, numbers and text. Numbers are those of YAML 1.2
(10.3.2): no sexagesimal `1:30`, no underscores, `1e-8` is a number, `010` is ten. Truths are those
of YAML 1.1 (`yes`, `on`), since the programs that read the same files (accelerate, SkyPilot,
Kubernetes) take them so. Dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shardwise.errors import BadInput

MOST_CHARACTERS = 2**20
MOST_VALUES = 50_000
DEEPEST = 20
LONGEST_KEY = 1024
SHOWN = 60
"""Characters of a key that an error shows."""

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((w for t in ("true", "yes", "on") for w in (t, t.title(), t.upper())), True),
    **dict.fromkeys((w for t in ("false", "no", "off") for w in (t, t.title(), t.upper())), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_TAG_LINE = re.compile("(?:^\ufeff?|[\n\r\x85\u2028\u2029])%TAG\\b")
_CORE = "tag:yaml.org,2002:"
_KINDS: dict[str, tuple[type, ...]] = {
    _CORE + "null": (type(None),),
    _CORE + "bool": (bool,),
    _CORE + "int": (int,),
    _CORE + "float": (float, int),
    _CORE + "seq": (list,),
    _CORE + "map": (dict,),
}
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)


def read_yaml(
    text: str,
    *,
    file: str | None = None,
    field: str | None = None,
    expected: str = "one YAML document",
) -> Any:
    """Returns the value of a YAML text: None, bool, int, float, str, or lists and dicts of them.

    Errors name `file` or `field`. Raises `BadInput` for what is no YAML, longer than
    `MOST_CHARACTERS`, deeper than `DEEPEST`, of more than `MOST_VALUES` values, for aliases, tags
    and their directives, several documents, keys that occur twice or are no scalars, the character
    0 (PostgreSQL cannot store it), whole numbers of more than 64 bits, and where PyYAML is not
    installed.
    """
    try:
        return _Reader(text).document()
    except BadInput as error:
        expected = error.expected or expected
        raise BadInput(error.problem, file=file, field=field, expected=expected) from None


class _Reader:
    """Makes values of one text's events."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise BadInput("too long", expected=f"at most {MOST_CHARACTERS} characters")
        if _TAG_LINE.search(text):
            raise BadInput("a %TAG directive", expected="YAML without tags")
        try:
            import yaml
        except ImportError:
            raise BadInput(
                "YAML is read by PyYAML, which is not installed",
                expected="pip install 'shardwise[trainers]'",
            ) from None
        self._yaml = yaml
        self._text = text
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._parsed: Iterator[Any] = iter(yaml.parse(text, Loader=loader))
        self._values = 0

    def document(self) -> Any:
        """Returns the text's only document; None for an empty text."""
        yaml = self._yaml
        self._next()  # the stream's start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the document's end
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise BadInput(f"a second document{_where(event)}", expected="one document")
        return value

    def _next(self) -> Any:
        try:
            return next(self._parsed)
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            tab = mark is not None and self._is_tabbed(mark.line)
            raise BadInput(
                f"{'a tab before a value' if tab else 'not YAML'}{_at(mark)}",
                expected="spaces, which alone indent YAML"
                if tab
                else "YAML 1.2 of mappings, lists and plain values",
            ) from None
        except (ValueError, RecursionError, StopIteration):
            raise BadInput(
                "not YAML that can be read", expected="YAML 1.2 of mappings, lists and plain values"
            ) from None

    def _is_tabbed(self, number: int) -> bool:
        """Returns whether a line of the text is indented by tabs."""
        lines = self._text.splitlines()
        line = lines[number] if number < len(lines) else ""
        return "\t" in line[: len(line) - len(line.lstrip())]

    def _value(self, event: Any, depth: int) -> Any:
        yaml = self._yaml
        self._values += 1
        if self._values > MOST_VALUES:
            raise BadInput("too many values", expected=f"at most {MOST_VALUES} values")
        if isinstance(event, yaml.AliasEvent):
            raise BadInput(f"an alias (*){_where(event)}", expected="YAML without aliases")
        if isinstance(event, yaml.ScalarEvent):
            if "\0" in event.value:
                raise BadInput(f"the character 0{_where(event)}", expected="text without it")
            return self._tagged(event, scalar(event))
        if depth == DEEPEST:
            raise BadInput(
                f"nested too deeply{_where(event)}", expected=f"at most {DEEPEST} levels"
            )
        of_list = isinstance(event, yaml.SequenceStartEvent)
        value = self._list(depth + 1) if of_list else self._mapping(depth + 1)
        return self._tagged(event, value)

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self._next(), self._yaml.SequenceEndEvent):
            values.append(self._value(event, depth))
        return values

    def _mapping(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        while not isinstance(event := self._next(), self._yaml.MappingEndEvent):
            key = self._value(event, depth)
            if isinstance(key, list | dict):
                raise BadInput(
                    f"a key that is a list or a mapping{_where(event)}", expected="scalar keys"
                )
            if isinstance(key, str):
                self._check_key(key, event)
            if key in members:
                raise BadInput(
                    f"the key {str(key)[:SHOWN]!r} occurs twice{_where(event)}",
                    expected="each key once",
                )
            members[key] = self._value(self._next(), depth)
        return members

    def _check_key(self, key: str, event: Any) -> None:
        if len(key) > LONGEST_KEY:
            raise BadInput(
                f"a key too long{_where(event)}", expected=f"at most {LONGEST_KEY} characters"
            )
        if key == "<<" and not event.style:
            raise BadInput(f"a merge key (<<){_where(event)}", expected="YAML without merge keys")

    def _tagged(self, event: Any, value: Any) -> Any:
        """Returns a value that has the type of its tag, if the text gives it one."""
        tag = event.tag
        if tag is None or tag == "!":
            return value
        if tag == _CORE + "str" and isinstance(event, self._yaml.ScalarEvent):
            return event.value
        if tag not in _KINDS or not isinstance(value, _KINDS[tag]):
            raise BadInput(f"the tag {tag[:SHOWN]!r}{_where(event)}", expected="YAML without tags")
        return value


def scalar(event: Any) -> Any:
    """Returns the value of a scalar's event; only plain ones are more than text."""
    text: str = event.value
    if event.style or event.tag == "!":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 400:
        # No number is as long, and the patterns below need not look.
        return _long(text, event)
    if _WHOLE.fullmatch(text):
        return _whole(text, 10, event)
    if _BASED.fullmatch(text):
        return _whole(text[2:], 8 if text[1] == "o" else 16, event)
    return float(text) if _FLOAT.fullmatch(text) else text


def _long(text: str, event: Any) -> str:
    if text.lstrip("+-").isdigit() and text.isascii():
        raise BadInput(f"a number of {len(text)} digits{_where(event)}", expected="at most 64 bits")
    return text


def _whole(text: str, base: int, event: Any) -> int:
    value = int(text, base)
    if not _SMALLEST <= value <= _LARGEST:
        raise BadInput(
            f"a whole number of {len(text)} digits{_where(event)}", expected="at most 64 bits"
        )
    return value


def _where(event: Any) -> str:
    return _at(event.start_mark)


def _at(mark: Any) -> str:
    return "" if mark is None else f" in line {mark.line + 1}"
