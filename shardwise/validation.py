"""Values from outside as our types, by msgspec: from any number of threads.

msgspec (0.22) lets every thread see what it knows of a class before it knows all of its fields, and
learns it at the first use. Another thread that uses the class in that moment ends the process with
a segmentation fault. Here one thread at a time makes a class known.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_known: set[type] = set()
_lock = threading.Lock()


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Returns a value as `kind`, a Struct or dataclass. Raises `msgspec.ValidationError`."""
    _make_known(kind)
    return msgspec.convert(value, kind, strict=strict)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Returns a JSON text as `kind`. Raises `msgspec.DecodeError` and `ValidationError`."""
    _make_known(kind)
    return msgspec.json.decode(data, type=kind)


def _make_known(kind: type) -> None:
    if kind in _known:
        return
    with _lock:
        with suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)
        _known.add(kind)
