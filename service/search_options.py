"""`Options` of a search from a request: by field name, so that new options pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import msgspec

from service.json_body import bad_field
from shardwise.advise import Options
from shardwise.advise.pins import parse_pin
from shardwise.errors import BadInput

HERE_ONLY = ("threads",)
"""Options that change how, not what, is computed; the service's settings decide them."""

NAMES = tuple(item.name for item in fields(Options) if item.name not in HERE_ONLY)

_FLAGS = {
    "memory": "memory_limit_bytes",
    "time-limit": "time_limit_s",
    "search-memory": "search_memory_bytes",
    "pin": "pins",
}
"""`Options` names some fields in its errors as the command line does."""


def options_from_request(values: Mapping[str, Any], *, text: bool = False) -> Options:
    """The options of a request's `options` object; with `text`, of a query's strings.

    Raises `BadInput` whose field is `options.NAME`.
    """
    for name in values:
        if name not in NAMES:
            raise BadInput(
                "unknown option", field=f"options.{name}", expected=", ".join(sorted(NAMES))
            )
    try:
        return _converted(values, strict=not text)
    except msgspec.ValidationError as error:
        raise bad_field(error, "options") from None
    except BadInput as error:
        name = _FLAGS.get(error.field or "", (error.field or "").replace("-", "_"))
        raise BadInput(
            error.problem, field=f"options.{name}" if name else "options", expected=error.expected
        ) from None


def options_document(options: Options) -> dict[str, Any]:
    """Every option that shapes the answer, defaults written out: part of the content id."""
    return {
        **{
            name: msgspec.to_builtins(value)
            for name, value in asdict(replace(options, pins=())).items()
            if name not in HERE_ONLY
        },
        "pins": sorted(str(pin) for pin in options.pins),
    }


def options_from_document(values: Mapping[str, Any], threads: int) -> Options:
    """The options that `options_document` wrote, for a worker with so many threads."""
    return _converted({**values, "threads": threads}, strict=True)


def _converted(values: Mapping[str, Any], *, strict: bool) -> Options:
    """The options; `pins` are rules as text, as on the command line."""
    plain = {name: value for name, value in values.items() if name != "pins"}
    rules = msgspec.convert(values.get("pins", ()), tuple[str, ...])
    options = msgspec.convert(plain, Options, strict=strict)
    return replace(options, pins=tuple(parse_pin(rule) for rule in rules))
