"""A bounded number of recent entries; the oldest is dropped."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(entries: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Stores a value as the newest; drops the oldest when there are more than `most`."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > most:
        entries.popitem(last=False)
