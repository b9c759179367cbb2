"""What was used lately: a bounded number of things, of which the oldest goes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(kept: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Remembers a value as the newest; the oldest goes when there are more than `most`."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
