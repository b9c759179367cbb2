"""`Options` of a search from a request: by field name, so that new options pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import msgspec

from service.json_body import bad_field, read_json
from shardwise.advise import Options
from shardwise.advise.pins import Pin, parse_pin
from shardwise.advise.step_settings import StepSettings
from shardwise.errors import BadInput

HERE_ONLY = ("threads",)
"""Options that change how, not what, is computed; the service's settings decide them."""

NAMES = tuple(item.name for item in fields(Options) if item.name not in HERE_ONLY)

PINS = "pins"
STEP = "step"
"""How a step is run: an object; in a query, the same as JSON."""

NUMBERS = ("zero", "micro_batches")
"""Options that are sets of whole numbers; in a query they stand between commas."""

MAX_NUMBERS = 32
MAX_NUMBER = 2**31
MAX_PINS = 256
MAX_PIN = 500

_FLAGS = {
    "memory": "memory_limit_bytes",
    "time-limit": "time_limit_s",
    "search-memory": "search_memory_bytes",
    "pin": "pins",
    **{item.name: f"step.{item.name}" for item in fields(StepSettings)},
}
"""`Options` names some fields in its errors as the command line does."""


def options_from_request(values: Mapping[str, Any], *, text: bool = False) -> Options:
    """The options of a request's `options` object; with `text`, of a query's strings.

    Pins are rules as text (`lm_head:zero=3`). Raises `BadInput` whose field is `options.NAME`.
    """
    for name in values:
        if name not in NAMES:
            raise BadInput(
                "unknown option", field=f"options.{name[:80]}", expected=", ".join(sorted(NAMES))
            )
    plain = {name: value for name, value in values.items() if name != PINS}
    if text and isinstance(plain.get(STEP), str):
        plain[STEP] = read_json(plain[STEP].encode(), max_depth=2)
    for name in NUMBERS:
        if name in plain:
            plain[name] = _numbers(plain[name], f"options.{name}", text=text)
    try:
        pins = _pins(values.get(PINS, ()))
        return msgspec.convert({**plain, PINS: pins}, Options, strict=not text)
    except msgspec.ValidationError as error:
        raise bad_field(error, "options") from None
    except BadInput as error:
        name = _FLAGS.get(error.field or "", (error.field or "").replace("-", "_"))
        if not name.startswith("options."):
            name = f"options.{name}" if name else "options"
        raise BadInput(error.problem, field=name, expected=error.expected) from None


def options_document(options: Options) -> dict[str, Any]:
    """Every option that shapes the answer, defaults written out: part of the content id."""
    document = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(options).items()
        if name not in (*HERE_ONLY, PINS)
    }
    # A rule's text names its values in order, which the set of them has not.
    document[PINS] = [str(pin) for pin in options.pins]
    return document


def options_from_document(values: Mapping[str, Any], threads: int) -> Options:
    """The options that `options_document` wrote, for a worker with so many threads."""
    pins = tuple(parse_pin(rule) for rule in values.get(PINS, ()))
    return msgspec.convert({**values, PINS: pins, "threads": threads}, Options)


def _numbers(value: Any, field: str, *, text: bool) -> list[int]:
    """A set of whole numbers, ascending: the same set in another order is the same question."""
    if text and isinstance(value, str):
        words = value.split(",")
        if not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
            raise BadInput(f"{value[:40]!r}", field=field, expected="whole numbers, such as 1,2,4")
        value = [int(word) for word in words]
    whole = isinstance(value, list) and all(type(item) is int for item in value)
    if not whole or len(value) > MAX_NUMBERS:
        raise BadInput(
            "no list of numbers", field=field, expected=f"at most {MAX_NUMBERS} whole numbers"
        )
    if any(number > MAX_NUMBER for number in value):
        raise BadInput("too large a number", field=field, expected=f"at most {MAX_NUMBER}")
    return sorted(set(value))


def _pins(rules: Sequence[Any] | Any) -> tuple[Pin, ...]:
    """Rules as text; each once, in order, as no rule stands before another."""
    if not isinstance(rules, list | tuple) or len(rules) > MAX_PINS:
        raise BadInput(
            "no list of rules", field=f"options.{PINS}", expected=f"at most {MAX_PINS} rules"
        )
    found = {}
    for i, rule in enumerate(rules):
        at = f"options.{PINS}[{i}]"
        if not isinstance(rule, str) or len(rule) > MAX_PIN:
            raise BadInput("no rule", field=at, expected=f"text of at most {MAX_PIN} characters")
        try:
            pin = parse_pin(rule)
        except BadInput as error:
            raise BadInput(error.problem, field=at, expected=error.expected) from None
        found[str(pin)] = pin
    return tuple(found[text] for text in sorted(found))
