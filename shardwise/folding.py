"""Rows that repeat, written once: the layers of a model, and what a plan says of them.

Folded rows are for what repeats in order, as a model's layers do:

    rows = item*,  item = row | {"repeat": n, "rows": [row, …]}

Rows are JSON objects or texts. Those of instance k = 0 … n - 1 are those of `rows` with every
`{a+bk}` in their texts replaced by the number a + b·k, so `model.layers.{0+1k}.mlp` stands for the
modules of all layers and `add_{3+4k}` for every fourth addition. Nothing else changes from one
instance to the next: shapes, attributes and the order of tensors are equal, or the rows are not
folded.

Shared rows are for what comes back in any order, as the choices of layers do:

    {"templates": {name: row, …}, "rows": folded rows of texts}

A text `name` is that template as it is. `name:n0,n1,…` is the template with every `{i}`, `{i+c}`
and `{i-c}` in its texts replaced by the number n_i, n_i + c or n_i - c; the text `{{i+c}}` as a
whole is a number, not a text.

Unfolding gives back what was folded, row by row.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from string import ascii_lowercase
from typing import Any

from shardwise.errors import BadInput

Row = dict[str, Any] | str

REPEAT, ROWS, TEMPLATES = "repeat", "rows", "templates"
MOST_PERIODS = 64
"""Places where the next instance may begin that are tried at each row."""
MOST_BYTES = 2**28
"""Characters of rows that may be unfolded: as long a file would be refused."""
LEAST_SAVED = 4
"""Rows that a repeat has to save: one of two rows is longer than these."""
LONGEST_NUMBER = 20
"""Characters that a number may have which a template is filled with."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MEMBER = re.compile(r'("(?:[^"\\]|\\.)*")(?:: (0|[1-9][0-9]{0,8})(?=[,}]))?')
_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")
_PLACE = re.compile(r"\{([0-9]{1,9})([+-][0-9]{1,9})k\}")
_WHOLE = '"{{}}"'
"""What a mark has for a member that is a whole number, which may grow."""
_HOLE = re.compile(r'"\{\{([0-9]{1,4})([+-][0-9]{1,9})?\}\}"|\{([0-9]{1,4})([+-][0-9]{1,9})?\}')
_REFERENCE = re.compile(r"([a-z]{1,9})(?::([0-9]{1,10}(?:,[0-9]{1,10})*))?")


def _none(text: str) -> bool:
    return False


@dataclass(frozen=True)
class _Mark:
    """A row as text with its texts' numbers taken out, and these."""

    text: str
    numbers: tuple[int, ...]


def fold_rows(rows: Sequence[Row], fixed: Callable[[str], bool] = _none) -> list[Row]:
    """Returns the rows with those that repeat folded; texts that are `fixed` change nowhere."""
    marks = [_mark(row, fixed, sort=True) for row in rows]
    places: dict[str, list[int]] = defaultdict(list)
    for at, mark in enumerate(marks):
        if mark is not None:
            places[mark.text].append(at)
    items: list[Row] = []
    at = 0
    while at < len(rows):
        period, times = _longest(marks, places, at)
        if period * (times - 1) >= LEAST_SAVED:
            steps = _steps(marks, at, period)
            one = [
                _template(marks[at + place], map(_growing, marks[at + place].numbers, step))  # type: ignore[arg-type, union-attr]
                for place, step in enumerate(steps or ())
            ]
            items.append({REPEAT: times, ROWS: one})
            at += period * times
        else:
            items.append(rows[at])
            at += 1
    return items


def unfold_rows(items: Sequence[object], most: int, field: str) -> list[object]:
    """Returns the rows that `fold_rows` folded. Raises `BadInput` for a repeat that is none, and
    for more than `most` rows or `MOST_BYTES` of them."""
    rows: list[object] = []
    length = 0
    for number, item in enumerate(items):
        if not (isinstance(item, dict) and REPEAT in item):
            rows.append(item)
            continue
        place = f"{field}[{number}]"
        times, one = _checked(item, place)
        texts = [json.dumps(row, ensure_ascii=False) for row in one]
        length += times * sum(map(len, texts))
        if len(rows) + times * len(one) > most or length > MOST_BYTES:
            raise _too_long(field, place, f"{most} rows", MOST_BYTES)
        rows += _instances(one, texts, times)
    return rows


def unfolded_count(items: Sequence[object]) -> int:
    """Returns how many rows items unfold to, as far as they are repeats at all."""
    total = 0
    for item in items:
        repeat: Mapping[str, Any] = item if isinstance(item, dict) else {}
        times, one = repeat.get(REPEAT), repeat.get(ROWS)
        total += times * len(one) if isinstance(times, int) and isinstance(one, list) else 1
    return total


def share_rows(rows: Sequence[Row], growing: Collection[str] = ()) -> dict[str, Any]:
    """Returns the rows as templates and what they are filled with.

    `growing` names the members whose whole numbers differ among rows that share a template; other
    numbers outside of texts are part of it.
    """
    families: dict[tuple[bool, str], list[int]] = defaultdict(list)
    marks = [_mark(row, growing=growing) for row in rows]
    for at, (row, mark) in enumerate(zip(rows, marks, strict=True)):
        # A row with braces, which holes have, is a template without any.
        text = json.dumps(row, ensure_ascii=False) if mark is None else mark.text
        families[mark is None, text].append(at)
    names = _names()
    templates: dict[str, Row] = {}
    references = [""] * len(rows)
    for places in families.values():
        name = next(names)
        first = marks[places[0]]
        numbers = [] if first is None else [marks[at].numbers for at in places]  # type: ignore[union-attr]
        holes, filled = _holes(numbers)
        templates[name] = (
            rows[places[0]] if first is None or not filled else _template(first, iter(holes))
        )
        for place, at in enumerate(places):
            values = ",".join(str(column[place]) for column in filled)
            references[at] = f"{name}:{values}" if values else name
    return {TEMPLATES: templates, ROWS: fold_rows(references)}


class Room:
    """The characters that a document may still unfold to."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self._left = most

    def take(self, length: int) -> bool:
        """Returns whether there was room for as many characters, which is then taken."""
        self._left -= length
        return self._left >= 0


def unshare_rows(shared: Mapping[str, Any], most: int, field: str, room: Room) -> list[Any]:
    """Returns the rows that `share_rows` shared.

    Raises `BadInput` with the field for what is not of this form, and before they are made for more
    than `most` rows or more of them than there is `room` for.
    """
    templates, items = shared.get(TEMPLATES), shared.get(ROWS)
    if not isinstance(templates, dict):
        raise BadInput("no templates", field=f"{field}.{TEMPLATES}", expected="an object of rows")
    if not isinstance(items, list):
        raise BadInput("no rows", field=f"{field}.{ROWS}", expected="a list of rows")
    place = f"{field}.{ROWS}"
    known = {name: _Filled.of(row) for name, row in templates.items()}
    rows = []
    for text in unfold_rows(items, most, place):
        template, numbers = _referenced(text, known, place)
        rows.append((template, numbers))
        # Before anything is filled in.
        if len(rows) > most or not room.take(template.longest(len(numbers))):
            raise _too_long(field, place, f"{most} rows", room.most)
    return [template.row(numbers) for template, numbers in rows]


@dataclass(frozen=True)
class _Filled:
    """A template: the row as it is, and its text in parts between holes (`_HOLE`'s groups)."""

    plain: Any
    text: str
    holes: int
    needs: int

    @classmethod
    def of(cls, row: object) -> _Filled:
        text = json.dumps(row, ensure_ascii=False)
        indices = [int(match[1] or match[3]) for match in _HOLE.finditer(text)]
        return cls(row, text, len(indices), max(indices, default=-1) + 1)

    def longest(self, numbers: int) -> int:
        """Returns the most characters that the row has with as many numbers."""
        return len(self.text) + (self.holes * LONGEST_NUMBER if numbers else 0)

    def row(self, numbers: Sequence[int]) -> Any:
        """Returns the row with the numbers filled in; without any as it is."""
        if not numbers:
            return self.plain

        def value(match: re.Match[str]) -> str:
            index, offset = match[1] or match[3], match[2] or match[4] or 0
            return str(max(numbers[int(index)] + int(offset), 0))

        return json.loads(_HOLE.sub(value, self.text))


def _referenced(
    text: object, known: Mapping[str, _Filled], place: str
) -> tuple[_Filled, tuple[int, ...]]:
    """Returns the template that a row names and its numbers. Raises `BadInput`."""
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in known:
        raise BadInput(
            f"{str(text)[:40]!r} names no template", field=place, expected="NAME or NAME:NUMBER,…"
        )
    template = known[match[1]]
    numbers = tuple(map(int, match[2].split(","))) if match[2] else ()
    if numbers and len(numbers) < template.needs:
        raise BadInput(
            f"{str(text)[:40]!r} has {len(numbers)} numbers",
            field=place,
            expected=f"{template.needs}, as template {match[1]} has",
        )
    return template, numbers


def _too_long(what: str, field: str, rows: str, most: int) -> BadInput:
    return BadInput(
        f"{what} unfold to more than {rows}, or {most} bytes of them",
        field=field,
        expected="fewer",
    )


def _names() -> Iterator[str]:
    """Yields a, b, …, z, ba, bb, …: letters, since numbers are what rows are filled with."""
    for number in count():
        name = ""
        while not name or number:
            number, letter = divmod(number, len(ascii_lowercase))
            name = ascii_lowercase[letter] + name
        yield name


def _holes(numbers: Sequence[tuple[int, ...]]) -> tuple[list[str], list[list[int]]]:
    """Returns what stands for each number of rows of one text, and the columns they are filled by.

    A number that is the same in all rows is itself; numbers that differ by as much in all rows are
    filled by one column.
    """
    holes: list[str] = []
    columns: list[list[int]] = []
    known: dict[tuple[int, ...], int] = {}
    for column in zip(*numbers, strict=True):
        changes = tuple(number - column[0] for number in column)
        if not any(changes):
            holes.append(str(column[0]))
            continue
        if changes not in known:
            known[changes] = len(columns)
            columns.append(list(column))
        index = known[changes]
        offset = column[0] - columns[index][0]
        holes.append(f"{{{index}{offset:+d}}}" if offset else f"{{{index}}}")
    return holes, columns


def _checked(item: Mapping[str, Any], place: str) -> tuple[int, list[Row]]:
    """Returns the number of instances and the rows of a repeat. Raises `BadInput`."""
    times, one = item[REPEAT], item.get(ROWS)
    if type(times) is not int or times < 1:
        raise BadInput(
            f"repeated {str(times)[:40]} times",
            field=f"{place}.{REPEAT}",
            expected="a whole number from 1 on",
        )
    if not isinstance(one, list) or not all(isinstance(row, dict | str) for row in one):
        raise BadInput("no rows", field=f"{place}.{ROWS}", expected="a list of rows")
    return times, one


def _instances(one: Sequence[Row], texts: Sequence[str], times: int) -> Iterator[Row]:
    for k in range(times):
        for row, text in zip(one, texts, strict=True):
            yield json.loads(_PLACE.sub(partial(_at, k), text)) if _PLACE.search(text) else row


def _at(k: int, match: re.Match[str]) -> str:
    return str(max(int(match[1]) + int(match[2]) * k, 0))


def _mark(
    row: Row,
    fixed: Callable[[str], bool] = _none,
    growing: Collection[str] = (),
    *,
    sort: bool = False,
) -> _Mark | None:
    """Returns a row's mark, its members sorted or as they are; None where a text has braces, which
    mean something in a repeat and in a template.

    Texts that are `fixed` may have them, and are the same in every instance. Whole numbers that are
    members of a `growing` name are taken out as those in texts are.
    """
    numbers: list[int] = []
    braces = False

    def without(match: re.Match[str]) -> str:
        nonlocal braces
        string, whole = match[1], match[2]
        text = string[1:-1]
        if not fixed(text):
            braces |= "{" in string or "}" in string
            string = _NUMBER.sub(taken, string)
        if whole is None:
            return string
        if text not in growing:
            return f"{string}: {whole}"
        numbers.append(int(whole))
        return f"{string}: {_WHOLE}"

    def taken(match: re.Match[str]) -> str:
        numbers.append(int(match[0]))
        return "{}"

    text = _MEMBER.sub(without, json.dumps(row, sort_keys=sort, ensure_ascii=False))
    return None if braces else _Mark(text, tuple(numbers))


def _longest(
    marks: Sequence[_Mark | None], places: dict[str, list[int]], at: int
) -> tuple[int, int]:
    """Returns the period and the number of instances of the repeat from `at` on that saves most."""
    mark = marks[at]
    if mark is None:
        return 1, 1
    later = places[mark.text]
    first = bisect_left(later, at)
    candidates = (place - at for place in later[first + 1 : first + 1 + MOST_PERIODS])
    found = ((period, _times(marks, at, period)) for period in candidates)
    return max(found, key=lambda one: (one[0] * (one[1] - 1), -one[0]), default=(1, 1))


def _steps(marks: Sequence[_Mark | None], at: int, period: int) -> list[tuple[int, ...]] | None:
    """Returns by how much the numbers of each row grow from the first instance to the second; None
    where the second has other rows."""
    steps = []
    for place in range(at, at + period):
        one, other = marks[place], marks[place + period] if place + period < len(marks) else None
        if one is None or other is None or one.text != other.text:
            return None
        steps.append(tuple(b - a for a, b in zip(one.numbers, other.numbers, strict=True)))
    return steps


def _times(marks: Sequence[_Mark | None], at: int, period: int) -> int:
    """Returns how many instances of the rows from `at` on follow one another."""
    steps = _steps(marks, at, period)
    if steps is None:
        return 1
    times = 2
    while all(
        _is_instance(marks, at + place, period, times, step) for place, step in enumerate(steps)
    ):
        times += 1
    return times


def _is_instance(
    marks: Sequence[_Mark | None], at: int, period: int, k: int, step: tuple[int, ...]
) -> bool:
    place = at + k * period
    one, other = marks[at], marks[place] if place < len(marks) else None
    if one is None or other is None or one.text != other.text:
        return False
    return all(
        b == a + k * more for a, b, more in zip(one.numbers, other.numbers, step, strict=True)
    )


def _growing(number: int, step: int) -> str:
    """Returns a number of a repeat's row, as a function of the instance where it changes."""
    return f"{{{number}{step:+d}k}}" if step else str(number)


def _template(mark: _Mark, numbers: Iterator[str]) -> Row:
    """Returns the row of a mark with these in place of its numbers: themselves, or what stands for
    them in a repeat or a template.

    Texts of rows that are folded have no braces, so every `{}` stands for a number.
    """

    def filled(match: re.Match[str]) -> str:
        if match[0] != _WHOLE:
            return re.sub(r"\{\}", lambda _: next(numbers), match[0])
        number = next(numbers)
        return number if number.isdecimal() else f'"{{{number}}}"'

    row: Row = json.loads(_STRING.sub(filled, mark.text))
    return row
