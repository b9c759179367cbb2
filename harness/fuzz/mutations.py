"""Mutations of problem files: of the document where the bytes are one, else of the bytes."""

from __future__ import annotations

import json
import random
from typing import Any

_COST = {"memory_bytes": 10, "time_s": 1.5}
_EDGE = {"source": "a", "target": "b", "choices": [[[_COST]], [[_COST, _COST]]]}
_SMALL: dict[str, Any] = {
    "schema": "shardwise.problem/1",
    "operators": [
        {"name": "a", "choices": [_COST, {"memory_bytes": 4, "time_s": 2.0}]},
        {"name": "b", "choices": [_COST]},
    ],
    "edges": [_EDGE],
}
_EMPTY: dict[str, Any] = {"schema": "shardwise.problem/1", "operators": [], "edges": []}
_PARALLEL = {**_SMALL, "edges": [_EDGE, _EDGE]}

SEEDS = tuple(json.dumps(document).encode() for document in (_SMALL, _EMPTY, _PARALLEL))

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    -0.0,
    0,
    5e-324,
    1e308,
    float("nan"),
    float("inf"),
    2**53 + 1,
    2**64,
    10**400,
    "",
    "a",
    "shardwise.problem/2",
    "\u0000",
    "\ud800",
    "\U0001f600",
    "line\nbreak\u2028`$`",
    [],
    {},
    [[]],
    [[[]]],
)
ODD_TEXTS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"1" * 5000,
    b"\\ud800",
    b"\\u0000",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"]",
    b",",
    b'"',
    b" - at `$.x`",
)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Makes one to four changes; three of four times to the document, if there is one."""
    for _ in range(draw.randint(1, 4)):
        document = _document(data) if draw.random() < 0.75 else None
        data = _text_changed(data, draw) if document is None else _changed(document, draw)
    return data


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _changed(document: Any, draw: random.Random) -> bytes:
    places = _places(document)
    if not places:
        return SEEDS[0]
    holder, key = draw.choice(places)
    match draw.randrange(5):
        case 0:
            holder[key] = draw.choice(ODD_VALUES)
        case 1:
            del holder[key]
        case 2:
            # A value from elsewhere in the document: costs for cells, lists for names.
            other, other_key = draw.choice(places)
            holder[key] = other[other_key]
        case 3 if isinstance(holder, list):
            holder.insert(draw.randint(0, len(holder)), holder[key])
        case 3:
            holder[str(draw.choice(ODD_VALUES))] = holder[key]
        case _ if isinstance(holder[key], int | float):
            holder[key] = draw.choice([holder[key] * -1, draw.random() * 10 ** draw.randint(-9, 9)])
        case _:
            holder[key] = [holder[key]]
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        # A part put into itself, or too deep: no JSON.
        return SEEDS[1]


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Returns every (holder, key or index), breadth first and at most some thousand."""
    places: list[tuple[Any, Any]] = []
    left = [document]
    while left and len(places) < 4000:
        holder = left.pop(0)
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            places += [(holder, key) for key in keys]
            left += [holder[key] for key in keys]
    return places


def _text_changed(data: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    until = min(len(data), at + draw.randint(0, 8))
    match draw.randrange(4):
        case 0:
            return data[:at] + draw.choice(ODD_TEXTS) + data[until:]
        case 1:
            return data[:at] + data[until:]
        case 2:
            return data[:at] + draw.randbytes(until - at) + data[until:]
        case _:
            return data[:until] + data[at:]
