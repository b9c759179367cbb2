"""`Options` of a search from a query, and as part of a question's document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from service.base.json_body import read_json
from shardwise import validation
from shardwise.answers import Options
from shardwise.cost.named_options import (
    NAMES,
    PINS,
    SEVERAL,
    STEP,
    options_from_request,
    pins_from_rules,
)


def options_from_query(values: Mapping[str, Sequence[str]]) -> Options:
    """Returns the options of a query, with all values of each name; lists may have commas.

    `step` is its object as JSON.
    """
    options: dict[str, Any] = {}
    for name, texts in values.items():
        if name == PINS:
            options[name] = list(texts)
        elif name in SEVERAL:
            options[name] = [part for text in texts for part in text.split(",")]
        elif name == STEP:
            options[name] = read_json(texts[-1].encode(), max_depth=2)
        else:
            options[name] = texts[-1]
    return options_from_request(options, strict=False)


def options_document(options: Options) -> dict[str, Any]:
    """Returns every option that shapes the answer, defaults written out: part of the content id."""
    document: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(options, name), order="deterministic") for name in NAMES
    }
    # msgspec leaves out the members of a dataclass that it has read from an object without them.
    document[STEP] = asdict(options.step)
    document[PINS] = [str(pin) for pin in options.pins]
    return document


def options_from_document(values: Mapping[str, Any], threads: int) -> Options:
    """Returns the options that `options_document` wrote, for a worker with `threads` threads."""
    options = {**values, PINS: pins_from_rules(values.get(PINS, [])), "threads": threads}
    return validation.convert(options, Options)
