"""Values from outside as our types, by msgspec, from any number of threads.

What does not fit is a `BadInput` that names the file and the field.

msgspec (0.22) lets every thread see what it knows of a class before it knows all of its fields, and
learns it at the first use. Another thread that uses the class in that moment ends the process with
a segmentation fault. Here one thread at a time makes a class known.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from shardwise.errors import BadInput

T = TypeVar("T")

_known: set[type] = set()
_lock = threading.Lock()

_MESSAGE = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?([^`]*)`)?", re.DOTALL)
_MEMBER = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_MEMBER_PROBLEM = {"missing required": "missing", "contains unknown": "unknown field"}


class Misfit(BadInput):
    """A value that does not have the expected type."""


class NotJson(BadInput):
    """A text that is not JSON."""


def convert(
    value: Any,
    kind: type[T],
    field: str = "",
    *,
    file: str | None = None,
    expected: str | None = None,
    strict: bool = True,
) -> T:
    """Returns a value as `kind`, a Struct or dataclass; `field` is where the value is from.

    Raises `Misfit`, and what `kind` raises itself for values that do not go together.
    """
    _make_known(kind)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _misfit(error, field, file, expected) from None
    except RecursionError:
        raise Misfit("nested too deeply", file=file, field=field or None) from None


def decode(
    data: bytes | str, kind: type[T], *, file: str | None = None, expected: str | None = None
) -> T:
    """Returns a JSON text as `kind`. Raises `NotJson`, and as `convert` does."""
    _make_known(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(error, "", file, expected) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(data, error, file, expected) from None


def decode_any(data: bytes | str, *, file: str | None = None, expected: str | None = None) -> Any:
    """Returns the value of a JSON text, of any type. Raises `NotJson`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(data, error, file, expected) from None


def require_unique_members(data: bytes | str, *, file: str) -> None:
    """Raises `BadInput` where an object of a JSON text has a member twice: a file that a person
    wrote says there two things."""
    try:
        json.loads(data, object_pairs_hook=unique_members)
    except BadInput as error:
        raise error.in_file(file) from None


def unique_members(pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Returns the members of an object. Raises `BadInput` for one that occurs twice."""
    members: dict[str, T] = {}
    for key, value in pairs:
        if key in members:
            raise BadInput(f"the key {key[:60]!r} occurs twice", expected="each key once")
        members[key] = value
    return members


def _make_known(kind: type) -> None:
    if kind in _known:
        return
    with _lock:
        with suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)
        _known.add(kind)


def _misfit(
    error: msgspec.ValidationError, field: str, file: str | None, expected: str | None
) -> Misfit:
    """Returns msgspec's "Expected `int`, got `str` - at `$.shape[1]`" with the field it names."""
    match = _MESSAGE.fullmatch(str(error))
    problem, path = (match[1], match[2] or "") if match else (str(error), "")
    if member := _MEMBER.fullmatch(problem):
        # The name is in the message, not in the path.
        problem, path = _MEMBER_PROBLEM[member[1]], f"{path}.{member[2]}" if path else member[2]
    joint = "" if path.startswith("[") else "."
    whole = f"{field}{joint}{path}" if field and path else field or path
    return Misfit(problem.replace("`", "'"), file=file, field=whole or None, expected=expected)


def _not_json(
    data: bytes | str, error: Exception, file: str | None, expected: str | None
) -> NotJson:
    if isinstance(error, RecursionError):
        problem = "nested too deeply"
    elif not_utf8 := _not_utf8(data):
        problem = f"not UTF-8 text: {not_utf8.reason} at byte {not_utf8.start}"
    else:
        problem = f"not JSON: {error}"
    return NotJson(problem, file=file, expected=expected)


def _not_utf8(data: bytes | str) -> UnicodeDecodeError | UnicodeEncodeError | None:
    """Returns what is wrong with a text's encoding, which msgspec reports in its own ways."""
    try:
        data.encode() if isinstance(data, str) else bytes(data).decode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        return error
    return None


def whole_numbers(text: str, field: str, what: str, expected: str) -> list[int]:
    """Returns the numbers from 1 on of a text such as `2,4`, ascending and each once.

    Raises `BadInput` that says `what` they are.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 and int(part) > 0 for part in parts):
        raise BadInput(f"{text[:80]!r} names no {what}", field=field, expected=expected)
    return sorted({int(part) for part in parts})
