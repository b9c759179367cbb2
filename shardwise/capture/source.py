"""What to capture: `hf:GPT2Config:n_layer=4`, `timm:resnet50`, `a.b:call`, `model.onnx`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwise.errors import CaptureError

Value = int | float | bool | str | None
KINDS: tuple[Literal["hf", "timm", "zoo"], ...] = ("hf", "timm", "zoo")
FORMS = (
    "hf:CONFIG_CLASS[:key=value,…], timm:NAME[:key=value,…], zoo:NAME[:key=value,…], "
    "package.module:callable, FILE.onnx[:dimension=size,…] or onnx:FILE"
)
_ONNX = re.compile(
    r"(?:onnx:(?P<named>.+?)|(?P<plain>.+\.onnx(?:\.gz)?))(?::(?P<options>[^:/=]+=[^:/]*))?",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Source:
    """`kind` says who builds the model, `target` which one, `options` are its key=value pairs."""

    kind: Literal["hf", "timm", "zoo", "callable", "onnx"]
    target: str
    options: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""


def parse_source(text: str) -> Source:
    """Parses a source; raises CaptureError if it has no known form."""
    onnx = _ONNX.fullmatch(text)
    if onnx is not None:
        path = onnx["named"] or onnx["plain"]
        return Source("onnx", path, _parse_options(onnx["options"] or "", text), text)
    prefix, colon, rest = text.partition(":")
    if not colon or not prefix or not rest:
        raise CaptureError(f"{text!r} is not a model source", field="SOURCE", expected=FORMS)
    kind = next((k for k in KINDS if k == prefix), None)
    if kind is None:
        return Source("callable", text, {}, text)
    target, _, options = rest.partition(":")
    if not target:
        raise CaptureError(f"{text!r} names no model", field="SOURCE", expected=FORMS)
    return Source(kind, target, _parse_options(options, text), text)


def _parse_options(text: str, source: str) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise CaptureError(f"{part!r} is not an option", field=source, expected="key=value")
        if key in options:
            raise CaptureError(f"{key} is given twice", field=source)
        options[key] = parse_value(value)
    return options


def parse_value(text: str) -> Value:
    """Parses `12`, `0.5`, `true` or `none`; returns other text unchanged."""
    words: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
