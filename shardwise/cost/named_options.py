"""`Options` of a search from outside: a JSON object by field name, so that new ones pass through.

The service's requests and the tools of `shardwise mcp` have it as their member `options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from shardwise import validation
from shardwise.cost.options import METHODS, MOMENTS, RECOMPUTE, SIMPLEST, ZERO_STAGES, Options
from shardwise.cost.pins import Pin, parse_pin
from shardwise.cost.software import FRAMEWORKS, KERNELS, RERUNS
from shardwise.cost.step_settings import (
    ACCUMULATIONS,
    DEVICES,
    GRADIENTS,
    OFFLOADS,
    STATE_BITS,
    STATES,
    UPDATES,
    WEIGHTS,
    StepSettings,
)
from shardwise.errors import BadInput
from shardwise.sharding.fusion import LOSS
from shardwise.sharding.precision import PRECISIONS

HERE_ONLY = ("policy", "threads", "assumed", "shard_units")
"""Options that requests do not have: local files, service settings, and options that answers set
themselves."""

NAMES = tuple(item.name for item in fields(Options) if item.name not in HERE_ONLY)

PINS = "pins"
STEP = "step"
MAX_PINS = 1000
MAX_PIN = 500
MAX_NUMBERS = 32
MAX_NUMBER = 2**31
_HINTS = get_type_hints(Options)
SEVERAL = tuple(name for name in NAMES if get_origin(_HINTS[name]) is tuple)
NUMBERS = tuple(name for name in SEVERAL if get_args(_HINTS[name])[0] is int)
"""Options that are sets of numbers."""

_FLAGS = {
    "pin": PINS,
    "memory": "memory_limit_bytes",
    "room": "memory_room_bytes",
    "time-limit": "time_limit_s",
    "search-memory": "search_memory_bytes",
    "power-limit": "power_limit_w",
    "expert-imbalance": "expert_imbalance",
    **{item.name: f"step.{item.name}" for item in fields(StepSettings)},
}
"""`Options` names some fields in its errors as the command line does."""


def options_from_request(values: Mapping[str, Any], *, strict: bool = True) -> Options:
    """Returns the options of a request's `options` object; `pins` are rules as on the command line.

    Unless `strict`, numbers and truth values may be strings. Raises `BadInput` with the field
    `options.NAME`.
    """
    for name in values:
        if name not in NAMES:
            raise BadInput(
                "unknown option", field=f"options.{name[:80]}", expected=", ".join(sorted(NAMES))
            )
    members = dict(values)
    if PINS in members:
        members[PINS] = pins_from_rules(members[PINS])
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


def pins_from_rules(rules: Any) -> list[Pin]:
    """Returns the rules, which are text on the wire because a Pin holds an unordered set.

    Raises `BadInput` whose field is `options.pins`.
    """
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


CHOICES: Mapping[str, tuple[str, ...]] = {
    "optimizer": tuple(MOMENTS),
    "method": METHODS,
    "recompute": RECOMPUTE,
    "precision": tuple(PRECISIONS),
    "framework": tuple(FRAMEWORKS),
    "kernels": tuple(KERNELS),
    "loss": tuple(LOSS),
    "rerun": tuple(RERUNS),
    "simplest": SIMPLEST,
}
"""The words that each option may be, of those that are words."""
_STEP_CHOICES: Mapping[str, tuple[str, ...]] = {
    "device": DEVICES,
    "update": UPDATES,
    "state": STATES,
    "gradients": GRADIENTS,
    "accumulation": ACCUMULATIONS,
    "offload": OFFLOADS,
    "weights": WEIGHTS,
}
_TEXTS: Mapping[str, str] = {
    "epsilon": "Relative error that the frontier may have, which its certificate states.",
    "memory_limit_bytes": "What one device may use; left out, its memory / memory_headroom.",
    "memory_room_bytes": "What has to stay free of it: a step may take more than predicted.",
    "power_limit_w": "Watts that a GPU may take, by which busy products slow; left out, its own.",
    "expert_imbalance": "Rows of the busiest device over the mean, where a mixture sends them.",
    "tune": "What is trained: full, or lora:RANK or qlora:RANK with :TARGETS (docs/tuning.md).",
    "optimizer": "Whose state is kept, and whose update is part of the step.",
    "time_limit_s": "Seconds for each search.",
    "search_memory_bytes": "What the solver's tables may take.",
    "max_configurations": "Strategies considered for one group; above it mesh axes are merged.",
    "zero": "ZeRO stages that a strategy may use.",
    "recompute": "Whether forward may run again in backward; left out, where it pays.",
    "micro_batches": "Numbers of micro-batches to choose from; left out, all divisors.",
    "precision": "What weights and activations of float32 are computed in; fp8:… and nvfp4: linear "
    "layers in 8 or 4 bits, all else in bf16.",
    "pins": "Rules [PATTERN:]KEY=VALUE or KEY!=VALUE that fix or forbid choices.",
    "overlap": "Search the time of the replayed step; false: the sum of all times.",
    "framework": "What launches the work of a step; left out, compiled on GPUs, else eager.",
    "simplest": "Whether a plan is the simplest strategy within epsilon of the fastest found.",
    "kernels": "How light operators run; left out, as the framework has it.",
}


def options_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a request's `options` object.

    It has the names, types, defaults and choices; rules that span options are checked by `Options`.
    """
    components = msgspec.json.schema_components([Options], schema_hook=lambda kind: {})[1]
    found = components["Options"]["properties"]
    properties = {name: {**found[name]} for name in NAMES}
    properties[STEP] = {
        "type": "object",
        "description": "How replay runs a step.",
        "additionalProperties": False,
        "properties": _with_choices(components["StepSettings"]["properties"], _STEP_CHOICES),
    }
    state = properties[STEP]["properties"]["state"]
    bits = {"type": "string", "pattern": f"^{STATE_BITS}$"}
    properties[STEP]["properties"]["state"] = {
        "anyOf": [{"enum": state["enum"]}, bits],
        "default": state["default"],
    }
    rule = {"type": "string", "maxLength": MAX_PIN}
    properties[PINS] = {"type": "array", "items": rule, "maxItems": MAX_PINS, "default": []}
    for name in NUMBERS:
        properties[name] = {**properties[name], "maxItems": MAX_NUMBERS}
    properties["zero"]["items"] = {"enum": list(ZERO_STAGES)}
    properties = _with_choices(properties, CHOICES)
    for name, text in _TEXTS.items():
        properties[name] = {**properties[name], "description": text}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _with_choices(
    properties: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Returns properties whose texts are among known words with these as their enumeration."""
    shown = {}
    for name, schema in properties.items():
        if name in choices:
            optional = [None] if "anyOf" in schema else []
            schema = {"enum": [*choices[name], *optional], "default": schema.get("default")}
        shown[name] = schema
    return shown
