"""JSON from outside: bounded in depth, no duplicate names, no lone surrogates, finite numbers."""

from __future__ import annotations

import json
from typing import Any

from service.base.problems import Problem
from shardwise.errors import BadInput

MAX_VALUES = 4_000_000
"""Values of one text: each costs about 70 bytes in memory, though it may be two bytes long."""


def read_json(data: bytes, max_depth: int) -> Any:
    """Returns the value of a JSON text. Raises `Problem` of type invalid-json with the reason."""
    # Nothing is built before its size is known to be bounded; commas inside strings count too.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise Problem("too-complex", f"at most {MAX_VALUES} values are read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise _invalid(f"nested too deeply; at most {max_depth} levels are read") from None
    except json.JSONDecodeError as error:
        raise _invalid(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except ValueError:
        # int() refuses thousands of digits; whatever else is wrong with JSON is handled above.
        raise _invalid("a number has too many digits") from None
    _check(value, max_depth)
    return value


def read_object(data: bytes, max_depth: int, expected: str = "a JSON object") -> dict[str, Any]:
    """Returns the object of a JSON text. Raises as `read_json`, and `BadInput` for other values."""
    value = read_json(data, max_depth)
    if not isinstance(value, dict):
        raise BadInput("not an object", expected=expected)
    return value


def _invalid(detail: str) -> Problem:
    return Problem("invalid-json", detail)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _invalid(f"the name {name[:80]!r} occurs twice in one object")
            seen.add(name)
    return members


def _no_constant(name: str) -> Any:
    raise _invalid(f"{name} is not a JSON number")


def _check(value: Any, max_depth: int) -> None:
    """Checks level by level, so that depth costs no recursion."""
    level = [value]
    depth = 0
    while level:
        below: list[Any] = []
        if any(isinstance(item, dict | list) for item in level):
            depth += 1
        if depth > max_depth:
            raise _invalid(f"nested too deeply; at most {max_depth} levels are read")
        for item in level:
            if isinstance(item, dict):
                below.extend(item.keys())
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            else:
                _check_value(item)
        level = below


def _check_value(value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise _invalid(f"{value[:40]!r} contains half of a surrogate pair")
        if "\0" in value:
            # PostgreSQL's text type cannot hold it, and no name needs it.
            raise _invalid("a string contains the character 0")
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise _invalid("a number is too large")
