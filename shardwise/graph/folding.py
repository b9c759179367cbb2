"""Rows that repeat, folded: the layers of a model are written once.

    rows = item*,  item = row | {"repeat": n, "rows": [row, …]}

Rows are JSON objects. Those of instance k = 0 … n - 1 are those of `rows` with every `{a+bk}` in
their texts replaced by the number a + b·k, so `model.layers.{0+1k}.mlp` stands for the modules of
all layers and `add_{3+4k}` for every fourth addition. Nothing else changes from one instance to the
next: shapes, attributes and the order of tensors are equal, or the rows are not folded. Unfolding
gives back what was folded, row by row.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.errors import BadInput
from shardwise.graph.symbols import is_expression

Row = dict[str, Any]

REPEAT, ROWS = "repeat", "rows"
MOST_PERIODS = 64
"""Places where the next instance may begin that are tried at each row."""
MOST_BYTES = 2**28
"""Characters of rows that may be unfolded: as long a file would be refused."""
LEAST_SAVED = 4
"""Rows that a repeat has to save: one of two rows is longer than these."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")
_PLACE = re.compile(r"\{([0-9]{1,9})([+-][0-9]{1,9})k\}")


@dataclass(frozen=True)
class _Mark:
    """A row as text with its texts' numbers taken out, and these."""

    text: str
    numbers: tuple[int, ...]


def fold_rows(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with those that repeat folded."""
    marks = [_mark(row) for row in rows]
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
                _template(marks[at + place], step)  # type: ignore[arg-type]
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
            raise BadInput(
                f"unfolds to more than {most} {field}, or {MOST_BYTES} bytes of them",
                field=place,
                expected="fewer",
            )
        rows += _instances(one, texts, times)
    return rows


def unfolded_count(items: Sequence[object]) -> int:
    """Returns how many rows items unfold to, as far as they are repeats at all."""
    count = 0
    for item in items:
        repeat: Row = item if isinstance(item, dict) else {}
        times, one = repeat.get(REPEAT), repeat.get(ROWS)
        count += times * len(one) if isinstance(times, int) and isinstance(one, list) else 1
    return count


def _checked(item: Row, place: str) -> tuple[int, list[Row]]:
    """Returns the number of instances and the rows of a repeat. Raises `BadInput`."""
    times, one = item[REPEAT], item.get(ROWS)
    if type(times) is not int or times < 1:
        raise BadInput(
            f"repeated {str(times)[:40]} times",
            field=f"{place}.{REPEAT}",
            expected="a whole number from 1 on",
        )
    if not isinstance(one, list) or not all(isinstance(row, dict) for row in one):
        raise BadInput("no rows", field=f"{place}.{ROWS}", expected="a list of rows")
    return times, one


def _instances(one: Sequence[Row], texts: Sequence[str], times: int) -> Iterator[Row]:
    for k in range(times):
        for row, text in zip(one, texts, strict=True):
            yield json.loads(_PLACE.sub(partial(_at, k), text)) if _PLACE.search(text) else row


def _at(k: int, match: re.Match[str]) -> str:
    return str(max(int(match[1]) + int(match[2]) * k, 0))


def _mark(row: Row) -> _Mark | None:
    """Returns a row's mark; None where a text has braces, which mean something in a repeat.

    Expressions (`symbols.py`) are the same in every instance.
    """
    numbers: list[int] = []
    braces = False

    def without(match: re.Match[str]) -> str:
        nonlocal braces
        if is_expression(match[0][1:-1]):
            return match[0]
        braces |= "{" in match[0] or "}" in match[0]
        return _NUMBER.sub(taken, match[0])

    def taken(match: re.Match[str]) -> str:
        numbers.append(int(match[0]))
        return "{}"

    text = _STRING.sub(without, json.dumps(row, sort_keys=True, ensure_ascii=False))
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


def _template(mark: _Mark, step: tuple[int, ...]) -> Row:
    """Returns a row of a repeat, with its numbers as functions of the instance where they change.

    Texts of rows that are folded have no braces, so every `{}` stands for a number.
    """
    values = iter(
        str(number) if not more else f"{{{number}{more:+d}k}}"
        for number, more in zip(mark.numbers, step, strict=True)
    )
    strings = _STRING.sub(
        lambda match: re.sub(r"\{\}", lambda _: next(values), match[0]), mark.text
    )
    row: Row = json.loads(strings)
    return row
