"""`Options` of a search from a request: by field name, so that new options pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

import msgspec

from service.json_body import bad_field
from shardwise.advise import Options
from shardwise.advise.pins import Pin, parse_pin
from shardwise.errors import BadInput

HERE_ONLY = ("threads",)
"""Options that change how, not what, is computed; the service's settings decide them."""

NAMES = tuple(item.name for item in fields(Options) if item.name not in HERE_ONLY)

PINS = "pins"
MAX_PINS = 1000
_HINTS = get_type_hints(Options)
_SEVERAL = tuple(name for name in NAMES if get_origin(_HINTS[name]) is tuple)

_FLAGS = {
    "pin": PINS,
    "memory": "memory_limit_bytes",
    "time-limit": "time_limit_s",
    "search-memory": "search_memory_bytes",
}
"""`Options` names some fields in its errors as the command line does."""


def options_from_request(values: Mapping[str, Any]) -> Options:
    """The options of a request's `options` object; `pins` are rules as on the command line.

    Raises `BadInput` whose field is `options.NAME`.
    """
    return _options(values, strict=True)


def options_from_query(values: Mapping[str, Sequence[str]]) -> Options:
    """The options of a query: every value that a name was given; lists may have commas."""
    found: dict[str, Any] = {}
    for name, texts in values.items():
        if name == PINS:
            found[name] = list(texts)
        elif name in _SEVERAL:
            found[name] = [part for text in texts for part in text.split(",")]
        else:
            found[name] = texts[-1]
    return _options(found, strict=False)


def _options(values: Mapping[str, Any], *, strict: bool) -> Options:
    for name in values:
        if name not in NAMES:
            raise BadInput(
                "unknown option", field=f"options.{name}", expected=", ".join(sorted(NAMES))
            )
    found = dict(values)
    if PINS in found:
        found[PINS] = _pins(found[PINS])
    try:
        return msgspec.convert(found, Options, strict=strict)
    except msgspec.ValidationError as error:
        raise bad_field(error, "options") from None
    except BadInput as error:
        name = _FLAGS.get(error.field or "", (error.field or "").replace("-", "_"))
        raise BadInput(
            error.problem, field=f"options.{name}" if name else "options", expected=error.expected
        ) from None


def _pins(rules: Any) -> list[Pin]:
    """Rules are text on the wire: a Pin holds a set, whose order is nobody's."""
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise BadInput("not a list of rules", field=f"options.{PINS}", expected="rules as text")
    if len(rules) > MAX_PINS:
        raise BadInput(f"{len(rules)} rules", field=f"options.{PINS}", expected=f"≤ {MAX_PINS}")
    try:
        return [parse_pin(rule) for rule in rules]
    except BadInput as error:
        raise BadInput(error.problem, field=f"options.{PINS}", expected=error.expected) from None


def options_document(options: Options) -> dict[str, Any]:
    """Every option that shapes the answer, defaults written out: part of the content id."""
    document: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(options, name), order="deterministic") for name in NAMES
    }
    document[PINS] = [str(pin) for pin in options.pins]
    return document


def options_from_document(values: Mapping[str, Any], threads: int) -> Options:
    """The options that `options_document` wrote, for a worker with so many threads."""
    found = {**values, PINS: _pins(values.get(PINS, [])), "threads": threads}
    return msgspec.convert(found, Options)
