"""`Options` of a search from a request: by field name, so that new options pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from service.base.json_body import read_json
from shardwise import validation
from shardwise.advise import Options
from shardwise.cost.pins import Pin, parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput

HERE_ONLY = ("policy", "threads")
"""Options that no request has: a file of this machine, and what the service's settings decide."""

NAMES = tuple(item.name for item in fields(Options) if item.name not in HERE_ONLY)

PINS = "pins"
STEP = "step"
MAX_PINS = 1000
MAX_PIN = 500
MAX_NUMBERS = 32
MAX_NUMBER = 2**31
_HINTS = get_type_hints(Options)
_SEVERAL = tuple(name for name in NAMES if get_origin(_HINTS[name]) is tuple)
NUMBERS = tuple(name for name in _SEVERAL if get_args(_HINTS[name])[0] is int)

_FLAGS = {
    "pin": PINS,
    "memory": "memory_limit_bytes",
    "time-limit": "time_limit_s",
    "search-memory": "search_memory_bytes",
    **{item.name: f"step.{item.name}" for item in fields(StepSettings)},
}
"""`Options` names some fields in its errors as the command line does."""


def options_from_request(values: Mapping[str, Any]) -> Options:
    """Returns the options of a request's `options` object; `pins` are rules as on the command line.

    Raises `BadInput` whose field is `options.NAME`.
    """
    return _options(values, strict=True)


def options_from_query(values: Mapping[str, Sequence[str]]) -> Options:
    """Returns the options of a query, with all values of each name; lists may have commas.

    `step` is its object as JSON.
    """
    options: dict[str, Any] = {}
    for name, texts in values.items():
        if name == PINS:
            options[name] = list(texts)
        elif name in _SEVERAL:
            options[name] = [part for text in texts for part in text.split(",")]
        elif name == STEP:
            options[name] = read_json(texts[-1].encode(), max_depth=2)
        else:
            options[name] = texts[-1]
    return _options(options, strict=False)


def _options(values: Mapping[str, Any], *, strict: bool) -> Options:
    for name in values:
        if name not in NAMES:
            raise BadInput(
                "unknown option", field=f"options.{name[:80]}", expected=", ".join(sorted(NAMES))
            )
    members = dict(values)
    if PINS in members:
        members[PINS] = _pins(members[PINS])
    try:
        options = validation.convert(members, Options, "options", strict=strict)
    except validation.Misfit:
        raise
    except BadInput as error:
        raise of_request(error) from None
    return replace(
        options, zero=_numbers(options, "zero"), micro_batches=_numbers(options, "micro_batches")
    )


def of_request(error: BadInput) -> BadInput:
    """Returns an error that names an option by its flag as one that names the request's member."""
    name = _FLAGS.get(error.field or "", (error.field or "").replace("-", "_"))
    field = f"options.{name}" if name else "options"
    return BadInput(error.problem, field=field, expected=error.expected)


def _numbers(options: Options, name: str) -> tuple[int, ...]:
    """Returns a set of numbers in ascending order, so that equal sets give equal questions."""
    numbers = tuple(sorted(set(getattr(options, name))))
    if len(numbers) > MAX_NUMBERS or max(numbers, default=0) > MAX_NUMBER:
        raise BadInput(
            f"{len(numbers)} numbers up to {str(numbers[-1])[:20]}",
            field=f"options.{name}",
            expected=f"at most {MAX_NUMBERS}, each at most {MAX_NUMBER}",
        )
    return numbers


def _pins(rules: Any) -> list[Pin]:
    """Returns the rules, which are text on the wire because a Pin holds an unordered set."""
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise BadInput("not a list of rules", field=f"options.{PINS}", expected="rules as text")
    if any(len(rule) > MAX_PIN for rule in rules):
        raise BadInput(
            "a long rule", field=f"options.{PINS}", expected=f"at most {MAX_PIN} characters"
        )
    if len(rules) > MAX_PINS:
        raise BadInput(f"{len(rules)} rules", field=f"options.{PINS}", expected=f"≤ {MAX_PINS}")
    try:
        return [parse_pin(rule) for rule in rules]
    except BadInput as error:
        raise BadInput(error.problem, field=f"options.{PINS}", expected=error.expected) from None


def options_document(options: Options) -> dict[str, Any]:
    """Returns every option that shapes the answer, defaults written out: part of the content id."""
    document: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(options, name), order="deterministic") for name in NAMES
    }
    document[PINS] = [str(pin) for pin in options.pins]
    return document


def options_from_document(values: Mapping[str, Any], threads: int) -> Options:
    """Returns the options that `options_document` wrote, for a worker with `threads` threads."""
    options = {**values, PINS: _pins(values.get(PINS, [])), "threads": threads}
    return validation.convert(options, Options)
